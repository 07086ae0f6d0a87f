// SPDX-License-Identifier: Apache-2.0
//! The beginning of a session: a lease, and the kernel as the network wants it.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use overlay::Addresses;
use overlay::lease::Lease;
use overlay::plan::{self, Network};
use store::Snapshot;

use super::prepare::{Prepared, leases};
use super::{End, Session, chain};
use crate::board::Part;
use crate::leases::{AcquireError, Held, NodeState, Seen, TIME_TO_LIVE};
use crate::path::Command;
use crate::run::{BEGINNING, Worker};
use crate::underlay::Underlay;

/// Peers by name: since when, and with which lease.
type Peers = BTreeMap<String, (u64, Lease)>;

impl Worker {
    /// Begins a session: the node has a lease, and the kernel is what the network wants.
    pub async fn begin(&mut self) -> Result<Session, End> {
        let snapshot = self.snapshot_with_configuration().await?;
        let revision = snapshot.revision;
        let waits = |end: End| end.until_news(revision);
        self.own = self.leases.own(&snapshot).map_err(|error| waits(error.into()))?;
        let judged = self.choose_configuration(&snapshot).map_err(waits)?;
        let prepared = self.prepare(&snapshot, judged).await.map_err(waits)?;
        let Underlay { name, local_v4, local_v6, mtu, .. } = &prepared.judged.chosen;
        tracing::info!(interface = %name, ?local_v4, ?local_v6, mtu, "the way to other nodes");
        self.interface = Some(prepared.judged.chosen.index);
        self.board.solved(Part::Underlay);
        let mut follow = self.leases.follow(revision);
        let held = follow.listen_during(self.lease(snapshot, &prepared)).await.map_err(waits)?;
        let Prepared { judged, seen, .. } = prepared;
        let mut session = Session {
            remarks: self.remarks(&judged),
            conf: judged.conf,
            conf_text: judged.text,
            stored: judged.stored,
            unfit: judged.unfit,
            underlay: planned(&judged.chosen),
            follow,
            bad: BTreeMap::new(),
            renew_at: self.renewal(&held),
            held,
            pod_mtu: None,
            has_begun: false,
        };
        session.remarks.extend(self.after_start(&session).await.err());
        self.program_all(&mut session, seen).await?;
        // Packets do not wait for the disk.
        self.hold(&session.held);
        self.set_rules(&session);
        session.has_begun = true;
        self.in_force = Some(session.conf_text.clone());
        let others = BEGINNING.into_iter().filter(|part| *part != Part::Config);
        others.for_each(|part| self.board.solved(part));
        self.tell_configuration(&session);
        self.tell_plugins(&session);
        self.tell_cluster().await;
        Ok(session)
    }

    /// The lease that is held, with other attributes perhaps; else the one of the last run; else a
    /// free one.
    async fn lease(&mut self, snapshot: Snapshot, prepared: &Prepared) -> Result<Held, End> {
        let want = self.want(prepared);
        let remembered = self.held.clone().or_else(|| self.remembered(&snapshot));
        let kept = match &remembered {
            Some(held) => self.leases.keep_with(held, &want).await?,
            None => None,
        };
        let held = match kept {
            Some(held) => {
                tracing::info!(lease = %held.name, "lease kept");
                held
            }
            None => {
                let held = self.leases.acquire(snapshot, &want).await?;
                tracing::info!(lease = %held.name, "lease taken");
                held
            }
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
        let start = Instant::now();
        session.bad = bad(&seen);
        let own = session.held.name.as_str();
        let peers: Peers = leases(&seen)
            .filter(|(name, ..)| *name != own)
            .map(|(name, since, lease)| (name.to_owned(), (since, lease.clone())))
            .collect();
        let shown = peers.iter().map(|(name, (_, lease))| session.shown_peer(name, lease));
        self.board.set_peers(shown.collect());
        self.begin_multicast(
            session,
            peers.iter().map(|(name, (_, lease))| (name.as_str(), lease)),
        );
        let (conf, lease) = (session.conf.clone(), session.held.lease.clone());
        let network = Network::new(conf, lease, session.underlay.clone(), peers);
        let network = network.map_err(|error| {
            End::wait(Part::Config, error.to_string(), Some(session.follow.revision()))
        })?;
        let outcome = self.kernel(|reconciler| reconciler.set_network(network)).await?;
        self.board.compared(start.elapsed(), outcome.changes.len());
        self.post(session, &outcome, false).await;
        if !session.has_begun {
            // Paths that are watched since the last session may be others, though they lead to the same addresses.
            self.check_path(Command::CheckAll);
        }
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

pub(super) fn planned(chosen: &Underlay) -> plan::Underlay {
    plan::Underlay {
        name: chosen.name,
        index: chosen.index,
        mtu: chosen.mtu,
        addresses: Addresses { v4: chosen.local_v4, v6: chosen.local_v6 },
        on_link: HashMap::new(),
    }
}
