// SPDX-License-Identifier: Apache-2.0
//! The groups that pods of this node have joined. A membership expires if the pod does not report it again.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::igmp::{Change, Report};
use super::packet::is_forwarded;

/// Interval between queries (RFC 3376, 8.2).
pub(super) const QUERY_INTERVAL: Duration = Duration::from_secs(125);
/// Lifetime of a report: two queries and the time for an answer (RFC 3376, 8.4).
const MEMBERSHIP_TIMEOUT: Duration = Duration::from_secs(260);
/// Time for other members to report after one has left the group.
const LAST_MEMBER_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of groups. Beyond it the node receives all groups.
const MAX_GROUPS: usize = 10_000;

/// The members of each group.
#[derive(Debug, Default)]
pub(super) struct Membership {
    /// Expiry of the membership of each pod, by group and pod.
    groups: HashMap<IpAddr, HashMap<IpAddr, Instant>>,
    /// No membership expires before this time.
    next_expiry: Option<Instant>,
}

/// The effect of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Effect {
    /// Whether a group was added or removed.
    pub has_changed: bool,
    /// Whether the remaining members must be queried.
    pub must_query: bool,
}

impl Membership {
    /// Applies a report of a pod.
    pub(super) fn apply(&mut self, pod: IpAddr, report: Report, now: Instant) -> Effect {
        let Report { group, change } = report;
        let none = Effect { has_changed: false, must_query: false };
        if !is_forwarded(group) {
            return none;
        }
        let Some(pods) = self.groups.get_mut(&group) else {
            let joins = change == Change::Joins && self.groups.len() < MAX_GROUPS;
            if joins {
                self.groups.insert(group, HashMap::from([(pod, now + MEMBERSHIP_TIMEOUT)]));
                self.expire_by(now + MEMBERSHIP_TIMEOUT);
            }
            return Effect { has_changed: joins, ..none };
        };
        match change {
            Change::Joins => {
                pods.insert(pod, now + MEMBERSHIP_TIMEOUT);
            }
            Change::Leaves => {
                pods.remove(&pod);
            }
            Change::MayBeLast => {
                for end in pods.values_mut() {
                    *end = (*end).min(now + LAST_MEMBER_TIMEOUT);
                }
            }
        }
        let has_changed = pods.is_empty();
        if has_changed {
            self.groups.remove(&group);
        }
        let must_query = change == Change::MayBeLast;
        if must_query {
            self.expire_by(now + LAST_MEMBER_TIMEOUT);
        }
        Effect { has_changed, must_query }
    }

    fn expire_by(&mut self, end: Instant) {
        self.next_expiry = Some(self.next_expiry.map_or(end, |next| next.min(end)));
    }

    /// Removes expired memberships. Returns whether a group was removed.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        if self.next_expiry.is_none_or(|next| next > now) {
            return false;
        }
        let before = self.groups.len();
        self.groups.retain(|_, pods| {
            pods.retain(|_, end| *end > now);
            !pods.is_empty()
        });
        self.next_expiry = self.groups.values().flat_map(HashMap::values).min().copied();
        self.groups.len() != before
    }

    pub(super) fn has(&self, group: IpAddr) -> bool {
        self.groups.contains_key(&group) || self.is_full()
    }

    /// Whether there are too many groups to list.
    pub(super) fn is_full(&self) -> bool {
        self.groups.len() >= MAX_GROUPS
    }

    pub(super) fn groups(&self) -> BTreeSet<IpAddr> {
        self.groups.keys().copied().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// When [`Self::expire`] has work to do next.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.next_expiry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn report(members: &mut Membership, pod: &str, change: Change, now: Instant) -> bool {
        members.apply(ip(pod), Report { group: ip("239.1.2.3"), change }, now).has_changed
    }

    #[test]
    fn group_exists_while_it_has_a_member() {
        let now = Instant::now();
        let mut members = Membership::default();
        assert!(report(&mut members, "10.0.0.2", Change::Joins, now));
        assert!(!report(&mut members, "10.0.0.3", Change::Joins, now));
        assert!(!report(&mut members, "10.0.0.2", Change::Leaves, now));
        assert!(members.has(ip("239.1.2.3")));
        assert!(report(&mut members, "10.0.0.3", Change::Leaves, now));
        assert!(!members.has(ip("239.1.2.3")));
        assert!(!report(&mut members, "10.0.0.3", Change::Leaves, now));
    }

    #[test]
    fn membership_without_reports_expires() {
        let now = Instant::now();
        let mut members = Membership::default();
        report(&mut members, "10.0.0.2", Change::Joins, now);
        assert_eq!(members.next_expiry(), Some(now + MEMBERSHIP_TIMEOUT));
        assert!(!members.expire(now + MEMBERSHIP_TIMEOUT / 2));
        report(&mut members, "10.0.0.2", Change::Joins, now + MEMBERSHIP_TIMEOUT / 2);
        assert!(!members.expire(now + MEMBERSHIP_TIMEOUT));
        assert!(members.expire(now + MEMBERSHIP_TIMEOUT * 2));
        assert_eq!(members.next_expiry(), None);
    }

    /// With IGMPv2 only one of several members answers a query, and it may be the one that leaves.
    #[test]
    fn other_members_can_report_after_a_leave() {
        let now = Instant::now();
        let mut members = Membership::default();
        report(&mut members, "10.0.0.2", Change::Joins, now);
        let left = Report { group: ip("239.1.2.3"), change: Change::MayBeLast };
        let effect = members.apply(ip("10.0.0.2"), left, now);
        assert_eq!(effect, Effect { has_changed: false, must_query: true });
        report(&mut members, "10.0.0.3", Change::Joins, now);
        assert!(!members.expire(now + LAST_MEMBER_TIMEOUT));
        members.apply(ip("10.0.0.3"), left, now);
        assert!(members.expire(now + LAST_MEMBER_TIMEOUT));
    }

    #[test]
    fn link_local_groups_are_ignored() {
        let mut members = Membership::default();
        for group in ["224.0.0.5", "ff02::1:ff00:1", "ff02::2"] {
            let report = Report { group: ip(group), change: Change::Joins };
            assert!(!members.apply(ip("10.0.0.2"), report, Instant::now()).has_changed, "{group}");
        }
    }

    #[test]
    fn too_many_groups_count_as_all() {
        let mut members = Membership::default();
        for n in 0..MAX_GROUPS as u32 + 1 {
            let group = std::net::Ipv4Addr::from(0xef00_0000 + n).into();
            let report = Report { group, change: Change::Joins };
            members.apply(ip("10.0.0.2"), report, Instant::now());
        }
        assert!(members.is_full() && members.has(ip("ff15::1")));
        assert_eq!(members.groups().len(), MAX_GROUPS);
    }
}
