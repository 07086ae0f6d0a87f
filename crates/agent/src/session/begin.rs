// SPDX-License-Identifier: Apache-2.0
//! The beginning of a session: a lease, and the kernel as the network wants it.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use overlay::Addresses;
use overlay::lease::Lease;
use overlay::plan::{self, Network};
use text::ErrorChain;
use tokio::time::timeout;

use super::prepare::{Prepared, leases};
use super::{End, Next, Session};
use crate::lease::{
    self, AcquireError, HeldLease, NodeRecordState, PeerWatch, Snapshot, StoreItem,
};
use crate::path_check::Command;
use crate::run::Worker;
use crate::status::ConditionKind;
use crate::underlay::Underlay;

/// For the store to answer in, where the network as it was last seen would do.
const HASTE: Duration = Duration::from_secs(1);

/// Peers by name: since when, and with which lease.
type Peers = BTreeMap<String, (u64, Lease)>;

impl Worker {
    /// Begins a session: the node has a lease, and the kernel is what the network wants. Where the store does not
    /// answer, both are as they were last seen: packets need no store.
    pub async fn begin(&mut self) -> Result<Session, End> {
        let patience = if self.may_remember() { HASTE } else { Duration::MAX };
        let Ok(listed) = timeout(patience, self.snapshot_with_configuration()).await else {
            return match self.last_seen() {
                Some(last) => {
                    let kind = self.settings.store.name();
                    let why = format!("{kind} has not answered within {} s", HASTE.as_secs());
                    self.begin_from_memory(last, why).await
                }
                None => {
                    let snapshot = self.snapshot_with_configuration().await?;
                    self.begin_with(snapshot).await
                }
            };
        };
        let begun = match listed {
            Ok(snapshot) => self.begin_with(snapshot).await,
            Err(end) => Err(end),
        };
        let Err(end @ End { next: Next::Away, .. }) = begun else { return begun };
        match self.last_seen() {
            Some(last) => self.begin_from_memory(last, end.why).await,
            None => {
                if self.in_force.is_some() && self.held.is_none() {
                    let why = "the lease was deleted or taken, and the store has to say which one is free";
                    self.hub.set_problem(ConditionKind::Lease, why);
                }
                Err(end)
            }
        }
    }

    async fn begin_with(&mut self, snapshot: Snapshot) -> Result<Session, End> {
        let revision = snapshot.revision;
        let waits = |end: End| end.until_news(revision);
        let prepared = self.look(&snapshot).await.map_err(waits)?;
        let mut follow = PeerWatch::new(&*self.leases, revision);
        let held = follow.poll_during(self.lease(&prepared)).await.map_err(waits)?;
        let mut session = self.enter(prepared, held, follow, false).await?;
        session.tell_at = self.tell_cluster().await;
        Ok(session)
    }

    /// The lease stays; what the node would say of itself now is told when the store is back.
    async fn begin_from_memory(&mut self, last: Snapshot, why: String) -> Result<Session, End> {
        tracing::warn!(%why, "the network stays as it was last seen");
        self.hub.set_problem(ConditionKind::Store, why.clone());
        let prepared = self.look(&last).await?;
        let away = End { part: ConditionKind::Store, why, next: Next::Away };
        let held = self.held.clone().ok_or(away)?;
        let lease = Lease { attributes: prepared.attributes.clone(), ..held.lease };
        let follow = PeerWatch::after_list(&*self.leases, last.revision);
        self.enter(prepared, HeldLease { lease, ..held }, follow, true).await
    }

    /// What follows from the store and from the interfaces.
    async fn look(&mut self, snapshot: &Snapshot) -> Result<Prepared, End> {
        self.own = self.leases.own_node()?;
        let judged = self.choose_configuration(snapshot)?;
        let prepared = self.prepare(snapshot, judged).await?;
        let Underlay { name, index, local_v4, local_v6, mtu, .. } = &prepared.judged.chosen;
        tracing::info!(interface = %name, ?local_v4, ?local_v6, mtu, "the way to other nodes");
        self.interface = Some(*index);
        self.hub.clear_problem(ConditionKind::Underlay);
        Ok(prepared)
    }

    /// Makes the node what it should be.
    async fn enter(
        &mut self,
        Prepared { judged, seen, .. }: Prepared,
        held: HeldLease,
        follow: PeerWatch,
        is_from_memory: bool,
    ) -> Result<Session, End> {
        let renew_at = self.renewal(&held).filter(|_| !is_from_memory);
        let mut session = Session {
            remarks: self.remarks(&judged),
            conf: judged.conf,
            conf_text: judged.text,
            stored: judged.stored,
            unfit: judged.unfit,
            underlay: planned(&judged.chosen),
            follow,
            bad: BTreeMap::new(),
            renew_at,
            age_at: None,
            tell_at: None,
            is_from_memory,
            held,
            pod_mtu: None,
            has_begun: false,
        };
        session.remarks.extend(self.after_start(&session).await.err());
        self.note_backend(&session);
        self.program_all(&mut session, seen).await?;
        // Packets do not wait for the disk. What the store does not have yet is no lease that is held.
        if !is_from_memory {
            self.hold(&session.held);
        }
        self.set_rules(&session);
        session.has_begun = true;
        self.in_force = Some(session.conf_text.clone());
        [ConditionKind::Underlay, ConditionKind::Lease]
            .into_iter()
            .for_each(|part| self.hub.clear_problem(part));
        self.tell_configuration(&session);
        self.expect_bridge(&session);
        self.tell_plugins(&session);
        Ok(session)
    }

    /// The lease that is held, with other attributes perhaps; else the one of the last run; else a
    /// free one.
    async fn lease(&mut self, prepared: &Prepared) -> Result<HeldLease, End> {
        let want = self.want(prepared);
        let mut kept = match &self.held {
            Some(held) => self.leases.renew_with(held, &want).await?,
            None => None,
        };
        if let (None, Some(held)) = (&kept, self.remembered()) {
            kept = self.leases.renew_with(&held, &want).await?;
        }
        let held = match kept {
            Some(held) => {
                tracing::info!(lease = %held.name, "lease kept");
                held
            }
            None => {
                let held = self.leases.acquire(&want).await?;
                tracing::info!(lease = %held.name, "lease taken");
                held
            }
        };
        self.held = Some(held.clone());
        self.lease_is_whole(&held);
        self.hub.clear_problem(ConditionKind::Lease);
        Ok(held)
    }

    /// Plans for all peers and makes the kernel what follows.
    pub(super) async fn program_all(
        &mut self,
        session: &mut Session,
        seen: Vec<StoreItem>,
    ) -> Result<(), End> {
        let start = Instant::now();
        session.bad = bad(&seen);
        let own = session.held.name.as_str();
        let peers: Peers = leases(&seen)
            .filter(|(name, ..)| *name != own)
            .map(|(name, since, lease)| (name.to_owned(), (since, lease.clone())))
            .collect();
        let shown = peers.iter().map(|(name, (_, lease))| session.shown_peer(name, lease));
        self.hub.set_peers(shown.collect());
        self.multicast.set_network(
            session.held.lease.subnets.iter(),
            peers.iter().map(|(name, (_, lease))| (name.as_str(), lease)),
        );
        let (conf, lease) = (session.conf.clone(), session.held.lease.clone());
        let network = Network::new(conf, lease, session.underlay.clone(), peers);
        let mut network = network.map_err(|error| {
            End::wait(ConditionKind::Config, error.to_string(), Some(session.follow.revision()))
        })?;
        self.keep_previous_backend(session, &mut network);
        let outcome = self.kernel(|reconciler| reconciler.set_network(network)).await?;
        self.hub.compared(start.elapsed(), outcome.changes.len());
        self.post(session, &outcome, false).await;
        if !session.has_begun {
            // Paths that are watched since the last session may be others, though they lead to the same addresses.
            self.check_path(Command::CheckAll);
        }
        self.look_at_ways(None).await
    }
}

impl From<lease::Error> for End {
    fn from(error: lease::Error) -> Self {
        let next = if error.can_retry() { Next::Away } else { Next::News(None) };
        Self { part: ConditionKind::Store, why: ErrorChain(&error).to_string(), next }
    }
}

impl From<AcquireError> for End {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Store(cause) => Self::from(cause),
            other => Self::wait(ConditionKind::Lease, other.to_string(), None),
        }
    }
}

fn bad(seen: &[StoreItem]) -> BTreeMap<String, String> {
    let reason = |one: &StoreItem| match one {
        StoreItem::Node(node) => match &node.state {
            NodeRecordState::Invalid(why) => Some((node.name.clone(), why.clone())),
            _ => None,
        },
        StoreItem::Config(_) | StoreItem::ConfigRejected(_) => None,
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
