// SPDX-License-Identifier: Apache-2.0
//! What happens while a session lasts: peers come and go, others break things, time passes.

use std::convert::Infallible;
use std::time::Instant;

use text::ErrorChain;
use tokio::time::{interval, sleep_until};

use super::{End, RENEW_AGAIN, Session, begin};
use crate::dataplane::routes::{PeerUpdate, Report};
use crate::file_watcher;
use crate::lease::{NodeRecord, NodeRecordState, PeerEvents, Renewal, StoreItem};
use crate::path_check::Command;
use crate::run::Worker;
use crate::status::{BEAT_EVERY, ConditionKind};

impl Worker {
    /// Until something makes this another session.
    pub async fn follow(&mut self, session: &mut Session) -> Result<Infallible, End> {
        let mut beats = interval(BEAT_EVERY);
        loop {
            let (renewal, tell_at) = (session.renew_at, session.tell_at);
            let (write_at, age_at) = (self.view_is_due(), session.age_at);
            tokio::select! {
                news = session.follow.next() => match news {
                    Ok(news) => {
                        self.hub.clear_problem(ConditionKind::Store);
                        self.hear(session, news).await?;
                    }
                    // The watch goes on from where it was, after a pause of its own.
                    Err(error) => self.hub.set_problem(ConditionKind::Store, ErrorChain(&error).to_string()),
                },
                () = file_watcher::next_of(&mut self.config_file) => self.hear_configuration(session, &[]).await?,
                report = self.reports.recv() => self.take_report(session, report).await?,
                Some(verdict) = self.verdicts.recv() => self.take_verdict(session, verdict).await?,
                mended = self.rules.next() => self.post_rules(&mended, true),
                () = moment(renewal) => self.renew(session).await?,
                () = moment(tell_at) => session.tell_at = self.tell_cluster().await,
                () = moment(write_at) => self.write_view(),
                () = moment(age_at) => self.age_previous_backend(session).await?,
                _ = beats.tick() => self.hub.heartbeat(),
            }
        }
    }

    /// News from the store.
    async fn hear(&mut self, session: &mut Session, news: PeerEvents) -> Result<(), End> {
        if session.is_from_memory {
            self.memory.listed = self.leases.last_known();
            return Err(End::now(ConditionKind::Store, "the store answers again"));
        }
        let revision = session.follow.revision().0;
        self.hub.watched(revision, revision);
        match news {
            PeerEvents::All(all) => {
                self.hear_configuration(session, &all).await?;
                let own = all.iter().find_map(|one| session.own(one)).cloned();
                self.look_at_own(session, own).await?;
                self.program_all(session, all).await
            }
            PeerEvents::Changed(changes) => {
                let is_configuration = |one: &&StoreItem| {
                    matches!(one, StoreItem::Config(_) | StoreItem::ConfigRejected(_))
                };
                if let Some(last) = changes.iter().rfind(is_configuration) {
                    self.hear_configuration(session, std::slice::from_ref(last)).await?;
                } else if changes.iter().any(has_left) {
                    self.try_configuration_again(session).await?;
                }
                self.change(session, changes).await
            }
        }
    }

    async fn change(&mut self, session: &mut Session, changes: Vec<StoreItem>) -> Result<(), End> {
        let mut updates = Vec::new();
        for change in changes {
            if let Some(node) = session.own(&change).cloned() {
                self.look_at_own(session, Some(node)).await?;
            } else if let StoreItem::Node(node) = change {
                updates.push(self.update(session, node));
            }
        }
        if !updates.is_empty() {
            let names = names(&updates);
            let outcome = self.kernel(|reconciler| reconciler.set_peers(updates)).await?;
            self.post(session, &outcome, false).await;
            self.look_at_ways(Some(names.clone())).await?;
            names.into_iter().for_each(|name| self.check_path(Command::Heard(name)));
        }
        Ok(())
    }

    fn update(&self, session: &mut Session, node: NodeRecord) -> PeerUpdate {
        session.bad.remove(&node.name);
        match node.state {
            NodeRecordState::Active { since, lease } => {
                self.hub.set_peer(session.shown_peer(&node.name, &lease));
                self.multicast.set_peer(&node.name, &lease);
                return PeerUpdate::Set { name: node.name, since, lease: *lease };
            }
            NodeRecordState::Invalid(why) => drop(session.bad.insert(node.name.clone(), why)),
            NodeRecordState::Removed => {}
        }
        self.hub.remove_peer(&node.name);
        self.check_path(Command::Forget(node.name.clone()));
        self.multicast.remove_peer(&node.name);
        PeerUpdate::Remove { name: node.name }
    }

    /// The store's word on our own lease. What we wrote ourselves is no news.
    async fn look_at_own(
        &mut self,
        session: &mut Session,
        node: Option<NodeRecord>,
    ) -> Result<(), End> {
        match node {
            Some(NodeRecord { state: NodeRecordState::Active { lease, .. }, revision, .. })
                if *lease == session.held.lease =>
            {
                session.held.revision = session.held.revision.max(revision);
                self.hold(&session.held);
                Ok(())
            }
            // An older state, before we wrote.
            Some(node) if node.revision < session.held.revision => Ok(()),
            _ => self.renew(session).await,
        }
    }

    async fn renew(&mut self, session: &mut Session) -> Result<(), End> {
        match self.leases.renew(&mut session.held).await {
            Ok(Renewal::Done) => {
                tracing::info!(lease = session.held.name, "renewed");
                self.hub.clear_problem(ConditionKind::Store);
                self.lease_is_whole(&session.held);
                session.renew_at = self.renewal(&session.held);
                self.hold(&session.held);
                Ok(())
            }
            Ok(Renewal::Lost) => {
                self.held = None;
                let name = &session.held.name;
                Err(End::now(
                    ConditionKind::Lease,
                    format!("the lease {name} was deleted or taken"),
                ))
            }
            Err(error) => {
                self.hub.set_problem(ConditionKind::Store, ErrorChain(&error).to_string());
                session.renew_at = Some(Instant::now() + RENEW_AGAIN);
                Ok(())
            }
        }
    }

    /// What the kernel thread tells.
    async fn take_report(
        &mut self,
        session: &mut Session,
        report: Option<Report>,
    ) -> Result<(), End> {
        match report {
            None => Err(End::wait(ConditionKind::Kernel, "the kernel thread has ended", None)),
            Some(Report::TriedAgain(outcome)) => {
                self.post(session, &outcome, false).await;
                self.look_at_ways(None).await
            }
            Some(Report::Repaired(outcome)) => {
                self.post(session, &outcome, true).await;
                // A device that is new, or a way that is another, is worth a look.
                self.look_at_ways(None).await
            }
            Some(Report::Underlay) => {
                let found = self.underlay(&session.conf).map(|chosen| begin::planned(&chosen));
                let compared = found.and_then(|found| session.compare_underlay(&found));
                compared.inspect_err(|_| self.leases.reconnect())?;
                self.try_configuration_again(session).await
            }
            Some(Report::Rules) => {
                self.rules.nudge();
                self.settle_blackholes(session, true);
                Ok(())
            }
            Some(other @ (Report::Compared { .. } | Report::Deaf(_))) => {
                self.take_aside(other);
                Ok(())
            }
        }
    }
}

impl Session {
    /// The node, if it is this one.
    fn own<'a>(&self, seen: &'a StoreItem) -> Option<&'a NodeRecord> {
        match seen {
            StoreItem::Node(node) if node.name == self.held.name => Some(node),
            _ => None,
        }
    }

    fn compare_underlay(&self, found: &overlay::plan::Underlay) -> Result<(), End> {
        let before = &self.underlay;
        if found == before {
            return Ok(());
        }
        let shown = |underlay: &overlay::plan::Underlay| {
            let addresses: Vec<String> =
                underlay.addresses.iter().map(|address| address.to_string()).collect();
            format!("{} with {} and MTU {}", underlay.name, addresses.join(", "), underlay.mtu)
        };
        let text = format!("the way to other nodes is {}; it was {}", shown(found), shown(before));
        Err(End::now(ConditionKind::Underlay, text))
    }
}

/// Whether a subnet may be free now.
fn has_left(seen: &StoreItem) -> bool {
    matches!(seen, StoreItem::Node(NodeRecord { state: NodeRecordState::Removed, .. }))
}

/// Of those that are there.
fn names(updates: &[PeerUpdate]) -> Vec<String> {
    let name = |update: &PeerUpdate| match update {
        PeerUpdate::Set { name, .. } => Some(name.clone()),
        PeerUpdate::Remove { .. } | PeerUpdate::Narrow { .. } => None,
    };
    updates.iter().filter_map(name).collect()
}

/// Never, where there is none.
async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
