// SPDX-License-Identifier: Apache-2.0
//! The schedule of path checks. Checks start in rounds, so that the machine wakes up once for many, and the number of
//! checks per round is limited. New peers, and peers that show signs of life, do not wait for a round.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// How often peers are probed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProbeIntervals {
    /// Interval between two checks of a peer, plus or minus a quarter.
    pub period: Duration,
    /// Interval between two rounds.
    pub round: Duration,
    /// Maximum number of checks that start in a round.
    pub per_round: u32,
    /// Delay after the first check that finds a peer unreachable, plus or minus a quarter. It doubles with each
    /// further one.
    pub first_retry: Duration,
    /// Maximum of that delay.
    pub last_retry: Duration,
}

impl Default for ProbeIntervals {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(600),
            round: Duration::from_secs(4),
            per_round: 16,
            first_retry: Duration::from_secs(5),
            last_retry: Duration::from_secs(300),
        }
    }
}

/// The time of the next check of each peer.
#[derive(Debug)]
pub(super) struct Schedule<K> {
    intervals: ProbeIntervals,
    due: BTreeSet<(Rank, Instant, K)>,
    peers: HashMap<K, Turn>,
    /// Start of the current round.
    round: Instant,
    /// Number of checks that started in the current round.
    started: u32,
}

/// Order in which due checks start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Checks that do not wait for a round.
    Now,
    InRound,
}

#[derive(Debug, Clone, Copy)]
struct Turn {
    /// `None` while the check is running.
    at: Option<(Rank, Instant)>,
    /// Number of checks in a row that found the peer unreachable.
    misses: u32,
}

impl<K: Clone + Ord + Hash> Schedule<K> {
    pub(super) fn new(intervals: ProbeIntervals, now: Instant) -> Self {
        Self { intervals, due: BTreeSet::new(), peers: HashMap::new(), round: now, started: 0 }
    }

    /// Adds a peer, or starts it over. Its first check starts at `from` or as soon as the limit allows.
    pub(super) fn add(&mut self, key: K, from: Instant) {
        self.remove(&key);
        self.due.insert((Rank::Now, from, key.clone()));
        self.peers.insert(key, Turn { at: Some((Rank::Now, from)), misses: 0 });
    }

    pub(super) fn remove(&mut self, key: &K) {
        if let Some((rank, at)) = self.peers.remove(key).and_then(|turn| turn.at) {
            self.due.remove(&(rank, at, key.clone()));
        }
    }

    /// Checks a peer as soon as possible, and resets the delay between its retries.
    pub(super) fn hurry(&mut self, key: &K, now: Instant) {
        let Some(turn) = self.peers.get_mut(key) else { return };
        turn.misses = 0;
        if let Some((rank, at)) = turn.at {
            self.due.remove(&(rank, at, key.clone()));
            self.put(key, Rank::Now, now);
        }
    }

    /// Takes the next peer whose check may start now.
    pub(super) fn take(&mut self, now: Instant) -> Option<K> {
        if self.next()? > now {
            return None;
        }
        let (_, _, key) = self.due.pop_first()?;
        self.peers.get_mut(&key)?.at = None;
        let round = self.round_at(now);
        if round > self.round {
            (self.round, self.started) = (round, 0);
        }
        self.started += 1;
        Some(key)
    }

    /// When the next check may start.
    pub(super) fn next(&self) -> Option<Instant> {
        let (_, at, _) = self.due.first()?;
        let is_full = self.started >= self.intervals.per_round;
        Some(if is_full { (*at).max(self.round + self.intervals.round) } else { *at })
    }

    /// Schedules the next check after one has ended. `jitter` is a random number between 0 and 1, so that peers do
    /// not stay in step.
    pub(super) fn done(&mut self, key: &K, is_reachable: bool, jitter: f64, now: Instant) {
        let Some(turn) = self.peers.get_mut(key) else { return };
        let wait = if is_reachable {
            turn.misses = 0;
            self.intervals.period
        } else {
            let doubled = self.intervals.first_retry * 2_u32.saturating_pow(turn.misses.min(16));
            turn.misses += 1;
            doubled.min(self.intervals.last_retry)
        };
        let at = now + wait.mul_f64(0.75 + jitter.clamp(0.0, 1.0) / 2.0);
        // The first round at or after that time.
        let round = self.round_at(at);
        self.put(key, Rank::InRound, if round < at { round + self.intervals.round } else { round });
    }

    fn put(&mut self, key: &K, rank: Rank, at: Instant) {
        let Some(turn) = self.peers.get_mut(key) else { return };
        turn.at = Some((rank, at));
        self.due.insert((rank, at, key.clone()));
    }

    /// Start of the last round at or before `at`.
    fn round_at(&self, at: Instant) -> Instant {
        let since = at.saturating_duration_since(self.round).as_nanos();
        let part = since % self.intervals.round.as_nanos().max(1);
        at - Duration::from_nanos(u64::try_from(part).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn new_peers_beyond_the_limit_wait_for_rounds() {
        let start = Instant::now();
        let intervals = ProbeIntervals::default();
        let mut schedule = Schedule::new(intervals, start);
        for peer in 0..1000 {
            schedule.add(peer, start);
        }
        let mut started: Vec<u64> = Vec::new();
        while started.len() < 1000 {
            let now = schedule.next().unwrap();
            while let Some(peer) = schedule.take(now) {
                started.push((now - start).as_secs());
                schedule.done(&peer, true, 0.5, now + intervals.period * 10);
            }
        }
        let rounds: Vec<u64> = (0..1000).map(|nth| nth / 16 * 4).collect();
        assert_eq!(started, rounds);
    }

    #[test]
    fn later_checks_start_together_in_a_round() {
        let start = Instant::now();
        let mut schedule = Schedule::new(ProbeIntervals::default(), start);
        for peer in 0..10 {
            let now = start + Duration::from_millis(peer * 300);
            schedule.add(peer, now);
            assert_eq!(schedule.take(now), Some(peer));
            schedule.done(&peer, true, 0.5, now);
        }
        let at = schedule.next().unwrap();
        assert_eq!(at, start + secs(600), "already aligned with a round");
        assert_eq!(schedule.take(at), Some(0));
        let at = schedule.next().unwrap();
        assert_eq!(at, start + secs(604));
        let together: Vec<u64> = std::iter::from_fn(|| schedule.take(at)).collect();
        assert_eq!(together, (1..10).collect::<Vec<u64>>());
    }

    #[test]
    fn unreachable_peer_is_retried_with_growing_delay() {
        let start = Instant::now();
        let intervals = ProbeIntervals { round: secs(1), ..ProbeIntervals::default() };
        let mut schedule = Schedule::new(intervals, start);
        schedule.add("peer", start);
        let mut now = start;
        let mut waits = Vec::new();
        for is_reachable in [false, false, false, false, false, false, false, false, true] {
            let at = schedule.next().unwrap();
            waits.push((at - now).as_secs());
            now = at;
            assert_eq!(schedule.take(now), Some("peer"));
            assert_eq!(schedule.next(), None, "check is running");
            schedule.done(&"peer", is_reachable, 0.5, now);
        }
        assert_eq!(waits, [0, 5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!((schedule.next().unwrap() - now).as_secs(), 600);
    }

    #[test]
    fn intervals_are_randomized() {
        let start = Instant::now();
        for (is_reachable, min, max) in [(true, 452, 752), (false, 4, 8)] {
            for (jitter, wait) in [(0.0, min), (1.0, max)] {
                let mut schedule = Schedule::new(ProbeIntervals::default(), start);
                schedule.add((), start);
                schedule.take(start);
                schedule.done(&(), is_reachable, jitter, start);
                assert_eq!(schedule.next().unwrap() - start, secs(wait), "{jitter}");
            }
        }
    }

    #[test]
    fn hurried_peer_is_checked_before_others() {
        let start = Instant::now();
        let mut schedule = Schedule::new(ProbeIntervals::default(), start);
        schedule.add("lost", start);
        let mut now = start;
        for _ in 0..10 {
            now = schedule.next().unwrap();
            schedule.take(now);
            schedule.done(&"lost", false, 0.5, now);
        }
        // Other peers have waited longer, and the round is full.
        for other in ["a", "b"] {
            schedule.add(other, start);
            schedule.take(now);
            schedule.done(&other, false, 0.5, start);
        }
        now += secs(60);
        schedule.hurry(&"lost", now);
        assert_eq!(schedule.next(), Some(now));
        assert_eq!(schedule.take(now), Some("lost"));
        // While the check is running, only the next retry is affected.
        schedule.hurry(&"lost", now);
        assert!(schedule.take(now).is_some_and(|other| other != "lost"));
        schedule.done(&"lost", false, 0.5, now);
        while schedule.take(now).is_some() {}
        assert!(schedule.next().unwrap() <= now + secs(8));
        schedule.hurry(&"unknown", now);
    }

    #[test]
    fn removed_peer_is_not_checked() {
        let now = Instant::now();
        let mut schedule = Schedule::new(ProbeIntervals::default(), now);
        schedule.add(1, now);
        schedule.add(2, now);
        schedule.remove(&1);
        assert_eq!(schedule.take(now), Some(2));
        schedule.remove(&2);
        schedule.done(&2, true, 0.5, now);
        assert_eq!(schedule.next(), None);
    }
}
