// SPDX-License-Identifier: Apache-2.0
//! Which groups pods of this node are in. A pod that says nothing for a while is taken to have left.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::packet::is_carried;
use super::reports::{Change, Report};

/// Between two questions (RFC 3376, 8.2).
pub const ASK_EVERY: Duration = Duration::from_secs(125);
/// After a report: two questions and the time for an answer (RFC 3376, 8.4).
const STAYS: Duration = Duration::from_secs(260);
/// For others in a group to speak up after one has left it.
const LAST_CALL: Duration = Duration::from_secs(3);
/// More than that are not told apart: the node then wants all.
const MOST: usize = 10_000;

/// Who is in what.
#[derive(Debug, Default)]
pub struct Members {
    /// When each pod's membership ends.
    groups: HashMap<IpAddr, HashMap<IpAddr, Instant>>,
    /// No membership ends before.
    next_end: Option<Instant>,
}

/// What a report has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noted {
    /// There is a group more or less.
    pub has_changed: bool,
    /// All should be asked who is still there.
    pub must_ask: bool,
}

impl Members {
    /// What a pod has said.
    pub fn note(&mut self, pod: IpAddr, report: Report, now: Instant) -> Noted {
        let Report { group, change } = report;
        let nothing = Noted { has_changed: false, must_ask: false };
        if !is_carried(group) {
            return nothing;
        }
        let Some(pods) = self.groups.get_mut(&group) else {
            let joins = change == Change::Joins && self.groups.len() < MOST;
            if joins {
                self.groups.insert(group, HashMap::from([(pod, now + STAYS)]));
                self.look_at(now + STAYS);
            }
            return Noted { has_changed: joins, ..nothing };
        };
        match change {
            Change::Joins => {
                pods.insert(pod, now + STAYS);
            }
            Change::Leaves => {
                pods.remove(&pod);
            }
            Change::MayBeLast => {
                for end in pods.values_mut() {
                    *end = (*end).min(now + LAST_CALL);
                }
            }
        }
        let has_changed = pods.is_empty();
        if has_changed {
            self.groups.remove(&group);
        }
        let must_ask = change == Change::MayBeLast;
        if must_ask {
            self.look_at(now + LAST_CALL);
        }
        Noted { has_changed, must_ask }
    }

    fn look_at(&mut self, end: Instant) {
        self.next_end = Some(self.next_end.map_or(end, |next| next.min(end)));
    }

    /// Forgets who has been silent for too long; whether there is a group less.
    pub fn expire(&mut self, now: Instant) -> bool {
        if self.next_end.is_none_or(|next| next > now) {
            return false;
        }
        let before = self.groups.len();
        self.groups.retain(|_, pods| {
            pods.retain(|_, end| *end > now);
            !pods.is_empty()
        });
        self.next_end = self.groups.values().flat_map(HashMap::values).min().copied();
        self.groups.len() != before
    }

    pub fn has(&self, group: IpAddr) -> bool {
        self.groups.contains_key(&group) || self.is_full()
    }

    /// There are too many to be told apart.
    pub fn is_full(&self) -> bool {
        self.groups.len() >= MOST
    }

    pub fn groups(&self) -> BTreeSet<IpAddr> {
        self.groups.keys().copied().collect()
    }

    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// When to look whether a membership has ended.
    pub fn next_end(&self) -> Option<Instant> {
        self.next_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn note(members: &mut Members, pod: &str, change: Change, now: Instant) -> bool {
        members.note(ip(pod), Report { group: ip("239.1.2.3"), change }, now).has_changed
    }

    #[test]
    fn group_is_there_while_one_pod_is_in_it() {
        let now = Instant::now();
        let mut members = Members::default();
        assert!(note(&mut members, "10.0.0.2", Change::Joins, now));
        assert!(!note(&mut members, "10.0.0.3", Change::Joins, now));
        assert!(!note(&mut members, "10.0.0.2", Change::Leaves, now));
        assert!(members.has(ip("239.1.2.3")));
        assert!(note(&mut members, "10.0.0.3", Change::Leaves, now));
        assert!(!members.has(ip("239.1.2.3")));
        assert!(!note(&mut members, "10.0.0.3", Change::Leaves, now));
    }

    #[test]
    fn silent_pods_leave() {
        let now = Instant::now();
        let mut members = Members::default();
        note(&mut members, "10.0.0.2", Change::Joins, now);
        assert_eq!(members.next_end(), Some(now + STAYS));
        assert!(!members.expire(now + STAYS / 2));
        note(&mut members, "10.0.0.2", Change::Joins, now + STAYS / 2);
        assert!(!members.expire(now + STAYS));
        assert!(members.expire(now + STAYS * 2));
        assert_eq!(members.next_end(), None);
    }

    /// With version 2 only one pod of several answers, and that one may be the one that leaves.
    #[test]
    fn last_call_gives_others_time_to_speak_up() {
        let now = Instant::now();
        let mut members = Members::default();
        note(&mut members, "10.0.0.2", Change::Joins, now);
        let left = Report { group: ip("239.1.2.3"), change: Change::MayBeLast };
        let noted = members.note(ip("10.0.0.2"), left, now);
        assert_eq!(noted, Noted { has_changed: false, must_ask: true });
        note(&mut members, "10.0.0.3", Change::Joins, now);
        assert!(!members.expire(now + LAST_CALL));
        members.note(ip("10.0.0.3"), left, now);
        assert!(members.expire(now + LAST_CALL));
    }

    #[test]
    fn groups_of_a_link_are_nobodys_business() {
        let mut members = Members::default();
        for group in ["224.0.0.5", "ff02::1:ff00:1", "ff02::2"] {
            let report = Report { group: ip(group), change: Change::Joins };
            assert!(!members.note(ip("10.0.0.2"), report, Instant::now()).has_changed, "{group}");
        }
    }

    #[test]
    fn too_many_groups_are_all() {
        let mut members = Members::default();
        for n in 0..MOST as u32 + 1 {
            let group = std::net::Ipv4Addr::from(0xef00_0000 + n).into();
            let report = Report { group, change: Change::Joins };
            members.note(ip("10.0.0.2"), report, Instant::now());
        }
        assert!(members.is_full() && members.has(ip("ff15::1")));
        assert_eq!(members.groups().len(), MOST);
    }
}
