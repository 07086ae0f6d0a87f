// SPDX-License-Identifier: Apache-2.0
//! The kernel requests for the limits. Pure functions, shared by ADD, CHECK and STATUS.
//!
//! Packets to the container are queued at the root of the host end. If the limit does not apply to
//! all subnets, the root is an `htb` with one class for the limited packets; other packets pass
//! without a class. Packets from the container arrive at the host end, where they cannot be queued:
//! filters redirect them to an ifb with its own queue. Filters let packets pass that the limit does
//! not apply to.

use ipnet::IpNet;
use kernel::tc::{self, Filter, Handle, Match, Qdisc, Side, Verdict};
use kernel::{IfIndex, Netlink, Request};

use super::conf::{Limit, Subnets};

/// The handle of a `tbf` at the root. An `htb` has another one, so that each replaces the other.
pub(super) const TBF: Handle = Handle::new(1, 0);
pub(super) const HTB: Handle = Handle::new(2, 0);
/// The class of the `htb` with the limit.
pub(super) const CLASS: Handle = Handle::new(2, 1);
/// The queue of that class.
const QUEUE: Handle = Handle::new(0x10, 0);
/// The class of packets that are not limited. The kernel ignores it; it identifies the plugin's
/// filters.
const PASS: Handle = Handle::new(0xb3d, 1);

/// Priorities of filters. The filters of one priority must have the same protocol.
const V4: u16 = 1;
const V6: u16 = 2;
const REST: u16 = 3;

/// Offset of the priorities. In a `clsact` of another program the filters come after that
/// program's: packets that went through an ifb are not filtered again and would bypass a policy.
fn base_priority(parent: Handle) -> u16 {
    if parent == Handle::CLSACT_INGRESS { 0xb300 } else { 0 }
}

/// Requests for one batch.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Removals of objects that usually do not exist; their errors are ignored.
    pub clear: Vec<Request>,
    pub make: Vec<Request>,
}

impl Plan {
    pub(super) fn apply(self, nl: &Netlink) -> kernel::Result<()> {
        let cleared = self.clear.len();
        let results = nl.apply_each(self.clear.into_iter().chain(self.make));
        results.into_iter().skip(cleared).collect()
    }
}

/// Limits packets to the container.
pub(super) fn limit_ingress(plan: &mut Plan, link: IfIndex, limit: &Limit, subnets: &Subnets) {
    let Limit { bucket, queue } = *limit;
    if *subnets == Subnets::All {
        plan.make.push(tc::replace_qdisc(link, Handle::ROOT, TBF, &Qdisc::Tbf(bucket, queue)));
        return;
    }
    // The kernel cannot change an existing `htb`.
    plan.clear.push(tc::remove_qdisc(link, Handle::ROOT));
    plan.make.extend([
        tc::replace_qdisc(link, Handle::ROOT, HTB, &Qdisc::Htb(default_class(subnets))),
        tc::replace_class(link, HTB, CLASS, bucket),
        tc::replace_qdisc(link, CLASS, QUEUE, &Qdisc::Bfifo(queue)),
    ]);
    plan.make.extend(ingress_filters(subnets).iter().map(|one| tc::add_filter(link, HTB, one)));
}

/// The class of packets that no filter matches.
pub(super) fn default_class(subnets: &Subnets) -> u16 {
    match subnets {
        Subnets::All | Subnets::Except(_) => 1,
        Subnets::Only(_) => 0,
    }
}

/// The filters of the `htb` for packets to the container.
pub(super) fn ingress_filters(subnets: &Subnets) -> Vec<Filter> {
    match subnets {
        Subnets::All => Vec::new(),
        // The handle of the qdisc itself means: pass without a class.
        Subnets::Except(nets) => by_prefix(0, nets, Side::Source, Verdict::Class(HTB)),
        Subnets::Only(nets) => by_prefix(0, nets, Side::Source, Verdict::Class(CLASS)),
    }
}

/// The filters that redirect packets from the container to the ifb.
pub(super) fn egress_filters(parent: Handle, ifb: IfIndex, subnets: &Subnets) -> Vec<Filter> {
    let redirect = Verdict::Redirect(ifb);
    let base = base_priority(parent);
    let all = |number| Filter { priority: base + number, packets: Match::All, verdict: redirect };
    match subnets {
        // The same priority as in the Go plugin.
        Subnets::All => vec![all(1)],
        Subnets::Except(nets) => {
            let mut filters = by_prefix(base, nets, Side::Destination, Verdict::Class(PASS));
            filters.push(all(REST));
            filters
        }
        Subnets::Only(nets) => by_prefix(base, nets, Side::Destination, redirect),
    }
}

/// The requests that add the filters of [`egress_filters`].
pub(super) fn egress_requests(
    link: IfIndex,
    parent: Handle,
    ifb: IfIndex,
    subnets: &Subnets,
) -> Vec<Request> {
    let filters = egress_filters(parent, ifb, subnets);
    filters.iter().map(|filter| tc::add_filter(link, parent, filter)).collect()
}

/// Removes the filters of [`egress_requests`] to this ifb or to one that no longer exists. Filters
/// of other programs are kept.
pub(super) fn filter_removals(
    link: IfIndex,
    parent: Handle,
    ifb: Option<IfIndex>,
    found: &[Filter],
) -> Vec<Request> {
    let is_own = |filter: &Filter| match filter.verdict {
        Verdict::Redirect(to) => to == IfIndex(0) || Some(to) == ifb,
        Verdict::Class(class) => class == PASS,
    };
    let key = |filter: &Filter| (filter.priority, filter.packets.protocol());
    let mut keys: Vec<(u16, u16)> = found.iter().filter(|one| is_own(one)).map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    // A removal affects all filters of a priority.
    keys.retain(|at| found.iter().all(|one| key(one) != *at || is_own(one)));
    let remove = |(priority, protocol)| tc::remove_filters(link, parent, priority, protocol);
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
    fn foreign_filters_are_kept() {
        let (link, ifb, parent) = (IfIndex(7), IfIndex(9), Handle::INGRESS_QDISC);
        let subnets = Subnets::Except(vec!["10.0.0.0/8".parse().unwrap()]);
        let mut found = egress_filters(parent, ifb, &subnets);
        let count = |found: &[Filter], ifb| filter_removals(link, parent, ifb, found).len();
        assert_eq!(count(&found, Some(ifb)), 2);
        assert_eq!(count(&found, Some(IfIndex(8))), 1, "redirected to another ifb");
        assert_eq!(count(&egress_filters(parent, IfIndex(0), &subnets), None), 2);
        found.push(Filter { verdict: Verdict::Class(Handle::new(1, 7)), ..found[0] });
        assert_eq!(count(&found, Some(ifb)), 1, "a foreign filter of the same priority");
    }

    #[test]
    fn filters_come_after_those_of_a_clsact() {
        let filters = egress_filters(Handle::CLSACT_INGRESS, IfIndex(9), &Subnets::All);
        assert_eq!(filters[0].priority, 0xb301);
    }
}
