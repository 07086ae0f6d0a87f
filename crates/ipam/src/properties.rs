// SPDX-License-Identifier: Apache-2.0
//! Property tests of ranges, sets and the choice of addresses.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::{Range, RangeConf, RangeSet, choose};

fn any_ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|n| Ipv4Addr::from_bits(n).into()),
        any::<u128>().prop_map(|n| Ipv6Addr::from_bits(n).into()),
        any::<u32>().prop_map(|n| Ipv4Addr::from_bits(n).to_ipv6_mapped().into()),
    ]
}

/// Any range that a configuration can contain. Most are invalid.
fn any_conf() -> impl Strategy<Value = RangeConf> {
    let subnet = (any_ip(), 0u8..=128, any::<bool>()).prop_map(|(ip, len, trunc)| {
        let max = if ip.is_ipv4() { 32 } else { 128 };
        let net = IpNet::new(ip, len.min(max)).unwrap();
        if trunc { net.trunc() } else { net }
    });
    let ips = (option::of(any_ip()), option::of(any_ip()), option::of(any_ip()));
    (subnet, ips).prop_map(|(subnet, (range_start, range_end, gateway))| RangeConf {
        subnet,
        range_start,
        range_end,
        gateway,
    })
}

/// One to three ranges of up to 64 addresses, each in its own subnet.
fn small_set() -> impl Strategy<Value = RangeSet> {
    let range = (0u32..64, 0u32..64, option::of(0u32..64));
    (any::<bool>(), vec(range, 1..4)).prop_map(|(v6, spans)| {
        let ranges = spans.into_iter().enumerate().map(|(i, (a, b, gateway))| {
            let at = |n: u32| -> IpAddr {
                let host = u32::try_from(i).unwrap() << 6 | n;
                match v6 {
                    false => Ipv4Addr::from_bits(0x0a00_0000 | host).into(),
                    true => Ipv6Addr::from_bits(0xfd << 120 | u128::from(host)).into(),
                }
            };
            let len = if v6 { 122 } else { 26 };
            let range_start = Some(at(a.min(b)));
            let range_end = Some(at(a.max(b)));
            let gateway = gateway.map(at);
            let subnet = IpNet::new(at(0), len).unwrap();
            Range::new(RangeConf { subnet, range_start, range_end, gateway }).unwrap()
        });
        RangeSet::new(ranges.collect()).unwrap()
    })
}

/// Returns every address of a small set without gateways, as the reference for comparisons.
fn usable(set: &RangeSet) -> HashSet<IpAddr> {
    let hosts = set.ranges().iter().flat_map(|r| {
        r.subnet().trunc().hosts().chain([r.subnet().network(), r.subnet().broadcast()])
    });
    let gateways: Vec<_> = set.ranges().iter().filter_map(Range::gateway).collect();
    hosts.filter(|ip| set.contains(*ip) && !gateways.contains(ip)).collect()
}

proptest! {
    #[test]
    fn parse_never_panics(text in "[0-9a-f:./]{0,45}", conf in any_conf()) {
        let subnet = text.parse().unwrap_or(conf.subnet);
        if let Ok(range) = Range::new(RangeConf { subnet, ..conf }) {
            prop_assert!(range.start() <= range.end());
            prop_assert!(range.subnet().contains(&range.start()));
            prop_assert!(range.subnet().contains(&range.end()));
            prop_assert!(range.contains(range.start()) && range.contains(range.end()));
            prop_assert!(range.overlaps(&range));
        }
    }

    #[test]
    fn candidates_are_inside_the_range(conf in any_conf(), last in option::of(any_ip())) {
        let subnet = conf.subnet.trunc();
        let Ok(range) = Range::new(RangeConf { range_start: None, range_end: None, subnet, ..conf })
        else { return Ok(()) };
        let set = RangeSet::new(vec![range]).unwrap();
        for ip in set.candidates(last).take(100) {
            prop_assert!(range.contains(ip) && subnet.contains(&ip));
            prop_assert_ne!(Some(ip), range.gateway());
        }
    }

    #[test]
    fn candidates_visit_every_address_once(set in small_set(), n in any::<prop::sample::Index>()) {
        let usable = usable(&set);
        let all: Vec<_> = usable.iter().copied().collect();
        let last = (!all.is_empty()).then(|| all[n.index(all.len())]);
        for last in [None, last] {
            let order: Vec<_> = set.candidates(last).collect();
            let visited: HashSet<_> = order.iter().copied().collect();
            prop_assert_eq!(order.len(), visited.len());
            prop_assert_eq!(&visited, &usable);
            prop_assert!(last.is_none() || order.last().copied() == last);
        }
    }

    /// In `steps`, `true` allocates an address and `false` releases the allocated one at that index.
    #[test]
    fn no_address_is_allocated_twice(
        set in small_set(),
        steps in vec((any::<bool>(), any::<prop::sample::Index>()), 0..200),
    ) {
        let usable = usable(&set);
        let (mut held, mut last) = (Vec::new(), None);
        for (allocate, n) in steps {
            if !allocate && !held.is_empty() {
                held.swap_remove(n.index(held.len()));
                continue;
            }
            let Some(ip) = choose(&set, last, |ip| held.contains(&ip)) else {
                prop_assert_eq!(held.len(), usable.len());
                continue;
            };
            prop_assert!(usable.contains(&ip) && !held.contains(&ip));
            held.push(ip);
            last = Some(ip);
        }
    }

    #[test]
    fn release_undoes_allocate(set in small_set(), n in any::<prop::sample::Index>()) {
        let mut taken = usable(&set);
        prop_assert_eq!(choose(&set, None, |ip| taken.contains(&ip)), None);
        let all: Vec<_> = taken.iter().copied().collect();
        if all.is_empty() { return Ok(()) }
        let freed = all[n.index(all.len())];
        taken.remove(&freed);
        prop_assert_eq!(choose(&set, Some(freed), |ip| taken.contains(&ip)), Some(freed));
    }
}
