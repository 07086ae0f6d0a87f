// SPDX-License-Identifier: Apache-2.0
//! The dataplane of nf_tables: compares the node's rules after changes by other programs and at
//! intervals.

use std::time::{Duration, Instant};

use kernel::Received;
use kernel::nft::Events;
use kernel::poll::Waker;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{Outcome, Rules, RulesConf};
use crate::dataplane::thread::{Dataplane, Plane, StartError};

/// Delay between the first change by another program and the repair. Programs often write rules one
/// by one.
const DEBOUNCE: Duration = Duration::from_millis(20);

/// Minimum time between two comparisons, in case another program keeps undoing the repairs.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Delay before a failed comparison is retried. It doubles up to the maximum.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(30);

/// The dataplane of nf_tables.
pub type NftDataplane = Dataplane<NftPlane>;

/// Receives the outcomes of repairs. Called on the dataplane's thread.
type Sink = Box<dyn Fn(Outcome) + Send + Sync>;

/// Starts the dataplane for the agent with this owner tag. It compares everything at least once in
/// `compare_every`.
pub fn start_with(
    owner: &str,
    compare_every: Duration,
    sink: impl Fn(Outcome) + Clone + Send + Sync + 'static,
) -> Result<NftDataplane, StartError> {
    let owner = owner.to_owned();
    Dataplane::start(move || {
        let last = Instant::now();
        Ok(NftPlane {
            events: Some(Events::listen()?),
            report: Box::new(sink.clone()),
            state: MaintainedRules {
                rules: Rules::open(&owner)?,
                every: compare_every,
                last,
                due: last + compare_every,
                retry: None,
            },
        })
    })
}

/// [`start_with`] a channel for the outcomes.
pub fn start(
    owner: &str,
    compare_every: Duration,
) -> Result<(NftDataplane, UnboundedReceiver<Outcome>), StartError> {
    let (sender, outcomes) = unbounded_channel();
    let sink = move |outcome| drop(sender.send(outcome));
    Ok((start_with(owner, compare_every, sink)?, outcomes))
}

/// The rules with their events.
pub struct NftPlane {
    state: MaintainedRules,
    /// `None` after events were lost. Then only the periodic comparisons repair.
    events: Option<Events>,
    report: Sink,
}

impl std::fmt::Debug for NftPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NftPlane").finish_non_exhaustive()
    }
}

/// The rules with the time of the next comparison.
#[derive(Debug)]
pub struct MaintainedRules {
    rules: Rules,
    every: Duration,
    last: Instant,
    due: Instant,
    /// Delay of the next attempt after a failure; `None` if the last comparison succeeded.
    retry: Option<Duration>,
}

impl MaintainedRules {
    /// Sets the desired rules and applies them. Then removes flannel's rules, so that packets match
    /// the agent's or flannel's rules at any time. Returns both outcomes.
    pub fn set(&mut self, conf: &RulesConf) -> (Outcome, Outcome) {
        let outcome = self.rules.set(conf);
        self.compared(&outcome);
        (outcome, self.rules.remove_flannel())
    }

    /// Compares soon, because something without nf_tables events may have changed.
    pub fn compare_soon(&mut self) {
        self.due = self.due.min((Instant::now() + DEBOUNCE).max(self.last + MIN_INTERVAL));
    }

    /// Schedules the next comparison. A failure is retried early, because not everything that ends
    /// a failure causes an event.
    fn compared(&mut self, outcome: &Outcome) {
        self.last = Instant::now();
        self.retry = match (outcome.problems.is_empty(), self.retry) {
            (true, _) => None,
            (false, None) => Some(FIRST_RETRY),
            (false, Some(retry)) => Some((retry * 2).min(MAX_RETRY)),
        };
        self.due = self.last + self.retry.map_or(self.every, |retry| retry.min(self.every));
    }

    /// Repairs if a comparison is due. Returns the outcome if something was changed or failed, or
    /// if nothing fails any more.
    fn repair_if_due(&mut self) -> Option<Outcome> {
        if self.due > Instant::now() {
            return None;
        }
        let has_failed = self.retry.is_some();
        let outcome = self.rules.compare_with_flannel();
        self.compared(&outcome);
        (has_failed || outcome != Outcome::default()).then_some(outcome)
    }
}

impl Plane for NftPlane {
    const NAME: &'static str = "nft";
    type State = MaintainedRules;

    fn state(&mut self) -> &mut MaintainedRules {
        &mut self.state
    }

    fn after_commands(&mut self) {}

    fn repair_if_due(&mut self) {
        if self.has_changed() {
            self.state.compare_soon();
        }
        if let Some(outcome) = self.state.repair_if_due() {
            (self.report)(outcome);
        }
    }

    fn wait(&mut self, waker: &Waker) {
        let deadline = Some(self.state.due);
        let waited = match &self.events {
            Some(events) => waker.wait(events, deadline),
            None => waker.wait(waker, deadline),
        };
        if let Err(error) = waited {
            tracing::warn!(%error, "nf_tables events unavailable, polling only");
            self.events = None;
        }
    }
}

impl NftPlane {
    /// Receives all pending events. Returns whether a desired rule may have changed.
    fn has_changed(&mut self) -> bool {
        let Some(events) = &mut self.events else { return false };
        let mut has_changed = false;
        loop {
            let rules = &self.state.rules;
            let received =
                events.receive(Instant::now(), |event| has_changed |= rules.is_relevant(&event));
            match received {
                Ok(Received::Events) => {}
                Ok(Received::Overrun) => has_changed = true,
                Ok(Received::Deadline) => return has_changed,
                Err(error) => {
                    tracing::warn!(%error, "nf_tables events unavailable, polling only");
                    self.events = None;
                    return true;
                }
            }
        }
    }
}
