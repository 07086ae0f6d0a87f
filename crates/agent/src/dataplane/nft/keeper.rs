// SPDX-License-Identifier: Apache-2.0
//! Rules that are kept: compared when somebody has changed them, and at intervals.

use std::time::Duration;

use kernel::Received;
use kernel::nft::Events;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

use super::{Outcome, Rules, RulesConf};
use crate::async_fd::register;

/// After the first change of others until it is mended: whoever writes rules writes several.
const PAUSE: Duration = Duration::from_millis(20);

/// Between two comparisons at least: somebody may keep undoing them.
const DISTANCE: Duration = Duration::from_millis(100);

/// Until a comparison that failed is repeated, and, doubled each time, at most.
const RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Rules, and an ear for what others do to them. It acts in the network namespace of the thread that
/// opened it.
#[derive(Debug)]
pub struct Keeper {
    rules: Rules,
    /// None once nothing can be heard; then only the intervals remain.
    events: Option<AsyncFd<Events>>,
    every: Duration,
    due: Instant,
    /// When all was compared.
    last: Instant,
    /// Until the next try, if something failed the last time.
    retry: Option<Duration>,
}

impl Keeper {
    /// Opens sockets in the calling thread's namespace. All is compared at least once in `every`.
    pub fn open(mark: &str, every: Duration) -> kernel::Result<Self> {
        let events = register(Events::listen()?)?;
        let last = Instant::now();
        let (rules, due) = (Rules::open(mark)?, last + every);
        Ok(Self { rules, events: Some(events), every, due, last, retry: None })
    }

    /// The rules themselves.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Makes the rules what they should be from now on.
    pub fn set(&mut self, conf: &RulesConf) -> Outcome {
        let outcome = self.rules.set(conf);
        self.compared(&outcome);
        outcome
    }

    /// Something that is not told of here may have changed.
    pub fn nudge(&mut self) {
        self.due = self.due.min((Instant::now() + PAUSE).max(self.last + DISTANCE));
    }

    /// Plans the next comparison. A failure is retried early, because the kernel does not report every cure.
    fn compared(&mut self, outcome: &Outcome) {
        self.last = Instant::now();
        self.retry = match (outcome.problems.is_empty(), self.retry) {
            (true, _) => None,
            (false, None) => Some(RETRY),
            (false, Some(retry)) => Some((retry * 2).min(LONGEST_RETRY)),
        };
        self.due = self.last + self.retry.map_or(self.every, |retry| retry.min(self.every));
    }

    /// Waits until something was mended or failed, or until nothing fails any more. The wait can be given up
    /// and taken up again.
    pub async fn next(&mut self) -> Outcome {
        loop {
            tokio::select! {
                is_ours = hear(&mut self.events, &self.rules) => {
                    if is_ours {
                        self.nudge();
                    }
                }
                () = sleep_until(self.due) => {
                    let has_failed = self.retry.is_some();
                    let outcome = self.rules.keep();
                    self.compared(&outcome);
                    if has_failed || outcome != Outcome::default() {
                        return outcome;
                    }
                }
            }
        }
    }
}

/// Whether somebody has changed what is ours.
async fn hear(events: &mut Option<AsyncFd<Events>>, rules: &Rules) -> bool {
    let Some(listening) = events else { return std::future::pending().await };
    let Ok(mut guard) = listening.readable_mut().await else {
        *events = None;
        return true;
    };
    let mut is_ours = false;
    loop {
        let received = guard
            .get_inner_mut()
            .receive(std::time::Instant::now(), |event| is_ours |= rules.is_ours(&event));
        match received {
            Ok(Received::Events) => {}
            Ok(Received::Overrun) => is_ours = true,
            Ok(Received::Deadline) => {
                guard.clear_ready();
                return is_ours;
            }
            Err(error) => {
                tracing::warn!(%error, "changes of nf_tables are not heard of");
                *events = None;
                return true;
            }
        }
    }
}
