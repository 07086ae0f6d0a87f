// SPDX-License-Identifier: Apache-2.0
//! One family's lease of an attachment: the machine that leads it, the wire it speaks on, and what of
//! it is on the interface.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::super::exchange::Dialog;
use super::super::lease::{Lease, Terms};
use super::super::state_machine::{Event, Machine};
use super::interface::{self, Spot};
use super::log;
use super::transport::{Failure, Wire};

/// What became of a lease in one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The lease is another one, or has new times, or is no more.
    pub changed: bool,
    /// The container is not there any more.
    pub gone: bool,
}

impl Outcome {
    /// Both.
    pub fn and(self, other: Outcome) -> Outcome {
        Outcome { changed: self.changed || other.changed, gone: self.gone || other.gone }
    }
}

/// What a side needs to know of its attachment.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    /// For the log.
    pub whose: &'a str,
    /// Where it is.
    pub spot: &'a Spot,
    /// Metric of its routes.
    pub priority: u32,
    /// The ADD is over: from now on changes of the lease are for us to carry out.
    pub is_settled: bool,
}

/// A side, whatever its family.
pub trait AnySide {
    /// What the protocol is called.
    fn protocol(&self) -> &'static str;
    /// The lease, where there is one.
    fn lease(&self) -> Option<&Lease>;
    /// Whether all is said that was to be said.
    fn is_resting(&self) -> bool;
    /// When there is something to do.
    fn deadline(&self) -> Option<Instant>;
    /// What to wait for.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;
    /// The plugin has put the lease on the interface.
    fn settle(&mut self);
    /// Does what is due.
    fn wake(&mut self, owner: Owner, now: Instant) -> Outcome;
    /// Takes what has come.
    fn hear(&mut self, owner: Owner, now: Instant) -> Outcome;
    /// Gives the lease back, and takes the address off the interface: it may be another's soon.
    fn release(&mut self, owner: Owner, now: Instant) -> Outcome;
}

/// One family.
#[derive(Debug)]
pub struct Side<D, W> {
    machine: Machine<D>,
    wire: W,
    applied: Option<Terms>,
}

impl<D: Dialog, W: Wire + Default> Side<D, W> {
    /// A side whose machine has just been started, with what it said, and what is on the interface.
    pub fn new(
        (machine, events): (Machine<D>, Vec<Event>),
        applied: Option<Terms>,
        owner: Owner,
    ) -> (Self, Outcome) {
        let mut side = Side { machine, wire: W::default(), applied };
        let outcome = side.carry_out(events, owner);
        (side, outcome)
    }

    fn carry_out(&mut self, events: Vec<Event>, owner: Owner) -> Outcome {
        let mut outcome = Outcome::default();
        for event in events {
            match event {
                Event::Send(phase, message) => {
                    let terms = self.machine.lease().map(|lease| &lease.terms);
                    match self.wire.send(owner.spot, phase, &message, terms) {
                        Ok(()) => {}
                        Err(Failure::Gone) => outcome.gone = true,
                        Err(Failure::Problem(problem)) => log::about(owner.whose, problem),
                    }
                }
                Event::Held => {
                    outcome.changed = true;
                    self.put_on_interface(owner);
                }
                Event::Lost => {
                    outcome.changed = true;
                    log::about(owner.whose, "the lease is ours no longer; looking for another");
                    let before = self.applied.take();
                    self.apply(owner, before.as_ref(), None);
                }
            }
        }
        if !self.machine.is_asking() {
            self.wire.close();
        }
        outcome
    }

    fn put_on_interface(&mut self, owner: Owner) {
        let Some(terms) = self.machine.lease().map(|lease| lease.terms.clone()) else { return };
        let times = terms.span.map_or("for ever".to_owned(), |span| {
            format!("for {} s, to be renewed after {} s", span.valid, span.renew)
        });
        log::about(owner.whose, format!("{} is ours {times}", terms.address));
        if !owner.is_settled || self.applied.as_ref().is_some_and(|old| old.looks_like(&terms)) {
            return;
        }
        let before = self.applied.replace(terms.clone());
        self.apply(owner, before.as_ref(), Some(&terms));
    }

    fn apply(&self, owner: Owner, before: Option<&Terms>, after: Option<&Terms>) {
        for problem in interface::change(owner.spot, before, after, owner.priority) {
            log::about(owner.whose, problem);
        }
    }
}

impl<D: Dialog, W: Wire + Default> AnySide for Side<D, W> {
    fn protocol(&self) -> &'static str {
        D::NAME
    }

    fn lease(&self) -> Option<&Lease> {
        self.machine.lease()
    }

    fn is_resting(&self) -> bool {
        self.machine.is_resting()
    }

    fn deadline(&self) -> Option<Instant> {
        self.machine.deadline()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.wire.fds()
    }

    fn settle(&mut self) {
        self.applied = self.lease().map(|lease| lease.terms.clone());
    }

    fn wake(&mut self, owner: Owner, now: Instant) -> Outcome {
        let events = self.machine.wake(now);
        self.carry_out(events, owner)
    }

    fn hear(&mut self, owner: Owner, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        for (message, from) in self.wire.receive(owner.spot) {
            let mut events = self.machine.receive(&message, now);
            if let (Some(from), [Event::Held, ..]) = (from, events.as_slice()) {
                self.machine.heard_from(from);
            }
            outcome = outcome.and(self.carry_out(std::mem::take(&mut events), owner));
        }
        outcome
    }

    fn release(&mut self, owner: Owner, now: Instant) -> Outcome {
        let held = self.lease().map(|lease| lease.terms.clone());
        let events = self.machine.release(now);
        let outcome = self.carry_out(events, owner);
        if !outcome.gone {
            let before = self.applied.take().or(held);
            self.apply(owner, before.as_ref(), None);
        }
        outcome
    }
}
