// SPDX-License-Identifier: Apache-2.0
//! From limits to requests of the kernel: pure, and the same for ADD, CHECK and STATUS.
//!
//! What the container receives is queued at the root of the host end. Where some subnets do not count, an
//! `htb` there has one class with the limit, and lets the rest pass without a class. What the container
//! sends comes in at the host end, where it cannot be queued: filters send it out of an ifb with a queue
//! of its own, and leave alone what does not count.

use ipnet::IpNet;
use kernel::tc::{self, Filter, Handle, Match, Qdisc, Side, Verdict};
use kernel::{IfIndex, Netlink, Request};

use super::conf::{Limit, Subnets};

/// The token bucket at a root. An `htb` there has another name, so that either replaces the other.
pub const TBF: Handle = Handle::new(1, 0);
pub const HTB: Handle = Handle::new(2, 0);
/// Its class with the limit.
pub const CLASS: Handle = Handle::new(2, 1);
/// The queue of that class.
const QUEUE: Handle = Handle::new(0x10, 0);
/// The class of incoming packets that just go on. The kernel takes no notice of it; it marks our filters.
const PASS: Handle = Handle::new(0xb3d, 1);

/// Filters are tried by priority, and those of one priority are of one protocol.
const V4: u16 = 1;
const V6: u16 = 2;
const REST: u16 = 3;

/// What comes before those numbers. In a place that others have made, ours come behind theirs: what has
/// been through an ifb is not looked at again, and would pass by a policy.
fn base(place: Handle) -> u16 {
    if place == Handle::CLSACT_INGRESS { 0xb300 } else { 0 }
}

/// Requests for one batch.
#[derive(Debug, Default)]
pub struct Plan {
    /// What may be in the way. Most often it is not, and the refusal does not matter.
    pub clear: Vec<Request>,
    /// What is wanted.
    pub make: Vec<Request>,
}

impl Plan {
    pub fn apply(self, nl: &Netlink) -> kernel::Result<()> {
        let in_the_way = self.clear.len();
        let results = nl.apply_each(self.clear.into_iter().chain(self.make));
        results.into_iter().skip(in_the_way).collect()
    }
}

/// Limits what goes to the container.
pub fn towards(plan: &mut Plan, link: IfIndex, limit: &Limit, subnets: &Subnets) {
    let Limit { bucket, queue } = *limit;
    if *subnets == Subnets::All {
        plan.make.push(tc::replace_qdisc(link, Handle::ROOT, TBF, &Qdisc::Tbf(bucket, queue)));
        return;
    }
    // An `htb` cannot be changed.
    plan.clear.push(tc::remove_qdisc(link, Handle::ROOT));
    plan.make.extend([
        tc::replace_qdisc(link, Handle::ROOT, HTB, &Qdisc::Htb(default_class(subnets))),
        tc::replace_class(link, HTB, CLASS, bucket),
        tc::replace_qdisc(link, CLASS, QUEUE, &Qdisc::Bfifo(queue)),
    ]);
    plan.make.extend(towards_filters(subnets).iter().map(|one| tc::add_filter(link, HTB, one)));
}

/// The class of what no filter claims.
pub fn default_class(subnets: &Subnets) -> u16 {
    match subnets {
        Subnets::All | Subnets::Except(_) => 1,
        Subnets::Only(_) => 0,
    }
}

/// The filters of an `htb`.
pub fn towards_filters(subnets: &Subnets) -> Vec<Filter> {
    match subnets {
        Subnets::All => Vec::new(),
        // The name of the discipline itself stands for passing without a class.
        Subnets::Except(nets) => by_prefix(0, nets, Side::Source, Verdict::Class(HTB)),
        Subnets::Only(nets) => by_prefix(0, nets, Side::Source, Verdict::Class(CLASS)),
    }
}

/// The filters that send what comes from the container out of the ifb.
pub fn from_filters(place: Handle, ifb: IfIndex, subnets: &Subnets) -> Vec<Filter> {
    let redirect = Verdict::Redirect(ifb);
    let base = base(place);
    let all = |number| Filter { priority: base + number, packets: Match::All, verdict: redirect };
    match subnets {
        // The Go plugin's number.
        Subnets::All => vec![all(1)],
        Subnets::Except(nets) => {
            let mut filters = by_prefix(base, nets, Side::Destination, Verdict::Class(PASS));
            filters.push(all(REST));
            filters
        }
        Subnets::Only(nets) => by_prefix(base, nets, Side::Destination, redirect),
    }
}

/// The requests for those.
pub fn filters_from(link: IfIndex, place: Handle, ifb: IfIndex, subnets: &Subnets) -> Vec<Request> {
    let filters = from_filters(place, ifb, subnets);
    filters.iter().map(|filter| tc::add_filter(link, place, filter)).collect()
}

/// Removes what [`filters_from`] made, to this ifb or to one that is gone; filters of others stay.
pub fn removal_of_filters(
    link: IfIndex,
    place: Handle,
    ifb: Option<IfIndex>,
    found: &[Filter],
) -> Vec<Request> {
    let is_ours = |filter: &Filter| match filter.verdict {
        Verdict::Redirect(to) => to == IfIndex(0) || Some(to) == ifb,
        Verdict::Class(class) => class == PASS,
    };
    let key = |filter: &Filter| (filter.priority, filter.packets.protocol());
    let mut keys: Vec<(u16, u16)> = found.iter().filter(|one| is_ours(one)).map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    // All of a priority go at once.
    keys.retain(|at| found.iter().all(|one| key(one) != *at || is_ours(one)));
    let remove = |(priority, protocol)| tc::remove_filters(link, place, priority, protocol);
    keys.into_iter().map(remove).collect()
}

fn by_prefix(base: u16, nets: &[IpNet], side: Side, verdict: Verdict) -> Vec<Filter> {
    let filter = |net: &IpNet| Filter {
        priority: base + if net.addr().is_ipv4() { V4 } else { V6 },
        packets: Match::Prefix(side, *net),
        verdict,
    };
    nets.iter().map(filter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_of_others_stay() {
        let (link, ifb, place) = (IfIndex(7), IfIndex(9), Handle::INGRESS_QDISC);
        let subnets = Subnets::Except(vec!["10.0.0.0/8".parse().unwrap()]);
        let mut found = from_filters(place, ifb, &subnets);
        let count = |found: &[Filter], ifb| removal_of_filters(link, place, ifb, found).len();
        assert_eq!(count(&found, Some(ifb)), 2);
        assert_eq!(count(&found, Some(IfIndex(8))), 1, "another's redirection");
        assert_eq!(count(&from_filters(place, IfIndex(0), &subnets), None), 2);
        found.push(Filter { verdict: Verdict::Class(Handle::new(1, 7)), ..found[0] });
        assert_eq!(count(&found, Some(ifb)), 1, "another's of the same priority");
    }

    #[test]
    fn policies_of_others_come_first() {
        let filters = from_filters(Handle::CLSACT_INGRESS, IfIndex(9), &Subnets::All);
        assert_eq!(filters[0].priority, 0xb301);
    }
}
