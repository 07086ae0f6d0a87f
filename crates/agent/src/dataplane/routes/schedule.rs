// SPDX-License-Identifier: Apache-2.0
//! When to compare next: at once after the first change by another program, after a pause if the
//! next one follows soon, with growing delays after a failure, and at intervals in any case. Pure.

use std::time::{Duration, Instant};

use super::outcome::{Outcome, Unresolved};

/// Minimum time between two repairs. It doubles up to the maximum while another program keeps
/// undoing the repairs.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// A repair later than this after the last one is unrelated to it.
const UNRELATED_AFTER: Duration = Duration::from_secs(5);
/// Delay before a failure is retried. It doubles up to the maximum.
const FIRST_RETRY: Duration = Duration::from_millis(250);
const MAX_RETRY: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Schedule {
    /// Interval of the periodic comparisons.
    every: Duration,
    /// Time of the last comparison or failed command.
    last: Instant,
    last_repair: Option<Instant>,
    pause: Duration,
    /// Time of the first change by another program since the last comparison.
    changed: Option<Instant>,
    /// Delay of the next retry; `None` if nothing fails.
    retry: Option<Duration>,
    /// The failures and conflicts that were reported last, by a comparison or by a command.
    unresolved: Unresolved,
}

impl Schedule {
    pub(super) fn new(every: Duration, now: Instant) -> Self {
        Self {
            every,
            last: now,
            last_repair: None,
            pause: MIN_PAUSE,
            changed: None,
            retry: None,
            unresolved: Unresolved::default(),
        }
    }

    /// Records that another program has changed something.
    pub(super) fn changed(&mut self, now: Instant) {
        self.changed.get_or_insert(now);
    }

    /// Returns whether another program has changed something since the last comparison.
    pub(super) fn has_changes(&self) -> bool {
        self.changed.is_some()
    }

    /// Records that a command has failed.
    pub(super) fn failed(&mut self, now: Instant) {
        if self.retry.is_none() {
            self.retry = Some(FIRST_RETRY);
            self.last = now;
        }
    }

    /// Records the failures and conflicts that a command has reported itself.
    pub(super) fn reported(&mut self, unresolved: &Unresolved) {
        self.unresolved.clone_from(unresolved);
    }

    /// Returns the time of the next comparison.
    pub(super) fn due(&self) -> Instant {
        let periodic = self.last + self.every;
        let retry = self.retry.map_or(periodic, |retry| self.last + retry);
        let repair = self.changed.map_or(periodic, |changed| {
            self.last_repair.map_or(changed, |last| changed.max(last + self.pause))
        });
        periodic.min(retry).min(repair)
    }

    /// Records a comparison. Returns whether its outcome has to be reported.
    pub(super) fn compared(&mut self, now: Instant, outcome: &Outcome) -> bool {
        if self.changed.take().is_some() {
            let is_undone = !outcome.changes.is_empty()
                && self.last_repair.is_some_and(|last| now.duration_since(last) < UNRELATED_AFTER);
            self.pause = if is_undone { (self.pause * 2).min(MAX_PAUSE) } else { MIN_PAUSE };
            self.last_repair = Some(now);
        }
        self.last = now;
        self.retry = match (outcome.failures.is_empty(), self.retry) {
            (true, _) => None,
            (false, None) => Some(FIRST_RETRY),
            (false, Some(retry)) => Some((retry * 2).min(MAX_RETRY)),
        };
        let (failures, conflicts) = (outcome.failures.clone(), outcome.conflicts.clone());
        let unresolved = Unresolved { failures, conflicts };
        let has_changed = self.unresolved != unresolved;
        self.unresolved = unresolved;
        has_changed || !outcome.changes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use overlay::diff::Change;

    use super::*;

    const EVERY: Duration = Duration::from_secs(60);

    fn repaired() -> Outcome {
        Outcome { changes: vec![Change::RemoveNexthop { id: 1 }], ..Outcome::default() }
    }

    fn failed() -> Outcome {
        let mut outcome = Outcome::default();
        outcome.fail("set route", "network unreachable");
        outcome
    }

    fn unresolved(outcome: &Outcome) -> Unresolved {
        Unresolved { failures: outcome.failures.clone(), ..Unresolved::default() }
    }

    #[test]
    fn second_repair_waits_for_a_pause() {
        let start = Instant::now();
        let mut schedule = Schedule::new(EVERY, start);
        assert_eq!(schedule.due(), start + EVERY);
        let now = start + Duration::from_secs(1);
        schedule.changed(now);
        assert_eq!(schedule.due(), now);
        assert!(schedule.compared(now, &repaired()));
        assert_eq!(schedule.due(), now + EVERY);
        schedule.changed(now);
        assert_eq!(schedule.due(), now + MIN_PAUSE);
        // The change was the agent's own, so the comparison finds no difference.
        assert!(!schedule.compared(now + MIN_PAUSE, &Outcome::default()));
        assert_eq!(schedule.due(), now + MIN_PAUSE + EVERY);
    }

    #[test]
    fn pause_grows_while_repairs_are_undone() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(EVERY, now);
        for _ in 0..10 {
            schedule.changed(now);
            now = schedule.due();
            schedule.compared(now, &repaired());
        }
        schedule.changed(now);
        assert_eq!(schedule.due(), now + MAX_PAUSE);
        now += UNRELATED_AFTER;
        schedule.compared(now, &repaired());
        schedule.changed(now);
        assert_eq!(schedule.due(), now + MIN_PAUSE);
    }

    #[test]
    fn failure_is_retried_and_reported_once() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(EVERY, now);
        schedule.failed(now);
        assert_eq!(schedule.due(), now + FIRST_RETRY);
        now += FIRST_RETRY;
        assert!(schedule.compared(now, &failed()));
        assert_eq!(schedule.due(), now + FIRST_RETRY * 2);
        for _ in 0..20 {
            assert!(!schedule.compared(now, &failed()));
        }
        assert_eq!(schedule.due(), now + MAX_RETRY);
        assert!(schedule.compared(now, &Outcome::default()), "the end is reported as well");
        assert_eq!(schedule.due(), now + EVERY);
    }

    #[test]
    fn success_after_a_command_that_failed_is_reported() {
        let now = Instant::now();
        let mut schedule = Schedule::new(EVERY, now);
        schedule.reported(&unresolved(&failed()));
        assert!(!schedule.compared(now, &failed()), "the command has reported it");
        assert!(schedule.compared(now, &Outcome::default()));
        assert!(!schedule.compared(now, &Outcome::default()));
        schedule.reported(&unresolved(&failed()));
        assert!(schedule.compared(now, &Outcome::default()));
        // A command that succeeds reports the end of the failure.
        schedule.compared(now, &failed());
        schedule.reported(&Unresolved::default());
        assert!(!schedule.compared(now, &Outcome::default()));
    }
}
