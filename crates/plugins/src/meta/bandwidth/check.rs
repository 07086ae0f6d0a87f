// SPDX-License-Identifier: Apache-2.0
//! CHECK: both limits exist with the configured values, made by this plugin or by the Go plugin.

use cni::{Error, Request};
use kernel::link::Link;
use kernel::tc::{self, Bucket, Filter, Handle, ObservedBucket};
use kernel::{IfIndex, Netlink};

use super::conf::{Bandwidth, Limit, Subnets};
use super::{existing_parent, host_end, ifb, shape};
use crate::attach::{netns, prev_result};
use crate::error::Context;

pub(super) fn check(request: &Request) -> Result<(), Error> {
    let bandwidth = Bandwidth::parse(request)?;
    let result = prev_result::required(request, "must be called as a chained plugin")?;
    if bandwidth.limits_nothing() {
        return Ok(());
    }
    let ns = netns::open(request)?;
    let host = Netlink::open().context("open a netlink socket")?;
    let end = host_end::find(&host, &ns, request, &result)?;
    if let Some(limit) = &bandwidth.ingress {
        check_ingress(&host, &end, limit, &bandwidth.subnets)?;
    }
    if let Some(limit) = &bandwidth.egress {
        check_egress(request, &host, &end, limit, &bandwidth.subnets)?;
    }
    Ok(())
}

fn check_ingress(
    host: &Netlink,
    end: &Link,
    limit: &Limit,
    subnets: &Subnets,
) -> Result<(), Error> {
    if *subnets == Subnets::All {
        return check_tbf(host, end, limit);
    }
    let name = end.name;
    let root = root_of(host, end.index)?;
    if root.as_ref().and_then(|root| root.default) != Some(shape::default_class(subnets).into()) {
        return Err(Error::internal(format!("{name} has no htb for its subnets at its root")));
    }
    let class = tc::class_by_handle(host, end.index, shape::CLASS).context("look for a class")?;
    check_bucket(end, class, limit.bucket)?;
    let queue = tc::qdisc_at(host, end.index, shape::CLASS).context("look for a queue")?;
    check_queue(end, queue.and_then(|queue| queue.limit), limit)?;
    check_filters(host, end, shape::HTB, &shape::ingress_filters(subnets))
}

fn check_egress(
    request: &Request,
    host: &Netlink,
    end: &Link,
    limit: &Limit,
    subnets: &Subnets,
) -> Result<(), Error> {
    let found = ifb::find(host, request).context("look for an interface")?;
    let ifb = found.ok_or_else(|| {
        let name = ifb::go_name(&request.network, &request.container_id);
        Error::internal(format!("get ifb device: interface {name} does not exist"))
    })?;
    if !ifb.is_up() {
        return Err(Error::internal(format!("interface {} is down", ifb.name)));
    }
    check_tbf(host, &ifb, limit)?;
    let parent = existing_parent(host, end.index)?.unwrap_or(Handle::INGRESS_QDISC);
    check_filters(host, end, parent, &shape::egress_filters(parent, ifb.index, subnets))
}

fn root_of(host: &Netlink, link: IfIndex) -> Result<Option<tc::ObservedQdisc>, Error> {
    tc::qdisc_at(host, link, Handle::ROOT).context("look for a queueing discipline")
}

fn check_tbf(host: &Netlink, link: &Link, limit: &Limit) -> Result<(), Error> {
    let root = root_of(host, link.index)?.filter(|root| root.kind == "tbf");
    let Some(root) = root else {
        return Err(Error::internal(format!("{} has no tbf at its root", link.name)));
    };
    check_bucket(link, root.bucket, limit.bucket)?;
    check_queue(link, root.limit, limit)
}

fn check_bucket(link: &Link, found: Option<ObservedBucket>, expected: Bucket) -> Result<(), Error> {
    let name = link.name;
    let Some(found) = found else {
        return Err(Error::internal(format!("{name} has no class with the limit")));
    };
    if found.rate != expected.rate {
        let (found, rate) = (found.rate, expected.rate);
        return Err(Error::internal(format!("{name} has rate {found} bytes/s, expected {rate}")));
    }
    if !is_near(found, expected) && found.ticks != go_ticks(expected) {
        let msg = format!("{name} has another burst than {} bytes", expected.burst);
        return Err(Error::internal(msg));
    }
    Ok(())
}

/// Compares the time to fill the bucket. The kernel stores it in 32 bits, and computes it in whole
/// microseconds or with a 32-bit multiplication, so that it may differ slightly.
fn is_near(found: ObservedBucket, expected: Bucket) -> bool {
    let exact = u128::from(expected.burst) * 1_000_000_000 / 64 / u128::from(expected.rate.max(1));
    // For a class, the kernel limits the value to the size of the field.
    if exact > u128::from(u32::MAX) && found.ticks == u32::MAX {
        return true;
    }
    let difference = (exact as u32).wrapping_sub(found.ticks).cast_signed().unsigned_abs();
    u128::from(difference) <= 16 + exact / 100_000
}

/// The value of the Go plugin, which lets numbers above 32 bits overflow twice.
fn go_ticks(bucket: Bucket) -> u32 {
    let micros = f64::from(bucket.burst) * 1e6 / bucket.rate as f64;
    let ticks = f64::from(micros as i64 as u32) * 15.625;
    ticks as i64 as u32
}

fn check_queue(link: &Link, found: Option<u32>, limit: &Limit) -> Result<(), Error> {
    let latency_bytes = limit.bucket.rate as f64 * 0.025;
    let go_queue = (latency_bytes as i64 as u32).wrapping_add(limit.bucket.burst);
    let is_by_go = limit.queue == u32::MAX && found == Some(go_queue);
    if found == Some(limit.queue) || is_by_go {
        return Ok(());
    }
    let found = found.map_or("none".to_owned(), |found| format!("of {found} bytes"));
    let (name, expected) = (link.name, limit.queue);
    Err(Error::internal(format!("{name} has a queue {found}, expected {expected} bytes")))
}

fn check_filters(
    host: &Netlink,
    link: &Link,
    parent: Handle,
    expected: &[Filter],
) -> Result<(), Error> {
    let found = tc::filters_of(host, link.index, parent).context("list filters")?;
    let missing = expected.iter().find(|filter| !found.contains(filter));
    missing.map_or(Ok(()), |filter| {
        let (name, packets) = (link.name, shown(filter));
        Err(Error::internal(format!("{name} has no filter for {packets} at {parent}")))
    })
}

fn shown(filter: &Filter) -> String {
    match filter.packets {
        tc::Match::All => "all packets".to_owned(),
        tc::Match::Prefix(tc::Side::Source, net) => format!("packets from {net}"),
        tc::Match::Prefix(tc::Side::Destination, net) => format!("packets to {net}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_matches_kernel_and_go_values() {
        let check = |rate, burst, ticks, expected| {
            let found = ObservedBucket { rate, ticks };
            let bucket = Bucket { rate, burst };
            let is_match = is_near(found, bucket) || go_ticks(bucket) == ticks;
            assert_eq!(is_match, expected, "{rate} {burst} {ticks}");
        };
        check(2_500_000, 32_768, 204_796, true);
        check(2_500_000, 32_768, 204_900, false);
        // 2147 s: the kernel keeps the lower 32 bits of the ticks, and the Go plugin sets others.
        let exact = 268_435_455_u64 * 1_000_000_000 / 64 / 125_000;
        check(125_000, 268_435_455, exact as u32, true);
        check(125_000, 268_435_455, (exact as u32).wrapping_add(1000), true);
        check(125_000, 268_435_455, u32::MAX, true);
        check(125_000, 268_435_455, 0x1234_5678, false);
        let micros = (268_435_455_u64 * 1_000_000 / 125_000) as u32;
        check(125_000, 268_435_455, (f64::from(micros) * 15.625) as i64 as u32, true);
    }
}
