// SPDX-License-Identifier: Apache-2.0
//! The dataplane of devices and routes: a reconciler with its events and its schedule.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kernel::Received;
use kernel::events::{Events, Topic};
use kernel::poll::Waker;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::events::EventImpact;
use super::outcome::Outcome;
use super::reconciler::{Options, Reconciler};
use super::schedule::Schedule;
use crate::dataplane::thread::{Dataplane, Plane, StartError};

/// A report that no command asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A repair was made or failed, or the failures and conflicts have changed.
    Repaired(Outcome),
    /// Earlier failures were retried. No other program has changed anything.
    Retried(Outcome),
    /// The whole kernel state was compared with the desired state, with this number of changes.
    Compared { took: Duration, changes: usize },
    /// The underlay interface has changed.
    UnderlayChanged,
    /// A forwarding sysctl has changed.
    ForwardingChanged,
    /// Events are no longer received: only the periodic comparisons repair.
    EventsLost(String),
    /// The thread has ended and was started again. Events were lost meanwhile, and are received now.
    Restarted,
}

/// The dataplane of devices and routes.
pub type RoutesDataplane = Dataplane<RoutesPlane>;

/// Receives reports. Called on the dataplane's thread.
type Sink = Box<dyn Fn(Report) + Send + Sync>;

/// Starts the dataplane. It compares everything at least once in `compare_every`.
pub fn start_with(
    options: Options,
    compare_every: Duration,
    sink: impl Fn(Report) + Clone + Send + Sync + 'static,
) -> Result<RoutesDataplane, StartError> {
    let was_opened = AtomicBool::new(false);
    Dataplane::start(move || {
        let events = Events::listen(&Topic::ALL)?;
        let reconciler = Reconciler::open(options.clone())?;
        if was_opened.swap(true, Ordering::Relaxed) {
            sink(Report::Restarted);
        }
        Ok(RoutesPlane {
            reconciler,
            events: Some(events),
            report: Box::new(sink.clone()),
            schedule: Schedule::new(compare_every, Instant::now()),
            wants_on_link: false,
        })
    })
}

/// [`start_with`] a channel for the reports.
pub fn start(
    options: Options,
    compare_every: Duration,
) -> Result<(RoutesDataplane, UnboundedReceiver<Report>), StartError> {
    let (sender, reports) = unbounded_channel();
    // The receiver is dropped by users that need no reports.
    let sink = move |report| drop(sender.send(report));
    Ok((start_with(options, compare_every, sink)?, reports))
}

/// A reconciler with its events and its schedule.
pub struct RoutesPlane {
    reconciler: Reconciler,
    /// `None` after events were lost.
    events: Option<Events>,
    report: Sink,
    schedule: Schedule,
    /// The next comparison has to look up which peers are on a link.
    wants_on_link: bool,
}

impl std::fmt::Debug for RoutesPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RoutesPlane").finish_non_exhaustive()
    }
}

impl Plane for RoutesPlane {
    const NAME: &'static str = "routes";
    type State = Reconciler;

    fn state(&mut self) -> &mut Reconciler {
        &mut self.reconciler
    }

    fn after_commands(&mut self) {
        self.schedule.reported(self.reconciler.unresolved());
        if !self.reconciler.is_converged() {
            self.schedule.failed(Instant::now());
        }
    }

    fn repair_if_due(&mut self) {
        let impact = self.receive_events();
        if impact.underlay {
            (self.report)(Report::UnderlayChanged);
        }
        if impact.forwarding {
            (self.report)(Report::ForwardingChanged);
        }
        self.wants_on_link |= impact.on_link;
        let now = Instant::now();
        if impact.compare || impact.on_link {
            self.schedule.changed(now);
        }
        if self.schedule.due() <= now {
            self.repair(now);
        }
    }

    fn wait(&mut self, waker: &Waker) {
        let deadline = Some(self.schedule.due());
        let waited = match &self.events {
            Some(events) => waker.wait(events, deadline),
            None => waker.wait(waker, deadline),
        };
        if let Err(error) = waited {
            (self.report)(Report::EventsLost(error.to_string()));
            self.events = None;
        }
    }
}

impl RoutesPlane {
    /// Receives all pending events.
    fn receive_events(&mut self) -> EventImpact {
        let mut impact = EventImpact::default();
        let Some(events) = &mut self.events else { return impact };
        loop {
            let reconciler = &self.reconciler;
            let received = events.receive(Instant::now(), |event| {
                impact = impact.and(reconciler.impact(&event));
            });
            match received {
                Ok(Received::Events) => {}
                Ok(Received::Deadline) => return impact,
                Ok(Received::Overrun) => return EventImpact::ALL,
                Err(error) => {
                    (self.report)(Report::EventsLost(error.to_string()));
                    self.events = None;
                    return impact;
                }
            }
        }
    }

    fn repair(&mut self, now: Instant) {
        let is_periodic = !self.schedule.has_changes();
        let report = match is_periodic && !self.reconciler.is_converged() {
            true => Report::Retried,
            false => Report::Repaired,
        };
        let outcome = match std::mem::take(&mut self.wants_on_link) || is_periodic {
            true => self.reconciler.compare(),
            false => self.reconciler.repair(),
        };
        if self.reconciler.any_network().is_some() {
            let (took, changes) = (now.elapsed(), outcome.changes.len());
            (self.report)(Report::Compared { took, changes });
        }
        if self.schedule.compared(Instant::now(), &outcome) {
            (self.report)(report(outcome));
        }
    }
}
