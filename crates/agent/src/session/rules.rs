// SPDX-License-Identifier: Apache-2.0
//! The node's rules and blackholes for a session.

use ipnet::IpNet;
use kernel::Netlink;

use super::Session;
use crate::blackhole;
use crate::dataplane::nft::{Outcome, REMOVAL, RulesConf};
use crate::run::Worker;
use crate::status::{ConditionKind, RepairKind};

impl Worker {
    /// Ours first, then flannel's go: packets meet one or the other.
    pub(super) fn set_rules(&mut self, session: &Session) {
        let networks: Vec<IpNet> = session.conf.networks.iter().collect();
        let subnets: Vec<IpNet> = session.held.lease.subnets.iter().collect();
        self.settle_blackholes(session, false);
        let masquerade = self.settings.nat.masquerade.clone();
        let forwards = self.settings.nat.forwards;
        let set = self.rules.set(&RulesConf { networks, subnets, masquerade, forwards });
        self.post_rules(&set, false);
        let taken = self.rules.rules().take_over();
        for change in &taken.changes {
            tracing::info!(%change, "changed");
        }
        for problem in &taken.problems {
            tracing::warn!(%problem, "flannel's rules stay");
        }
    }

    /// Where they are wanted; those of earlier subnets go, and so do flannel's.
    pub(super) fn settle_blackholes(&self, session: &Session, is_repair: bool) {
        let networks: Vec<IpNet> = session.conf.networks.iter().collect();
        let subnets = session.held.lease.subnets.iter().filter(|_| self.settings.nat.blackhole);
        let subnets: Vec<IpNet> = subnets.collect();
        let settled =
            Netlink::open().and_then(|nl| blackhole::settle(&nl, &networks, &subnets, true));
        match settled {
            Ok(changes) => changes.into_iter().for_each(|change| {
                if is_repair {
                    tracing::warn!(%change, "repaired");
                    self.hub.repaired(RepairKind::Route, change);
                } else {
                    tracing::info!(%change, "changed");
                }
            }),
            Err(error) => tracing::error!(%error, "failed"),
        }
    }

    pub(crate) fn post_rules(&self, outcome: &Outcome, is_repair: bool) {
        for change in &outcome.changes {
            if is_repair {
                tracing::warn!(%change, "repaired");
                self.hub.repaired(RepairKind::Rules, change);
            } else {
                tracing::info!(%change, "changed");
            }
        }
        if is_repair && outcome.changes.iter().any(|one| one.starts_with(REMOVAL)) {
            tracing::warn!(
                "flannel's rules have come back: flanneld still runs here, and should not"
            );
        }
        match outcome.problems.first() {
            None => self.hub.clear_problem(ConditionKind::Rules),
            Some(problem) => self.hub.set_problem(ConditionKind::Rules, problem.to_string()),
        }
    }
}
