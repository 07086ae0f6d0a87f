// SPDX-License-Identifier: Apache-2.0
//! What an agent has made in the kernel.

use ipnet::IpNet;
use kernel::Netlink;
use overlay::ownership::PROTOCOL;
use overlay::stale_bridge;

use super::Cleaner;
use super::lease::Own;
use crate::dataplane::nft::Rules;
use crate::dataplane::routes::{Options, Reconciler, Secrets};
use crate::options::Settings;
use crate::{blackhole, bridge, run};

impl Cleaner<'_> {
    pub(super) fn clean_kernel(&mut self, own: &Own) -> Result<(), run::Error> {
        let settings = self.settings;
        let options = Options {
            mark: settings.mark.clone(),
            previous: own.networks(),
            secrets: Secrets::default(),
            queues: 1,
        };
        let mut reconciler = Reconciler::open(options)?;
        if settings.dry_run {
            reconciler.everything()?.iter().for_each(|change| self.done(change));
        } else {
            let outcome = reconciler.remove_everything();
            outcome.changes.iter().for_each(|change| self.done(change));
            self.cleaned.failed.extend(outcome.failures.iter().map(ToString::to_string));
        }
        self.clean_rules(own)?;
        self.tell_of_bridge(own)
    }

    /// Of nf_tables, and blackholes.
    pub(super) fn clean_rules(&mut self, own: &Own) -> Result<(), run::Error> {
        let settings = self.settings;
        let mut rules = Rules::open(&settings.mark)?;
        let nl = Netlink::open()?;
        let rules = if settings.dry_run { rules.preview_removal() } else { rules.remove() };
        self.cleaned.done.extend(rules.changes);
        self.cleaned.failed.extend(rules.problems.iter().map(ToString::to_string));
        let settle = if settings.dry_run { blackhole::preview } else { blackhole::settle };
        match settle(&nl, &own.networks(), &[], false) {
            Ok(changes) => self.cleaned.done.extend(changes),
            Err(error) => {
                let failed = format!("remove blackholes of protocol {PROTOCOL}: {error}");
                self.cleaned.failed.push(failed);
            }
        }
        self.tell_of_blackholes(&nl, own)
    }

    /// Those that neither this agent nor another of the same directory has written down may be of either, or of an
    /// agent that keeps its things elsewhere.
    fn tell_of_blackholes(&mut self, nl: &Netlink, own: &Own) -> Result<(), run::Error> {
        let mut known = own.networks();
        for mark in self.other_marks() {
            let others = Settings { mark, ..self.settings.clone() };
            known.extend(Own::read(&others).subnets);
        }
        let is_known = |dst: &IpNet| known.iter().any(|network| network.contains(dst));
        for dst in blackhole::of_agents(nl)?.iter().filter(|dst| !is_known(dst)) {
            self.cleaned.left.push(format!(
                "blackhole {dst}, of which nothing tells whether it is this agent's: ip route delete blackhole {dst} metric {}",
                blackhole::METRIC
            ));
        }
        Ok(())
    }

    /// Nothing on it tells who made it.
    fn tell_of_bridge(&mut self, own: &Own) -> Result<(), run::Error> {
        if let Some((name, address)) = bridge::within(&own.networks())? {
            self.cleaned.left.push(format!(
                "{name} with {address}; if this node gets another subnet, {}",
                stale_bridge::hint(name)
            ));
        }
        Ok(())
    }
}
