// SPDX-License-Identifier: Apache-2.0
//! What an agent would do, told and not done.

use ipnet::IpNet;
use overlay::plan::Network;

use super::configuration::Judged;
use super::prepare::{Prepared, leases};
use super::{End, begin};
use crate::board::Part;
use crate::rules::RulesConf;
use crate::run::Worker;

impl Worker {
    /// Each change in a line, in the order in which they would be made; then what is in the way.
    pub async fn preview(&mut self) -> Result<Vec<String>, End> {
        let mut lines = Vec::new();
        let snapshot = self.snapshot().await?;
        let stored = self.stored(&self.leases.understand(&snapshot));
        let text = match (stored, self.settings.net_config.clone()) {
            (Err(_), Some(told)) if self.leases.are_chosen() => {
                let place = self.leases.config_place();
                lines.push(format!("write the network's configuration to {place}"));
                told
            }
            (stored, _) => stored?,
        };
        self.own = self.leases.own(&snapshot)?;
        let prepared = self.prepare(&snapshot, self.judge(text)?).await?;
        let (lease, is_kept) = self.leases.preview(&snapshot, &self.want(&prepared))?;
        let verb = if is_kept { "keep" } else { "take" };
        lines.push(format!("{verb} lease {}", lease.key()));
        let Prepared { judged: Judged { conf, chosen, .. }, seen, .. } = prepared;
        let networks: Vec<IpNet> = conf.networks.iter().collect();
        let subnets: Vec<IpNet> = lease.subnets.iter().collect();
        let own = lease.key();
        let peers = leases(&seen)
            .filter(|(name, ..)| *name != own && Some(*name) != self.leases.identity())
            .map(|(name, since, lease)| (name.to_owned(), (since, lease.clone())))
            .collect();
        let network = Network::new(conf, lease, begin::planned(&chosen), peers)
            .map_err(|error| End::wait(Part::Config, error.to_string(), None))?;
        lines.extend(self.preview_kernel(network).await?);
        lines.extend(self.preview_rules(networks, subnets));
        Ok(lines)
    }

    async fn preview_kernel(&self, mut network: Network) -> Result<Vec<String>, End> {
        let failed = |why: String| End::wait(Part::Kernel, why, None);
        let asked = self.kernel.run(move |reconciler| (reconciler.dry_run(&mut network), network));
        let (difference, network) = asked.await.map_err(|error| failed(error.to_string()))?;
        let refused = network.plan().refused.iter().map(|refusal| format!("# {refusal}"));
        let difference = difference.map_err(|error| failed(error.to_string()))?;
        let changes = difference.changes.iter().map(ToString::to_string);
        let conflicts = difference.conflicts.iter().map(|conflict| format!("# {conflict}"));
        Ok(changes.chain(conflicts).chain(refused).collect())
    }

    fn preview_rules(&self, networks: Vec<IpNet>, subnets: Vec<IpNet>) -> Vec<String> {
        let masquerade = self.settings.masquerade.clone();
        let conf = RulesConf { networks, subnets, masquerade, forwards: self.settings.forwards };
        let rules = self.rules.rules();
        let both = [rules.preview(&conf), rules.preview_take_over()];
        let told = both.into_iter().flat_map(|outcome| {
            let problems = outcome.problems.into_iter().map(|problem| format!("# {problem}"));
            outcome.changes.into_iter().chain(problems).collect::<Vec<_>>()
        });
        told.collect()
    }
}
