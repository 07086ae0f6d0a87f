// SPDX-License-Identifier: Apache-2.0
//! From what the store and the interfaces say to a session: configuration, underlay, lease.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use kernel::{Family, Netlink};
use overlay::lease::{Attributes, Lease};
use overlay::netconf::{Backend, Mode, NetConf, NetConfConf, Pool};
use overlay::plan::{self, Network};
use overlay::publish::{self, Identity};
use overlay::{Addresses, Key, PerFamily};
use store::Snapshot;

use super::{End, Session, chain};
use crate::board::Part;
use crate::keys;
use crate::leases::{AcquireError, Held, NodeState, Seen, TIME_TO_LIVE, Want};
use crate::reconcile::{Secrets, public_key};
use crate::run::Worker;
use crate::underlay::{self, Facts, Underlay, Wish};

/// Peers by name: since when, and with which lease.
type Peers = BTreeMap<String, (u64, Lease)>;

impl Worker {
    /// Begins a session: the node has a lease, and the kernel is what the network wants.
    pub async fn begin(&mut self) -> Result<Session, End> {
        let mut snapshot = self.snapshot().await?;
        if self.configuration(&self.leases.understand(&snapshot))?.is_none() {
            self.offer_configuration().await?;
            snapshot = self.snapshot().await?;
        }
        let revision = snapshot.revision;
        let seen = self.leases.understand(&snapshot);
        let wrong = |why: String| End::wait(Part::Config, why, Some(revision));
        let Some(conf_text) = self.configuration(&seen)? else {
            let place = self.leases.config_place();
            let why = format!("the network has no configuration: {place} is where it should be");
            return Err(wrong(why));
        };
        let written = NetConfConf::read(&conf_text).map_err(|error| wrong(error.to_string()))?;
        let conf = written.understand().map_err(|error| wrong(error.to_string()))?;
        let pools = match self.leases.are_chosen() {
            true => written.pools().map_err(|error| wrong(error.to_string()))?,
            false => PerFamily::default(),
        };
        self.own = self.leases.own(&snapshot)?;
        let chosen = self.underlay(&conf)?;
        let wireguard_key = self.wireguard_key(&conf).await?;
        let attributes = self.attributes(&conf, &chosen, &seen, wireguard_key)?;
        let held = self.lease(snapshot, &pools, &attributes).await?;
        let mut session = Session {
            conf,
            conf_text,
            underlay: planned(&chosen),
            follow: self.leases.follow(revision),
            bad: BTreeMap::new(),
            renew_at: self.renewal(&held),
            held,
            pod_mtu: None,
        };
        self.program_all(&mut session, seen).await?;
        self.set_rules(&session);
        Ok(session)
    }

    fn configuration(&self, seen: &[Seen]) -> Result<Option<String>, End> {
        let read = self.leases.configuration(seen);
        read.map_err(|error| {
            let place = self.leases.config_place();
            End::wait(Part::Config, format!("read {place}: {error}"), None)
        })
    }

    async fn snapshot(&self) -> Result<Snapshot, End> {
        let listed = self.leases.list().await?;
        self.board.solved(Part::Store);
        Ok(listed)
    }

    /// There is none. The one that we were told, if any, is put there, where all nodes find it.
    async fn offer_configuration(&self) -> Result<(), End> {
        let Some(told) = &self.settings.net_config else { return Ok(()) };
        let understood = NetConfConf::read(told).and_then(|written| {
            written.pools()?;
            written.understand()
        });
        understood
            .map_err(|error| End::wait(Part::Config, format!("net-config: {error}"), None))?;
        Ok(self.leases.offer_config(told).await?)
    }

    /// The interface to other nodes, of the families that pods have; else of one that can carry.
    pub(super) fn underlay(&self, conf: &NetConf) -> Result<Underlay, End> {
        let settings = &self.settings;
        let facts = Netlink::open()
            .and_then(|nl| Facts::read(&nl, settings.can_reach, self.own.internal.clone()))
            .map_err(|error| End::wait(Part::Underlay, error.to_string(), None))?;
        let mut reason = None;
        for (ipv4, ipv6) in carriers(conf) {
            let wish = Wish {
                ipv4,
                ipv6,
                interfaces: &settings.interfaces,
                patterns: &settings.interface_patterns,
                can_reach: settings.can_reach,
                public_v4: self.own.overwrites.node.v4.or(settings.public_ipv4),
                public_v6: self.own.overwrites.node.v6.or(settings.public_ipv6),
            };
            match underlay::choose(&wish, &facts) {
                Ok(underlay) => return Ok(underlay),
                Err(why) => reason = reason.or(Some(why)),
            }
        }
        let why = format!("no interface to other nodes: {}", reason.unwrap_or_default());
        Err(End::wait(Part::Underlay, why, None))
    }

    /// The public key, where the backend needs one; the private one is told to the kernel thread.
    async fn wireguard_key(&self, conf: &NetConf) -> Result<Option<Key>, End> {
        if !matches!(conf.backend, Backend::Wireguard(_)) {
            return Ok(None);
        }
        let failed = |why: String| End::wait(Part::Kernel, why, None);
        let flannels = self.settings.subnet_file.with_file_name("wgkey");
        let private = keys::wireguard(&self.settings.state_dir, &flannels)
            .map_err(|error| failed(chain(&error)))?;
        let names = Family::ALL.map(plan::wireguard::device_name);
        let asked = self.kernel.run(move |reconciler| {
            let public = public_key(&private, &names);
            reconciler.set_secrets(Secrets { wireguard: Some(private) });
            public
        });
        let public = asked.await.map_err(|error| failed(error.to_string()))?;
        let public = public.map_err(|error| failed(error.to_string()))?;
        Ok(public.map(|key| Key(key.0)))
    }

    /// What this node tells the others. A hardware address that they know of it already it keeps.
    fn attributes(
        &self,
        conf: &NetConf,
        underlay: &Underlay,
        seen: &[Seen],
        wireguard_key: Option<Key>,
    ) -> Result<Attributes, End> {
        let told = self.own.overwrites.public;
        let public =
            Addresses { v4: told.v4.or(underlay.public_v4), v6: told.v6.or(underlay.public_v6) };
        let texts: Vec<String> = public.iter().map(|address| address.to_string()).collect();
        let seed = self.leases.identity().map_or_else(|| texts.join(" "), str::to_owned);
        let identity = Identity {
            seed: seed.as_bytes(),
            addresses: Addresses { v4: underlay.local_v4, v6: underlay.local_v6 },
            public,
            wireguard_key,
            extension_output: None,
        };
        let attributes = publish::attributes(conf, &identity)
            .map_err(|error| End::wait(Part::Underlay, error.to_string(), None))?;
        let before =
            leases(seen).find(|(_, _, lease)| lease.attributes.public == attributes.public);
        Ok(match before {
            Some((_, _, lease)) => publish::keep_macs(attributes, &lease.attributes),
            None => attributes,
        })
    }

    /// The lease that is held, with other attributes perhaps; else the one of the last run; else a
    /// free one.
    async fn lease(
        &mut self,
        snapshot: Snapshot,
        pools: &PerFamily<Pool>,
        attributes: &Attributes,
    ) -> Result<Held, End> {
        let want = Want { pools, attributes, previous: self.previous(), random: self.random() };
        let kept = match &self.held {
            Some(held) => self.leases.keep_with(held, &want).await?,
            None => None,
        };
        let held = match kept {
            Some(held) => held,
            None => self.leases.acquire(snapshot, &want).await?,
        };
        self.held = Some(held.clone());
        self.board.solved(Part::Lease);
        Ok(held)
    }

    /// When a lease that was just written is to be renewed.
    pub(super) fn renewal(&self, held: &Held) -> Option<Instant> {
        let left = (!held.is_reservation).then_some(TIME_TO_LIVE);
        self.board.set_lease_left(left);
        left.map(|left| Instant::now() + left.saturating_sub(self.settings.renew_margin))
    }

    /// Plans for all peers and makes the kernel what follows.
    pub(super) async fn program_all(
        &mut self,
        session: &mut Session,
        seen: Vec<Seen>,
    ) -> Result<(), End> {
        session.bad = bad(&seen);
        let own = session.held.name.as_str();
        let peers: Peers = leases(&seen)
            .filter(|(name, ..)| *name != own)
            .map(|(name, since, lease)| (name.to_owned(), (since, lease.clone())))
            .collect();
        let shown = peers.iter().map(|(name, (_, lease))| session.shown_peer(name, lease));
        self.board.set_peers(shown.collect());
        let (conf, lease) = (session.conf.clone(), session.held.lease.clone());
        let network = Network::new(conf, lease, session.underlay.clone(), peers);
        let network = network.map_err(|error| {
            End::wait(Part::Config, error.to_string(), Some(session.follow.revision()))
        })?;
        let start = Instant::now();
        let outcome = self.kernel(|reconciler| reconciler.set_network(network)).await?;
        self.board.compared(start.elapsed(), outcome.changes.len());
        self.post(session, &outcome, false);
        self.look_at_ways(None).await
    }
}

impl From<store::Error> for End {
    fn from(error: store::Error) -> Self {
        Self::wait(Part::Store, chain(&error), None)
    }
}

impl From<AcquireError> for End {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Store(cause) => Self::from(cause),
            other => Self::wait(Part::Lease, other.to_string(), None),
        }
    }
}

/// Nodes that take part: name, since when, lease.
fn leases(seen: &[Seen]) -> impl Iterator<Item = (&str, u64, &Lease)> {
    seen.iter().filter_map(|one| match one {
        Seen::Node(node) => match &node.state {
            NodeState::In { since, lease } => Some((node.name.as_str(), *since, &**lease)),
            _ => None,
        },
        Seen::Config(_) => None,
    })
}

fn bad(seen: &[Seen]) -> BTreeMap<String, String> {
    let reason = |one: &Seen| match one {
        Seen::Node(node) => match &node.state {
            NodeState::Bad(why) => Some((node.name.clone(), why.clone())),
            _ => None,
        },
        Seen::Config(_) => None,
    };
    seen.iter().filter_map(reason).collect()
}

/// Which families the interface is asked to have, the best first.
fn carriers(conf: &NetConf) -> [(bool, bool); 3] {
    let has = |family| conf.networks.get(family).is_some();
    let first = match &conf.backend {
        Backend::Wireguard(wireguard) if wireguard.mode != Mode::Separate => (true, true),
        _ => (has(Family::V4), has(Family::V6)),
    };
    [first, (true, false), (false, true)]
}

pub(super) fn planned(chosen: &Underlay) -> plan::Underlay {
    plan::Underlay {
        name: chosen.name,
        index: chosen.index,
        mtu: chosen.mtu,
        addresses: Addresses { v4: chosen.local_v4, v6: chosen.local_v6 },
        on_link: HashMap::new(),
    }
}
