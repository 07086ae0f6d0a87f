// SPDX-License-Identifier: Apache-2.0
//! Requests of the commands `ipam release` and `ipam check`, which need the state of the host.

use std::net::IpAddr;
use std::sync::Arc;

use ipam::check::Repair;
use ipam::node::{Event, JournalOp, OpId, Reply, Ticket};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::check::{self, Check, Orders};
use super::core::Effect;
use super::journal::Journal;
use super::objects::ObjectStore;
use super::observe::{self, Observed};
use super::release::{self, Plan};
use super::{Call, Finished, Run, now};

/// An address that is to be released.
#[derive(Debug)]
pub(super) struct ToRelease {
    pub address: IpAddr,
    /// Also if its pod exists.
    pub force: bool,
    pub reply: oneshot::Sender<Result<Reply, String>>,
}

impl Run {
    /// Looks whether this node uses an address that is to be released.
    pub(super) fn look_for_users(&mut self, wanted: ToRelease) {
        let namespaces = observe::namespaces(self.core.node());
        self.work.spawn(async move {
            let observed = spawn_blocking(move || observe::observe(namespaces)).await;
            // A panic ends the task, and the controller is restarted.
            Finished::Users(wanted, observed.expect("observing the host does not panic"))
        });
    }

    /// Releases the address that a command names, or says why not.
    pub(super) fn release(
        &mut self,
        wanted: ToRelease,
        observed: kernel::Result<Observed>,
    ) -> Vec<Effect> {
        let ToRelease { address, force, reply } = wanted;
        let plan = observed.map_err(|error| format!("read the routes of this node: {error}"));
        let plan = plan.and_then(|observed| release::plan(&self.core, &observed, address, force));
        // The requester may have given up, here and below.
        match plan {
            Ok(Plan::Attachment { handle, interface }) => {
                let (sender, released) = oneshot::channel();
                self.work.spawn(async move {
                    if let Ok(released) = released.await {
                        let _ = reply.send(Ok(released));
                    }
                    Finished::Answered
                });
                self.call(Call::Release { handle, interface: Some(interface) }, sender)
            }
            Ok(Plan::Collect(collected)) => {
                let _ = reply.send(Ok(Reply::Released(vec![address])));
                self.core.event(now(), Event::Collect(vec![collected]))
            }
            Err(reason) => {
                let _ = reply.send(Err(reason));
                Vec::new()
            }
        }
    }

    /// Starts a look of a check.
    pub(super) fn look(&mut self, objects: &Arc<dyn ObjectStore>, journal: &Journal, check: Check) {
        let (objects, journal) = (Arc::clone(objects), journal.clone());
        let (namespaces, is_first) = (observe::namespaces(self.core.node()), check.is_first_look());
        self.work.spawn(async move {
            let look = check::look(objects, namespaces, journal, is_first).await;
            Finished::Looked(check, look)
        });
    }

    /// Carries out repairs of a check.
    pub(super) fn repair(&mut self, repairs: Vec<Repair>) -> Vec<Effect> {
        let Orders { collect, save, assign } = check::orders(&self.core, repairs, now());
        let mut effects = Vec::new();
        if !save.is_empty() {
            // No operation of the state machine has this number.
            let op = JournalOp { id: OpId(0), write: save, remove: Vec::new() };
            effects.push(Effect::Journal(op));
        }
        if !collect.is_empty() {
            effects.extend(self.core.event(now(), Event::Collect(collect)));
        }
        for request in assign {
            self.last_ticket += 1;
            let ticket = Ticket(self.last_ticket);
            effects.extend(self.core.event(now(), Event::Assign { ticket, request }));
        }
        effects
    }
}
