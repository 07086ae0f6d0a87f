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
/// Where incoming packets go that just go on; of incoming ones the kernel takes no notice.
const PASS: Handle = Handle::new(1, 1);

/// Filters are tried by priority, and those of one priority are of one protocol.
const V4: u16 = 1;
const V6: u16 = 2;
const REST: u16 = 3;

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
        Subnets::Except(nets) => by_prefix(nets, Side::Source, Verdict::Class(HTB)),
        Subnets::Only(nets) => by_prefix(nets, Side::Source, Verdict::Class(CLASS)),
    }
}

/// The filters that send what comes from the container out of the ifb.
pub fn from_filters(ifb: IfIndex, subnets: &Subnets) -> Vec<Filter> {
    let redirect = Verdict::Redirect(ifb);
    let all = |priority| Filter { priority, packets: Match::All, verdict: redirect };
    match subnets {
        // With the Go plugin's priority.
        Subnets::All => vec![all(1)],
        Subnets::Except(nets) => {
            let mut filters = by_prefix(nets, Side::Destination, Verdict::Class(PASS));
            filters.push(all(REST));
            filters
        }
        Subnets::Only(nets) => by_prefix(nets, Side::Destination, redirect),
    }
}

/// The requests for those.
pub fn filters_from(link: IfIndex, place: Handle, ifb: IfIndex, subnets: &Subnets) -> Vec<Request> {
    from_filters(ifb, subnets).iter().map(|one| tc::add_filter(link, place, one)).collect()
}

/// Removes every filter that [`filters_from`] makes, whatever the subnets were.
pub fn removal_of_filters(link: IfIndex, place: Handle) -> Vec<Request> {
    let of = |family: &str| {
        let net: IpNet = family.parse().expect("a prefix");
        Match::Prefix(Side::Destination, net).protocol()
    };
    let all = Match::All.protocol();
    let kinds = [(V4, of("0.0.0.0/0")), (V6, of("::/0")), (REST, all), (1, all)];
    let remove = |(priority, protocol)| tc::remove_filters(link, place, priority, protocol);
    kinds.map(remove).to_vec()
}

fn by_prefix(nets: &[IpNet], side: Side, verdict: Verdict) -> Vec<Filter> {
    let filter = |net: &IpNet| Filter {
        priority: if net.addr().is_ipv4() { V4 } else { V6 },
        packets: Match::Prefix(side, *net),
        verdict,
    };
    nets.iter().map(filter).collect()
}
