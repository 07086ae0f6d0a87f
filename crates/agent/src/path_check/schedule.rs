// SPDX-License-Identifier: Apache-2.0
//! When each peer's turn is. Checks begin in rounds, so that the machine wakes once for many, and only a
//! few in each, however many peers there are. Who is new, or was heard of, waits for no round.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// How often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// From one check of a peer to the next, give or take a quarter.
    pub period: Duration,
    /// From one round to the next.
    pub round: Duration,
    /// Checks that may begin in one.
    pub each: u32,
    /// After the first check that found a peer unreachable; doubled by each further one, and give or take
    /// a quarter.
    pub first_retry: Duration,
    /// The most that it is doubled to.
    pub last_retry: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(600),
            round: Duration::from_secs(4),
            each: 16,
            first_retry: Duration::from_secs(5),
            last_retry: Duration::from_secs(300),
        }
    }
}

/// Whose turn is when.
#[derive(Debug)]
pub struct Schedule<K> {
    pace: Pace,
    due: BTreeSet<(Rank, Instant, K)>,
    peers: HashMap<K, Turn>,
    /// When the present round began; all begin so many rounds after the first.
    round: Instant,
    /// That have begun in it.
    begun: u32,
}

/// Who comes first if not all can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Whose time has come already.
    Now,
    InTurn,
}

#[derive(Debug, Clone, Copy)]
struct Turn {
    /// None while it is being checked.
    at: Option<(Rank, Instant)>,
    misses: u32,
}

impl<K: Clone + Ord + Hash> Schedule<K> {
    pub fn new(pace: Pace, now: Instant) -> Self {
        Self { pace, due: BTreeSet::new(), peers: HashMap::new(), round: now, begun: 0 }
    }

    /// A peer that is to be checked as soon as may be, from then on.
    pub fn add(&mut self, key: K, from: Instant) {
        self.remove(&key);
        self.due.insert((Rank::Now, from, key.clone()));
        self.peers.insert(key, Turn { at: Some((Rank::Now, from)), misses: 0 });
    }

    pub fn remove(&mut self, key: &K) {
        if let Some((rank, at)) = self.peers.remove(key).and_then(|turn| turn.at) {
            self.due.remove(&(rank, at, key.clone()));
        }
    }

    /// A peer may be back: it is tried as soon as may be, and as often as at first.
    pub fn hurry(&mut self, key: &K, now: Instant) {
        let Some(turn) = self.peers.get_mut(key) else { return };
        turn.misses = 0;
        if let Some((rank, at)) = turn.at {
            self.due.remove(&(rank, at, key.clone()));
            self.put(key, Rank::Now, now);
        }
    }

    /// Takes the next one whose turn it is, if one may begin now.
    pub fn take(&mut self, now: Instant) -> Option<K> {
        if self.next()? > now {
            return None;
        }
        let (_, _, key) = self.due.pop_first()?;
        self.peers.get_mut(&key)?.at = None;
        let round = self.round_at(now);
        if round > self.round {
            (self.round, self.begun) = (round, 0);
        }
        self.begun += 1;
        Some(key)
    }

    /// When to look again.
    pub fn next(&self) -> Option<Instant> {
        let (_, at, _) = self.due.first()?;
        let is_full = self.begun >= self.pace.each;
        Some(if is_full { (*at).max(self.round + self.pace.round) } else { *at })
    }

    /// A check has ended. `chance` is between 0 and 1, so that peers do not stay in step.
    pub fn done(&mut self, key: &K, is_reachable: bool, chance: f64, now: Instant) {
        let Some(turn) = self.peers.get_mut(key) else { return };
        let wait = if is_reachable {
            turn.misses = 0;
            self.pace.period
        } else {
            let doubled = self.pace.first_retry * 2_u32.saturating_pow(turn.misses.min(16));
            turn.misses += 1;
            doubled.min(self.pace.last_retry)
        };
        let at = now + wait.mul_f64(0.75 + chance.clamp(0.0, 1.0) / 2.0);
        // The first round that is not before it.
        let round = self.round_at(at);
        self.put(key, Rank::InTurn, if round < at { round + self.pace.round } else { round });
    }

    fn put(&mut self, key: &K, rank: Rank, at: Instant) {
        let Some(turn) = self.peers.get_mut(key) else { return };
        turn.at = Some((rank, at));
        self.due.insert((rank, at, key.clone()));
    }

    /// The last round that begins before, or then.
    fn round_at(&self, at: Instant) -> Instant {
        let since = at.saturating_duration_since(self.round).as_nanos();
        let part = since % self.pace.round.as_nanos().max(1);
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
    fn some_begin_at_once_and_the_others_in_rounds() {
        let start = Instant::now();
        let pace = Pace::default();
        let mut schedule = Schedule::new(pace, start);
        for peer in 0..1000 {
            schedule.add(peer, start);
        }
        let mut began: Vec<u64> = Vec::new();
        while began.len() < 1000 {
            let now = schedule.next().unwrap();
            while let Some(peer) = schedule.take(now) {
                began.push((now - start).as_secs());
                schedule.done(&peer, true, 0.5, now + pace.period * 10);
            }
        }
        let rounds: Vec<u64> = (0..1000).map(|nth| nth / 16 * 4).collect();
        assert_eq!(began, rounds);
    }

    #[test]
    fn those_that_come_later_begin_together() {
        let start = Instant::now();
        let mut schedule = Schedule::new(Pace::default(), start);
        for peer in 0..10 {
            let now = start + Duration::from_millis(peer * 300);
            schedule.add(peer, now);
            assert_eq!(schedule.take(now), Some(peer));
            schedule.done(&peer, true, 0.5, now);
        }
        let at = schedule.next().unwrap();
        assert_eq!(at, start + secs(600), "the first is in step with a round");
        assert_eq!(schedule.take(at), Some(0));
        let at = schedule.next().unwrap();
        assert_eq!(at, start + secs(604));
        let together: Vec<u64> = std::iter::from_fn(|| schedule.take(at)).collect();
        assert_eq!(together, (1..10).collect::<Vec<u64>>());
    }

    #[test]
    fn unreachable_ones_are_tried_sooner_and_ever_less_often() {
        let start = Instant::now();
        let pace = Pace { round: secs(1), ..Pace::default() };
        let mut schedule = Schedule::new(pace, start);
        schedule.add("peer", start);
        let mut now = start;
        let mut waits = Vec::new();
        for is_reachable in [false, false, false, false, false, false, false, false, true] {
            let at = schedule.next().unwrap();
            waits.push((at - now).as_secs());
            now = at;
            assert_eq!(schedule.take(now), Some("peer"));
            assert_eq!(schedule.next(), None, "it is being checked");
            schedule.done(&"peer", is_reachable, 0.5, now);
        }
        assert_eq!(waits, [0, 5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!((schedule.next().unwrap() - now).as_secs(), 600);
    }

    #[test]
    fn waits_are_not_all_the_same() {
        let start = Instant::now();
        for (is_reachable, least, most) in [(true, 452, 752), (false, 4, 8)] {
            for (chance, wait) in [(0.0, least), (1.0, most)] {
                let mut schedule = Schedule::new(Pace::default(), start);
                schedule.add((), start);
                schedule.take(start);
                schedule.done(&(), is_reachable, chance, start);
                assert_eq!(schedule.next().unwrap() - start, secs(wait), "{chance}");
            }
        }
    }

    #[test]
    fn who_is_heard_of_again_is_tried_before_others_and_often_at_first() {
        let start = Instant::now();
        let mut schedule = Schedule::new(Pace::default(), start);
        schedule.add("lost", start);
        let mut now = start;
        for _ in 0..10 {
            now = schedule.next().unwrap();
            schedule.take(now);
            schedule.done(&"lost", false, 0.5, now);
        }
        // Others have waited for longer than there is room.
        for other in ["a", "b"] {
            schedule.add(other, start);
            schedule.take(now);
            schedule.done(&other, false, 0.5, start);
        }
        now += secs(60);
        schedule.hurry(&"lost", now);
        assert_eq!(schedule.next(), Some(now));
        assert_eq!(schedule.take(now), Some("lost"));
        // While it is being checked there is nothing to hurry but what comes then.
        schedule.hurry(&"lost", now);
        assert!(schedule.take(now).is_some_and(|other| other != "lost"));
        schedule.done(&"lost", false, 0.5, now);
        while schedule.take(now).is_some() {}
        assert!(schedule.next().unwrap() <= now + secs(8));
        schedule.hurry(&"unknown", now);
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
