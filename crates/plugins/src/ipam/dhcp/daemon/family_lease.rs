// SPDX-License-Identifier: Apache-2.0
//! The lease of one address family of an attachment: its state machine, its transport, and the terms that are applied to
//! the interface.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::super::exchange::DhcpClient;
use super::super::lease::{Lease, Terms};
use super::super::state_machine::{Action, StateMachine};
use super::interface::{self, ContainerInterface};
use super::log;
use super::transport::{SendError, Transport};

/// Effect of one step on a lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// The lease is new, has new terms, or is lost.
    pub changed: bool,
    /// The container is gone.
    pub gone: bool,
}

impl Outcome {
    /// Combines two outcomes.
    pub(super) fn and(self, other: Outcome) -> Outcome {
        Outcome { changed: self.changed || other.changed, gone: self.gone || other.gone }
    }
}

/// Values of the attachment that a step needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttachmentContext<'a> {
    /// Name for the log.
    pub name: &'a str,
    pub interface: &'a ContainerInterface,
    /// Metric of the routes.
    pub priority: u32,
    /// Whether the ADD is complete. From then on the daemon applies changes of the lease to the interface.
    pub is_added: bool,
}

/// A lease of either family.
pub(super) trait AnyFamilyLease {
    /// Returns the name of the protocol.
    fn protocol(&self) -> &'static str;
    /// Returns the lease, if there is one.
    fn lease(&self) -> Option<&Lease>;
    /// Returns whether no more messages will be sent.
    fn is_idle(&self) -> bool;
    /// Returns the next deadline.
    fn deadline(&self) -> Option<Instant>;
    /// Returns the descriptors to wait for.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;
    /// Records that the plugin has applied the lease to the interface.
    fn mark_added(&mut self);
    /// Handles a deadline.
    fn wake(&mut self, context: AttachmentContext, now: Instant) -> Outcome;
    /// Handles received messages.
    fn receive(&mut self, context: AttachmentContext, now: Instant) -> Outcome;
    /// Releases the lease and removes the address from the interface, because another client may get it soon.
    fn release(&mut self, context: AttachmentContext, now: Instant) -> Outcome;
}

/// The lease of one family.
#[derive(Debug)]
pub(super) struct FamilyLease<D, W> {
    machine: StateMachine<D>,
    transport: W,
    applied: Option<Terms>,
}

impl<D: DhcpClient, W: Transport + Default> FamilyLease<D, W> {
    /// Creates a lease from a started state machine, its first actions, and the terms on the interface.
    pub(super) fn new(
        (machine, events): (StateMachine<D>, Vec<Action>),
        applied: Option<Terms>,
        context: AttachmentContext,
    ) -> (Self, Outcome) {
        let mut family = FamilyLease { machine, transport: W::default(), applied };
        let outcome = family.perform(events, context);
        (family, outcome)
    }

    fn perform(&mut self, events: Vec<Action>, context: AttachmentContext) -> Outcome {
        let mut outcome = Outcome::default();
        for event in events {
            match event {
                Action::Send(phase, message) => {
                    let terms = self.machine.lease().map(|lease| &lease.terms);
                    match self.transport.send(context.interface, phase, &message, terms) {
                        Ok(()) => {}
                        Err(SendError::Gone) => outcome.gone = true,
                        Err(SendError::Other(problem)) => log::attachment(context.name, problem),
                    }
                }
                Action::Acquired => {
                    outcome.changed = true;
                    self.apply_lease(context);
                }
                Action::Lost => {
                    outcome.changed = true;
                    log::attachment(context.name, "lease lost, requesting another");
                    let before = self.applied.take();
                    self.apply(context, before.as_ref(), None);
                }
            }
        }
        if !self.machine.is_waiting() {
            self.transport.close();
        }
        outcome
    }

    fn apply_lease(&mut self, context: AttachmentContext) {
        let Some(terms) = self.machine.lease().map(|lease| lease.terms.clone()) else { return };
        let times = terms.lifetimes.map_or("without a time limit".to_owned(), |lifetimes| {
            format!("for {} s, renewal after {} s", lifetimes.valid, lifetimes.renew)
        });
        log::attachment(context.name, format!("lease acquired: {} {times}", terms.address));
        if !context.is_added
            || self.applied.as_ref().is_some_and(|old| old.has_same_interface_config(&terms))
        {
            return;
        }
        let before = self.applied.replace(terms.clone());
        self.apply(context, before.as_ref(), Some(&terms));
    }

    fn apply(&self, context: AttachmentContext, before: Option<&Terms>, after: Option<&Terms>) {
        for problem in interface::change(context.interface, before, after, context.priority) {
            log::attachment(context.name, problem);
        }
    }
}

impl<D: DhcpClient, W: Transport + Default> AnyFamilyLease for FamilyLease<D, W> {
    fn protocol(&self) -> &'static str {
        D::NAME
    }

    fn lease(&self) -> Option<&Lease> {
        self.machine.lease()
    }

    fn is_idle(&self) -> bool {
        self.machine.is_idle()
    }

    fn deadline(&self) -> Option<Instant> {
        self.machine.deadline()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.transport.fds()
    }

    fn mark_added(&mut self) {
        self.applied = self.lease().map(|lease| lease.terms.clone());
    }

    fn wake(&mut self, context: AttachmentContext, now: Instant) -> Outcome {
        let events = self.machine.wake(now);
        self.perform(events, context)
    }

    fn receive(&mut self, context: AttachmentContext, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        for (message, from) in self.transport.receive(context.interface) {
            let mut events = self.machine.receive(&message, now);
            if let (Some(from), [Action::Acquired, ..]) = (from, events.as_slice()) {
                self.machine.set_server_mac(from);
            }
            outcome = outcome.and(self.perform(std::mem::take(&mut events), context));
        }
        outcome
    }

    fn release(&mut self, context: AttachmentContext, now: Instant) -> Outcome {
        let held = self.lease().map(|lease| lease.terms.clone());
        let events = self.machine.release(now);
        let outcome = self.perform(events, context);
        if !outcome.gone {
            let before = self.applied.take().or(held);
            self.apply(context, before.as_ref(), None);
        }
        outcome
    }
}
