// SPDX-License-Identifier: Apache-2.0
//! What a session needs before it has a lease: the underlay, and what the node tells of itself.
//! Nothing of the network is changed here.

use std::time::Duration;

use kernel::wireguard::PublicKey;
use kernel::{Family, IfIndex, Netlink};
use overlay::Addresses;
use overlay::backend::{Backend, WireguardMode, wireguard};
use overlay::lease::{Attributes, Lease};
use overlay::netconf::NetConf;
use overlay::publish::{self, Identity};
use tokio::time::sleep;

use super::End;
use super::configuration::Judged;
use crate::dataplane::routes::{Report, Secrets, public_key};
use crate::keys;
use crate::lease::{LeaseRequest, NodeRecordState, OwnNode, Snapshot, StoreItem};
use crate::run::Worker;
use crate::settings::Settings;
use crate::status::ConditionKind;
use crate::underlay::{self, Carrier, Facts, Underlay, Wish};
use text::ErrorChain;

/// For the store to answer in, however interfaces change.
const FIRST_TRY: Duration = Duration::from_millis(100);

/// All of it.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub judged: Judged,
    pub attributes: Attributes,
    pub seen: Vec<StoreItem>,
}

impl Worker {
    /// From what the store says, the configuration and the interfaces are.
    pub(crate) async fn prepare(
        &mut self,
        snapshot: &Snapshot,
        judged: Judged,
    ) -> Result<Prepared, End> {
        let wireguard_key = self.wireguard_key(&judged.conf).await?;
        self.before_start(&judged.conf).await?;
        let seen = snapshot.items.clone();
        let known = self.held.clone().or_else(|| self.remembered());
        let known = known.map(|held| held.lease.attributes);
        let (conf, chosen) = (&judged.conf, &judged.chosen);
        let attributes = self.attributes(conf, chosen, &seen, known, wireguard_key)?;
        Ok(Prepared { judged, attributes, seen })
    }

    /// What the node wants of the store.
    pub(super) fn want<'a>(&self, prepared: &'a Prepared) -> LeaseRequest<'a> {
        LeaseRequest {
            pools: &prepared.judged.pools,
            attributes: &prepared.attributes,
            previous: self.previous(),
            random: self.random(),
        }
    }

    pub(super) async fn snapshot(&mut self) -> Result<Snapshot, End> {
        self.look_up_name().await?;
        if let Some(listed) = self.memory.listed.take() {
            return Ok(listed);
        }
        let listed = self.list().await?;
        self.hub.clear_problem(ConditionKind::Store);
        Ok(listed)
    }

    /// Over an address that is this node's no more no answer comes, and who was not reached is tried ever less
    /// often. So the store is asked anew when interfaces change, and each time for longer at least, as many may come
    /// and go while it answers.
    async fn list(&mut self) -> Result<Snapshot, End> {
        let leases = self.leases.clone();
        let mut least = FIRST_TRY;
        loop {
            tokio::select! {
                listed = leases.list() => return Ok(listed?),
                changed = self.underlay_changed(least) => changed?,
            }
            leases.reconnect();
            least *= 2;
        }
    }

    /// Waits so long, and then until an interface has changed, or has by then.
    async fn underlay_changed(&mut self, least: Duration) -> Result<(), End> {
        sleep(least).await;
        loop {
            match self.reports.recv().await {
                Some(Report::Underlay) => return Ok(()),
                Some(other) => self.take_aside(other),
                None => {
                    return Err(End::wait(
                        ConditionKind::Kernel,
                        "the kernel thread has ended",
                        None,
                    ));
                }
            }
        }
    }

    /// A pod that was not told which node it is on asks the cluster, once.
    async fn look_up_name(&mut self) -> Result<(), End> {
        if let Some(node) = self.leases.look_up_node_name().await? {
            self.set_name(node);
        }
        Ok(())
    }

    pub(super) fn set_name(&mut self, node: String) {
        self.hub.set_node(&node);
        self.leases.set_node_name(&node);
        self.settings.node.name = Some(node);
    }

    /// The interface to other nodes, of the families that pods have; else of one that can carry.
    pub(super) fn underlay(&self, conf: &NetConf) -> Result<Underlay, End> {
        let told = self.held.as_ref().map(|held| held.lease.attributes.public).unwrap_or_default();
        underlay_of(&self.settings, &self.own, conf, self.interface, told)
            .map_err(|why| End::wait(ConditionKind::Underlay, why, None))
    }

    /// The public key, where the backend needs one; the private one is told to the kernel thread.
    async fn wireguard_key(&self, conf: &NetConf) -> Result<Option<PublicKey>, End> {
        if !matches!(conf.backend, Backend::Wireguard(_)) && !self.backends.have_wireguard() {
            return Ok(None);
        }
        let failed = |why: String| End::wait(ConditionKind::Kernel, why, None);
        let flannels = self.settings.files.subnet_env.with_file_name("wgkey");
        let find =
            if self.settings.mode.dry_run { keys::preview_wireguard } else { keys::wireguard };
        let private = find(&self.settings.node.state_dir, &flannels)
            .map_err(|error| failed(ErrorChain(&error).to_string()))?;
        let names = Family::ALL.map(wireguard::device_name);
        let asked = self.kernel.run(move |reconciler| {
            let public = public_key(&private, &names);
            reconciler.set_secrets(Secrets { wireguard: Some(private) });
            public
        });
        let public = asked.await.map_err(|error| failed(error.to_string()))?;
        let public = public.map_err(|error| failed(error.to_string()))?;
        Ok(public)
    }

    /// Under which addresses others reach this node.
    pub(super) fn public(&self, underlay: &Underlay) -> Addresses {
        let told = self.own.overwrites.public;
        Addresses { v4: told.v4.or(underlay.public_v4), v6: told.v6.or(underlay.public_v6) }
    }

    /// What this node tells the others. A hardware address that they know of it already it keeps.
    fn attributes(
        &self,
        conf: &NetConf,
        underlay: &Underlay,
        seen: &[StoreItem],
        known: Option<Attributes>,
        wireguard_key: Option<PublicKey>,
    ) -> Result<Attributes, End> {
        let public = self.public(underlay);
        let told = |seed: &str| {
            let identity = Identity {
                seed: seed.as_bytes(),
                addresses: Addresses { v4: underlay.local_v4, v6: underlay.local_v6 },
                public,
                wireguard_key,
                extension_output: self.extension_output.as_deref(),
            };
            publish::attributes(conf, &identity)
                .map_err(|error| End::wait(ConditionKind::Underlay, error.to_string(), None))
        };
        let seed = self.leases.node_name().unwrap_or(&self.identity);
        let attributes = told(seed)?;
        let others = || leases(seen).map(|(_, _, lease)| &lease.attributes);
        let there = || others().find(|one| one.public == attributes.public).cloned();
        if let Some(before) = known.or_else(there) {
            return Ok(publish::keep_macs(attributes, &before));
        }
        match others().any(|other| publish::share_mac(&attributes, other)) {
            // A copy of this machine, with all that tells who it is.
            true => told(&format!("{seed} {public:?}")),
            false => Ok(attributes),
        }
    }
}

/// The interface to other nodes on this machine. `before` was it until now, and `told` is what others know of it.
pub(crate) fn underlay_of(
    settings: &Settings,
    own: &OwnNode,
    conf: &NetConf,
    before: Option<IfIndex>,
    told: Addresses,
) -> Result<Underlay, String> {
    let facts = Netlink::open()
        .and_then(|nl| Facts::read(&nl, settings.underlay.can_reach, own.internal.clone()))
        .map_err(|error| error.to_string())?;
    let wish = Wish {
        interfaces: &settings.underlay.interfaces,
        patterns: &settings.underlay.patterns,
        can_reach: settings.underlay.can_reach,
        before,
        public_v4: own.overwrites.node.v4.or(settings.underlay.public_ipv4),
        public_v6: own.overwrites.node.v6.or(settings.underlay.public_ipv6),
        ..Wish::default()
    };
    underlay::choose_among(&carriers(conf), &wish, &facts, told)
        .map_err(|why| format!("no interface to other nodes: {why}"))
}

/// Nodes that take part: name, since when, lease.
pub(super) fn leases(seen: &[StoreItem]) -> impl Iterator<Item = (&str, u64, &Lease)> {
    seen.iter().filter_map(|one| match one {
        StoreItem::Node(node) => match &node.state {
            NodeRecordState::Active { since, lease } => {
                Some((node.name.as_str(), *since, &**lease))
            }
            _ => None,
        },
        StoreItem::Config(_) | StoreItem::ConfigRejected(_) => None,
    })
}

/// Which families the interface is asked to have, the best first.
fn carriers(conf: &NetConf) -> [Carrier; 3] {
    let has = |family| conf.networks.get(family).is_some();
    let first = match &conf.backend {
        Backend::Wireguard(wireguard) if wireguard.mode != WireguardMode::Separate => (true, true),
        _ => (has(Family::V4), has(Family::V6)),
    };
    [first, (true, false), (false, true)]
}
