// SPDX-License-Identifier: Apache-2.0
//! When each peer's turn is. However many there are, only a few checks begin in a second; a first few
//! begin at once, so that a small network is checked as soon as it is there.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// How often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// From one check of a peer to the next, give or take a quarter.
    pub period: Duration,
    /// Between the beginnings of two checks.
    pub gap: Duration,
    /// That may begin without a gap.
    pub burst: u32,
    /// After the first check that found a peer unreachable; doubled by each further one.
    pub first_retry: Duration,
    /// The most that it is doubled to.
    pub last_retry: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(600),
            gap: Duration::from_millis(250),
            burst: 16,
            first_retry: Duration::from_secs(5),
            last_retry: Duration::from_secs(60),
        }
    }
}

/// Whose turn is when.
#[derive(Debug)]
pub struct Schedule<K> {
    pace: Pace,
    due: BTreeSet<(Instant, K)>,
    peers: HashMap<K, Turn>,
    /// When the bucket of beginnings is full again.
    full_at: Instant,
}

#[derive(Debug, Clone, Copy, Default)]
struct Turn {
    /// None while it is being checked.
    at: Option<Instant>,
    misses: u32,
}

impl<K: Clone + Ord + Hash> Schedule<K> {
    pub fn new(pace: Pace, now: Instant) -> Self {
        Self { pace, due: BTreeSet::new(), peers: HashMap::new(), full_at: now }
    }

    /// A peer that is to be checked as soon as may be.
    pub fn add(&mut self, key: K, now: Instant) {
        self.remove(&key);
        self.due.insert((now, key.clone()));
        self.peers.insert(key, Turn { at: Some(now), misses: 0 });
    }

    pub fn remove(&mut self, key: &K) {
        if let Some(at) = self.peers.remove(key).and_then(|turn| turn.at) {
            self.due.remove(&(at, key.clone()));
        }
    }

    /// Takes the next one whose turn it is, if one may begin now.
    pub fn take(&mut self, now: Instant) -> Option<K> {
        if self.next()? > now {
            return None;
        }
        let (_, key) = self.due.pop_first()?;
        self.peers.get_mut(&key)?.at = None;
        self.full_at = self.full_at.max(now) + self.pace.gap;
        Some(key)
    }

    /// When to look again.
    pub fn next(&self) -> Option<Instant> {
        let (at, _) = self.due.first()?;
        let room = self.pace.gap * self.pace.burst.saturating_sub(1);
        Some((*at).max(self.full_at.checked_sub(room).unwrap_or(*at)))
    }

    /// A check has ended. `chance` is between 0 and 1, so that peers do not stay in step.
    pub fn done(&mut self, key: &K, is_reachable: bool, chance: f64, now: Instant) {
        let Some(turn) = self.peers.get_mut(key) else { return };
        let wait = if is_reachable {
            turn.misses = 0;
            self.pace.period.mul_f64(0.75 + chance.clamp(0.0, 1.0) / 2.0)
        } else {
            let doubled = self.pace.first_retry * 2_u32.saturating_pow(turn.misses.min(16));
            turn.misses += 1;
            doubled.min(self.pace.last_retry)
        };
        turn.at = Some(now + wait);
        self.due.insert((now + wait, key.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_begin_at_once_and_the_others_one_by_one() {
        let start = Instant::now();
        let pace = Pace::default();
        let mut schedule = Schedule::new(pace, start);
        for peer in 0..1000 {
            schedule.add(peer, start);
        }
        let mut now = start;
        let mut began = Vec::new();
        while let Some(at) = schedule.next() {
            now = now.max(at);
            while let Some(peer) = schedule.take(now) {
                began.push(now - start);
                schedule.done(&peer, true, 0.5, now + pace.period * 10);
            }
            if began.len() >= 1000 {
                break;
            }
        }
        assert_eq!(began.iter().filter(|at| at.is_zero()).count(), 16);
        let within = |secs| began.iter().filter(|at| at.as_secs() < secs).count();
        assert_eq!(within(11) - within(10), 4);
        assert_eq!(began.last().unwrap().as_secs(), 246);
    }

    #[test]
    fn unreachable_ones_are_tried_sooner_and_ever_less_often() {
        let start = Instant::now();
        let mut schedule = Schedule::new(Pace::default(), start);
        schedule.add("peer", start);
        let mut now = start;
        let mut waits = Vec::new();
        for is_reachable in [false, false, false, false, false, false, true] {
            let at = schedule.next().unwrap();
            waits.push((at - now).as_secs());
            now = at;
            assert_eq!(schedule.take(now), Some("peer"));
            assert_eq!(schedule.next(), None, "it is being checked");
            schedule.done(&"peer", is_reachable, 0.0, now);
        }
        assert_eq!(waits, [0, 5, 10, 20, 40, 60, 60]);
        assert_eq!((schedule.next().unwrap() - now).as_secs(), 450);
    }

    #[test]
    fn what_was_removed_has_no_turn() {
        let now = Instant::now();
        let mut schedule = Schedule::new(Pace::default(), now);
        schedule.add(1, now);
        schedule.add(2, now);
        schedule.remove(&1);
        assert_eq!(schedule.take(now), Some(2));
        schedule.remove(&2);
        schedule.done(&2, true, 0.5, now);
        assert_eq!(schedule.next(), None);
    }
}
