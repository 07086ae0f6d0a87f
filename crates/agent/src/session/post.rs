// SPDX-License-Identifier: Apache-2.0
//! What became of a comparison: told to people, probes and plugins.

use overlay::backend::Backend;
use overlay::lease::Lease;
use overlay::netconf::NetConf;
use overlay::subnet_env::SubnetEnv;

use super::Session;
use crate::dataplane::routes::Outcome;
use crate::node_files::bridge;
use crate::run::Worker;
use crate::status::{self, ConditionKind, Path, Refused, RepairKind, Way};

/// Most refused leases that are logged one by one when they are refused at once.
const MAX_LOGGED: usize = 20;

impl Worker {
    /// Posts an outcome; `is_repair` where others had broken what was changed.
    pub(super) async fn post(&mut self, session: &mut Session, outcome: &Outcome, is_repair: bool) {
        self.post_changes(outcome, is_repair);
        self.hub.set_conflicts(&outcome.conflicts);
        self.tell_commands(session, &outcome.changes).await;
        let refused = session.refused(outcome).chain(self.refused_by_commands());
        let fresh = self.hub.set_refused(refused.collect());
        for Refused { peer, subnet, reason } in fresh.iter().take(MAX_LOGGED) {
            let subnet = subnet.map(|subnet| subnet.to_string());
            tracing::warn!(peer, subnet, reason, "refused");
        }
        if let Some(more @ 1..) = fresh.len().checked_sub(MAX_LOGGED) {
            tracing::warn!(more, "refused, not logged one by one");
        }
        if outcome.pod_mtu.is_some() && outcome.pod_mtu != session.pod_mtu {
            session.pod_mtu = outcome.pod_mtu;
            if session.has_begun {
                self.tell_plugins(session);
            }
        }
    }

    /// What was done, and what could not be.
    pub(crate) fn post_changes(&self, outcome: &Outcome, is_repair: bool) {
        for change in &outcome.changes {
            if is_repair {
                tracing::warn!(%change, "repaired");
                self.hub.repaired(RepairKind::from(change), change.to_string());
            } else {
                tracing::info!(%change, "changed");
            }
        }
        self.post_failures(outcome);
    }

    fn post_failures(&self, outcome: &Outcome) {
        for failure in &outcome.failures {
            tracing::error!(%failure, "failed");
        }
        match &outcome.failures[..] {
            [] => self.hub.clear_problem(ConditionKind::Kernel),
            [only] => self.hub.set_problem(ConditionKind::Kernel, only.to_string()),
            [first, rest @ ..] => {
                self.hub.set_problem(
                    ConditionKind::Kernel,
                    format!("{first}; and {} more", rest.len()),
                );
            }
        }
    }

    /// What subnet.env is to say.
    pub(super) fn env(&self, conf: &NetConf, lease: &Lease, mtu: u32) -> SubnetEnv {
        SubnetEnv {
            networks: conf.networks.iter().collect(),
            subnets: lease.subnets.iter().collect(),
            mtu,
            ip_masq: self.settings.nat.masquerade.is_some(),
        }
    }

    /// The node does not become ready before the bridge fits these subnets.
    pub(super) fn expect_bridge(&self, session: &Session) {
        let expected = self.expected_bridge(&session.conf, &session.held.lease);
        self.hub.report(ConditionKind::Bridge, bridge::check(&expected));
        self.bridge.send_replace(Some(expected));
    }

    pub(super) fn expected_bridge(&self, conf: &NetConf, lease: &Lease) -> bridge::Expected {
        bridge::Expected {
            networks: conf.networks.iter().collect(),
            subnets: lease.subnets.iter().collect(),
            has_cni_conf: self.settings.files.cni_conf.is_some(),
        }
    }

    /// By subnet.env; the node is ready when it is there.
    pub(super) fn tell_plugins(&self, session: &Session) {
        let mtu = session.pod_mtu.unwrap_or(session.underlay.mtu);
        let env = self.env(&session.conf, &session.held.lease, mtu);
        let shown = session.shown(&self.mark, env.mtu);
        self.subnet_env.send_replace(Some((env, shown)));
    }
}

impl Session {
    /// All peers that cannot be served, for whichever reason.
    fn refused(&self, outcome: &Outcome) -> impl Iterator<Item = Refused> {
        let planned = outcome.refused.iter().map(|refusal| Refused {
            peer: refusal.peer.clone(),
            subnet: refusal.subnet,
            reason: refusal.reason.to_string(),
        });
        let bad = self.bad.iter().map(|(name, why)| Refused {
            peer: name.clone(),
            subnet: None,
            reason: why.clone(),
        });
        planned.chain(bad)
    }

    fn shown(&self, mark: &str, pod_mtu: u32) -> status::Session {
        status::Session {
            mark: mark.to_owned(),
            networks: self.conf.networks.iter().collect(),
            backend: self.conf.backend.name().to_owned(),
            pod_mtu,
            lease: status::Lease {
                subnets: self.held.lease.subnets.iter().collect(),
                public: self.held.lease.attributes.public.iter().collect(),
            },
            underlay: status::Underlay {
                name: self.underlay.name.to_string(),
                addresses: self.underlay.addresses.iter().collect(),
                mtu: self.underlay.mtu,
            },
        }
    }

    /// A peer as people see it.
    pub(super) fn shown_peer(&self, name: &str, lease: &Lease) -> status::Peer {
        let way = match self.conf.backend {
            Backend::HostGw => Way::Direct,
            Backend::Alloc | Backend::Extension(_) => Way::None,
            _ => Way::Tunnel,
        };
        status::Peer {
            name: name.to_owned(),
            subnets: lease.subnets.iter().collect(),
            public: lease.attributes.public.iter().collect(),
            backend: lease.attributes.data.kind().to_owned(),
            way,
            path: Path::default(),
        }
    }
}
