// SPDX-License-Identifier: Apache-2.0
//! What an agent would do, told and not done.

mod files;

use ipnet::IpNet;
use kernel::Netlink;
use overlay::netconf::Pool;
use overlay::plan::Network;

use super::prepare::{Prepared, leases};
use super::{End, begin, extension};
use crate::blackhole;
use crate::dataplane::nft::RulesConf;
use crate::lease::{LeaseOrigin, LeasePreview, LeaseRequest};
use crate::node_files::bridge;
use crate::run::Worker;
use crate::status::ConditionKind;

impl Worker {
    /// Each change in a line, in the order in which they would be made; then files, and what is in the way.
    pub async fn preview(&mut self) -> Result<Vec<String>, End> {
        let mut lines = Vec::new();
        let snapshot = self.snapshot().await?;
        let is_missing = self.lacks_configuration(&snapshot);
        let text = match self.settings.network.config.clone().filter(|_| is_missing) {
            Some(told) => {
                let place = self.leases.config_location();
                lines.push(format!("write the network's configuration to {place}"));
                told
            }
            None => self.stored(&snapshot.items)?,
        };
        self.own = self.leases.own_node()?;
        let prepared = self.prepare(&snapshot, self.judge(text)?).await?;
        let conf = prepared.judged.conf.clone();
        lines.extend(extension::line_before_start(&conf).map(|line| format!("run {line}")));
        let foreseen = self.preview_lease(&prepared)?;
        lines.extend(told(&foreseen, &prepared));
        let (changes, pod_mtu) = self.preview_kernel(&prepared, &foreseen).await?;
        lines.extend(changes);
        let lease = foreseen.lease;
        let networks: Vec<IpNet> = conf.networks.iter().collect();
        let subnets: Vec<IpNet> = lease.subnets.iter().collect();
        lines.extend(self.preview_blackholes(&networks, &subnets)?);
        lines.extend(self.preview_rules(networks, subnets));
        lines.extend(match bridge::preview(&self.expected_bridge(&conf, &lease)) {
            Ok(changes) => changes,
            Err(error) => vec![format!("# {error}")],
        });
        lines.extend(self.preview_files(&conf, &lease, pod_mtu));
        Ok(lines)
    }

    fn preview_lease(&self, prepared: &Prepared) -> Result<LeasePreview, End> {
        let remembered = self.remembered().map(|held| held.lease);
        let want = LeaseRequest { random: 0, ..self.want(prepared) };
        Ok(self.leases.preview(remembered, &want)?)
    }

    /// Also what pods' packets may have.
    async fn preview_kernel(
        &self,
        Prepared { judged, seen, .. }: &Prepared,
        LeasePreview { lease, obsolete, .. }: &LeasePreview,
    ) -> Result<(Vec<String>, u32), End> {
        let own = lease.key();
        let is_own = |name: &str| {
            name == own
                || obsolete.iter().any(|old| old == name)
                || self.leases.node_name() == Some(name)
        };
        let peers = leases(seen)
            .filter(|(name, ..)| !is_own(name))
            .map(|(name, since, lease)| (name.to_owned(), (since, lease.clone())))
            .collect();
        let (conf, underlay) = (judged.conf.clone(), begin::planned(&judged.chosen));
        let mut network = Network::new(conf, lease.clone(), underlay, peers)
            .map_err(|error| End::wait(ConditionKind::Config, error.to_string(), None))?;
        self.preview_previous_backend(judged.text.expose(), &mut network);
        let failed = |why: String| End::wait(ConditionKind::Kernel, why, None);
        let asked = self.kernel.run(move |reconciler| (reconciler.dry_run(&mut network), network));
        let (difference, network) = asked.await.map_err(|error| failed(error.to_string()))?;
        let refused = network.plan().rejected.iter().map(|refusal| format!("# {refusal}"));
        let difference = difference.map_err(|error| failed(error.to_string()))?;
        let changes = difference.changes.iter().map(ToString::to_string);
        let conflicts = difference.conflicts.iter().map(|conflict| format!("# {conflict}"));
        Ok((changes.chain(conflicts).chain(refused).collect(), network.plan().pod_mtu))
    }

    fn preview_blackholes(
        &self,
        networks: &[IpNet],
        subnets: &[IpNet],
    ) -> Result<Vec<String>, End> {
        let wanted: &[IpNet] = if self.settings.nat.blackhole { subnets } else { &[] };
        Netlink::open()
            .and_then(|nl| blackhole::preview(&nl, networks, wanted, true))
            .map_err(|error| End::wait(ConditionKind::Kernel, error.to_string(), None))
    }

    fn preview_rules(&self, networks: Vec<IpNet>, subnets: Vec<IpNet>) -> Vec<String> {
        let masquerade = self.settings.nat.masquerade.clone();
        let conf =
            RulesConf { networks, subnets, masquerade, forwards: self.settings.nat.forwards };
        let rules = self.rules.rules();
        let both = [rules.preview(&conf), rules.preview_take_over()];
        let told = both.into_iter().flat_map(|outcome| {
            let problems = outcome.problems.into_iter().map(|problem| format!("# {problem}"));
            outcome.changes.into_iter().chain(problems).collect::<Vec<_>>()
        });
        told.collect()
    }
}

/// Where it is not known yet which subnet that will be, another one stands for it.
fn told(
    LeasePreview { lease, origin, obsolete }: &LeasePreview,
    prepared: &Prepared,
) -> Vec<String> {
    let key = lease.key();
    let gone = obsolete.iter().map(|old| format!("delete lease {old}, which no longer fits"));
    let taken = match origin {
        LeaseOrigin::Kept => format!("keep lease {key}"),
        LeaseOrigin::Known => format!("take lease {key}"),
        LeaseOrigin::Free => {
            let pools = ranges(prepared.judged.pools.iter().map(|(_, pool)| pool));
            format!("take a lease that is free {pools}; {key} stands for it below")
        }
    };
    gone.chain([taken]).collect()
}

/// Of one family or of both.
fn ranges<'a>(pools: impl Iterator<Item = &'a Pool>) -> String {
    let range = |pool: &Pool| {
        let length = pool.subnet_len();
        format!("from {}/{length} to {}/{length}", pool.min(), pool.max())
    };
    pools.map(range).collect::<Vec<_>>().join(" and ")
}
