// SPDX-License-Identifier: Apache-2.0
//! When to compare next: at once after the first change of others, then not too often; again after a
//! failure, less and less often; and at intervals in any case. Pure.

use std::time::{Duration, Instant};

use overlay::diff::Conflict;

use super::outcome::{Failure, Outcome};

/// Between two repairs at least. While somebody keeps undoing them it grows, up to what still is "within a
/// second".
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Repairs further apart have nothing to do with each other.
const QUIET: Duration = Duration::from_secs(5);
/// Until a failure is tried again, and, doubled each time, at most.
const RETRY: Duration = Duration::from_millis(250);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Schedule {
    every: Duration,
    last: Instant,
    /// None until one was needed.
    last_repair: Option<Instant>,
    pause: Duration,
    nudged: Option<Instant>,
    /// None while nothing fails.
    retry: Option<Duration>,
    /// The failures and conflicts that were reported last, by a comparison or by a command.
    wrong: (Vec<Failure>, Vec<Conflict>),
}

impl Schedule {
    pub(super) fn new(every: Duration, now: Instant) -> Self {
        Self {
            every,
            last: now,
            last_repair: None,
            pause: PAUSE,
            nudged: None,
            retry: None,
            wrong: (Vec::new(), Vec::new()),
        }
    }

    /// Others have changed something.
    pub(super) fn nudge(&mut self, now: Instant) {
        self.nudged.get_or_insert(now);
    }

    pub(super) fn is_nudged(&self) -> bool {
        self.nudged.is_some()
    }

    /// Something that was asked for has failed.
    pub(super) fn failed(&mut self, now: Instant) {
        if self.retry.is_none() {
            self.retry = Some(RETRY);
            self.last = now;
        }
    }

    /// A command has reported these failures and conflicts by itself.
    pub(super) fn reported(&mut self, failures: &[Failure], conflicts: &[Conflict]) {
        self.wrong = (failures.to_vec(), conflicts.to_vec());
    }

    pub(super) fn due(&self) -> Instant {
        let regular = self.last + self.every;
        let again = self.retry.map_or(regular, |retry| self.last + retry);
        let repair = self.nudged.map_or(regular, |nudged| {
            self.last_repair.map_or(nudged, |last| nudged.max(last + self.pause))
        });
        regular.min(again).min(repair)
    }

    /// A comparison has been made. Whether there is something to tell.
    pub(super) fn done(&mut self, now: Instant, outcome: &Outcome) -> bool {
        let was_nudged = self.nudged.take().is_some();
        if was_nudged {
            let is_fight = !outcome.changes.is_empty()
                && self.last_repair.is_some_and(|last| now.duration_since(last) < QUIET);
            self.pause = if is_fight { (self.pause * 2).min(LONGEST_PAUSE) } else { PAUSE };
            self.last_repair = Some(now);
        }
        self.last = now;
        self.retry = match (outcome.failures.is_empty(), self.retry) {
            (true, _) => None,
            (false, None) => Some(RETRY),
            (false, Some(retry)) => Some((retry * 2).min(LONGEST_RETRY)),
        };
        let wrong = (outcome.failures.clone(), outcome.conflicts.clone());
        let is_news = self.wrong != wrong;
        self.wrong = wrong;
        is_news || !outcome.changes.is_empty()
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
        outcome.fail("do", "no");
        outcome
    }

    #[test]
    fn the_first_change_is_repaired_at_once_and_the_next_after_a_pause() {
        let start = Instant::now();
        let mut schedule = Schedule::new(EVERY, start);
        assert_eq!(schedule.due(), start + EVERY);
        let now = start + Duration::from_secs(1);
        schedule.nudge(now);
        assert_eq!(schedule.due(), now);
        assert!(schedule.done(now, &repaired()));
        assert_eq!(schedule.due(), now + EVERY);
        schedule.nudge(now);
        assert_eq!(schedule.due(), now + PAUSE);
        // Our own changes come back to us, and there is nothing to do.
        assert!(!schedule.done(now + PAUSE, &Outcome::default()));
        assert_eq!(schedule.due(), now + PAUSE + EVERY);
    }

    #[test]
    fn who_undoes_all_repairs_is_met_less_often_but_within_a_second() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(EVERY, now);
        for _ in 0..10 {
            schedule.nudge(now);
            now = schedule.due();
            schedule.done(now, &repaired());
        }
        schedule.nudge(now);
        assert_eq!(schedule.due(), now + LONGEST_PAUSE);
        now += QUIET;
        schedule.done(now, &repaired());
        schedule.nudge(now);
        assert_eq!(schedule.due(), now + PAUSE);
    }

    #[test]
    fn a_failure_is_tried_again_and_told_once() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(EVERY, now);
        schedule.failed(now);
        assert_eq!(schedule.due(), now + RETRY);
        now += RETRY;
        assert!(schedule.done(now, &failed()));
        assert_eq!(schedule.due(), now + RETRY * 2);
        for _ in 0..20 {
            assert!(!schedule.done(now, &failed()));
        }
        assert_eq!(schedule.due(), now + LONGEST_RETRY);
        assert!(schedule.done(now, &Outcome::default()), "that it is over is told, too");
        assert_eq!(schedule.due(), now + EVERY);
    }

    #[test]
    fn success_after_a_command_that_failed_is_reported() {
        let now = Instant::now();
        let mut schedule = Schedule::new(EVERY, now);
        schedule.reported(&failed().failures, &[]);
        assert!(!schedule.done(now, &failed()), "the command has reported it");
        assert!(schedule.done(now, &Outcome::default()));
        assert!(!schedule.done(now, &Outcome::default()));
        schedule.reported(&failed().failures, &[]);
        assert!(schedule.done(now, &Outcome::default()));
        // The command that succeeds reports that as well.
        schedule.done(now, &failed());
        schedule.reported(&[], &[]);
        assert!(!schedule.done(now, &Outcome::default()));
    }
}
