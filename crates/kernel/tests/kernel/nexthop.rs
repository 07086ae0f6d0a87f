// SPDX-License-Identifier: Apache-2.0
//! Next hop objects, routes that use them, and thousands of peers.

use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::IpNet;
use kernel::fdb::{self, Fdb};
use kernel::link::{self, Kind, NewLink, Vxlan};
use kernel::neigh::{self, Neigh};
use kernel::nexthop::{self, Nexthop, NexthopFilter};
use kernel::route::{self, Route, RouteFilter};
use kernel::{Family, IfIndex, MacAddr, Netlink, Request};
use serde_json::json;
use testkit::{Ns, in_netns};

use crate::{addr, index_of, ip, ip_json, name, net, pair_with_addresses};

const PROTOCOL: u8 = 97;

fn by_protocol() -> NexthopFilter {
    NexthopFilter { protocol: Some(PROTOCOL), ..NexthopFilter::default() }
}

#[test]
fn next_hops_are_added_listed_and_removed() {
    in_netns(|| {
        let nl = pair_with_addresses();
        let (a0, a1) = (index_of(&nl, "a0"), index_of(&nl, "a1"));
        ip("nexthop add id 1 via 10.1.2.1 dev a0 protocol 98");
        ip("nexthop add id 2 group 1");
        let onlink = Nexthop::onlink(7, addr("10.5.94.0"), a0, PROTOCOL);
        let six = Nexthop { onlink: false, ..Nexthop::onlink(8, addr("fd00::9"), a0, PROTOCOL) };
        let dev = Nexthop::dev(9, Family::V4, a1, PROTOCOL);
        nl.apply([&onlink, &six, &dev].map(nexthop::add)).unwrap();
        let shown = ip_json(&Ns::here(), "nexthop show id 7");
        assert_eq!((&shown["gateway"], &shown["dev"]), (&json!("10.5.94.0"), &json!("a0")));
        assert_eq!((&shown["flags"], &shown["protocol"]), (&json!(["onlink"]), &json!("97")));
        let shown = ip_json(&Ns::here(), "nexthop show id 8");
        assert_eq!((&shown["gateway"], &shown["flags"]), (&json!("fd00::9"), &json!([])));
        assert_eq!(ip_json(&Ns::here(), "nexthop show id 9")["dev"], "a1");
        assert!(nl.apply([nexthop::add(&onlink)]).unwrap_err().already_exists());

        assert_eq!(nexthop::list(&nl, by_protocol()).unwrap(), [onlink, six, dev]);
        let on_a1 = NexthopFilter { oif: Some(a1), ..by_protocol() };
        assert_eq!(nexthop::list(&nl, on_a1).unwrap(), [dev]);
        let all = nexthop::list(&nl, NexthopFilter::default()).unwrap();
        assert_eq!(all.iter().map(|nexthop| nexthop.id).collect::<Vec<_>>(), [1, 7, 8, 9]);
        let missing = NexthopFilter { oif: Some(IfIndex(9999)), ..by_protocol() };
        assert_eq!(nexthop::list(&nl, missing).unwrap(), []);

        nl.apply([7, 8, 9].map(nexthop::remove)).unwrap();
        assert_eq!(nexthop::list(&nl, by_protocol()).unwrap(), []);
        assert!(nl.apply([nexthop::remove(7)]).unwrap_err().is_not_found());
        assert_eq!(ip("nexthop show").lines().count(), 2, "next hops of other protocols stay");
    });
}

#[test]
fn routes_follow_their_next_hop() {
    in_netns(|| {
        let nl = pair_with_addresses();
        let a0 = index_of(&nl, "a0");
        let hop = Nexthop::onlink(7, addr("10.5.94.0"), a0, PROTOCOL);
        let six = Nexthop::onlink(8, addr("fd00::9"), a0, PROTOCOL);
        let route = Route {
            protocol: PROTOCOL,
            priority: Some(5),
            src: Some(addr("10.1.2.3")),
            mtu: Some(1400),
            ..Route::new(net("10.5.94.0/24")).via_nexthop(7)
        };
        let over_six =
            Route { protocol: PROTOCOL, ..Route::new(net("10.5.95.0/24")).via_nexthop(8) };
        let route6 = Route { protocol: PROTOCOL, ..Route::new(net("fd05::/64")).via_nexthop(8) };
        nl.apply([nexthop::add(&hop), nexthop::add(&six)]).unwrap();
        nl.apply([&route, &over_six, &route6].map(route::replace)).unwrap();
        let shown = ip_json(&Ns::here(), "route show 10.5.94.0/24");
        assert_eq!((&shown["nhid"], &shown["gateway"]), (&json!(7), &json!("10.5.94.0")));
        assert_eq!((&shown["metric"], &shown["protocol"]), (&json!(5), &json!("97")));
        assert_eq!((&shown["prefsrc"], &shown["scope"]), (&json!("10.1.2.3"), &json!("global")));
        assert_eq!(shown["metrics"][0]["mtu"], 1400);
        assert_eq!(ip_json(&Ns::here(), "route show 10.5.95.0/24")["via"]["host"], "fd00::9");
        assert_eq!(ip_json(&Ns::here(), "-6 route show fd05::/64")["nhid"], 8);

        let table = Some(route::TABLE_MAIN);
        let mine = RouteFilter { table, protocol: Some(PROTOCOL), ..RouteFilter::default() };
        let observed = route::list(&nl, mine).unwrap();
        assert_eq!(observed.len(), 3);
        let expected = Route {
            scope: Some(route::SCOPE_UNIVERSE),
            gateway: hop.gateway,
            oif: Some(a0),
            onlink: true,
            ..route.clone()
        };
        assert!(observed.contains(&expected), "{observed:?}");

        nl.apply([nexthop::replace(&Nexthop { gateway: Some(addr("10.5.94.9")), ..hop })]).unwrap();
        let shown = ip_json(&Ns::here(), "route show 10.5.94.0/24");
        assert_eq!(shown["gateway"], "10.5.94.9");
        nl.apply([route::remove(&route)]).unwrap();
        assert_eq!(ip("route show 10.5.94.0/24"), "");
        nl.apply([nexthop::remove(8)]).unwrap();
        assert_eq!(route::list(&nl, mine).unwrap(), [], "the kernel removes its routes too");
    });
}

/// Returns the requests for one peer of a VXLAN network, in the order that the kernel requires.
fn peer(vxlan: IfIndex, n: u32) -> [Request; 4] {
    let base = Ipv4Addr::from_bits(0x0a80_0000 + n * 256);
    let public = Ipv4Addr::from_bits(0xac10_0000 + n + 1);
    let [_, a, b, c] = n.to_be_bytes();
    let mac = MacAddr([2, 0, 0, a, b, c]);
    let subnet = IpNet::new(base.into(), 24).unwrap();
    let route = Route { protocol: PROTOCOL, ..Route::new(subnet).via_nexthop(n + 1) };
    [
        neigh::replace(&Neigh::permanent(vxlan, base.into(), mac)),
        fdb::replace(&Fdb::vxlan(vxlan, mac, public.into())),
        nexthop::replace(&Nexthop::onlink(n + 1, base.into(), vxlan, PROTOCOL)),
        route::replace(&route),
    ]
}

/// Returns the CPU time of this thread, which includes the kernel's work for it but not the time
/// that other threads or locks take.
fn cpu_time() -> Duration {
    const TICKS_PER_SECOND: u64 = 100; // USER_HZ
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // Fields 14 and 15 of proc_pid_stat(5); the second field is in parentheses.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap());
    Duration::from_millis(ticks.sum::<u64>() * 1000 / TICKS_PER_SECOND)
}

/// Programs this many peers and returns the CPU time, including that for building the messages.
fn program(nl: &Netlink, peers: u32) -> Duration {
    let vxlan = NewLink { up: true, ..NewLink::new(name("vx0"), Kind::Vxlan(Vxlan::new(1))) };
    nl.apply([link::create(&vxlan)]).unwrap();
    let vx0 = index_of(nl, "vx0");
    let start = cpu_time();
    nl.apply((0..peers).flat_map(|n| peer(vx0, n))).unwrap();
    let took = cpu_time() - start;
    let count = usize::try_from(peers).unwrap();
    assert_eq!(ip("route show proto 97").lines().count(), count);
    assert_eq!(ip("nexthop show protocol 97").lines().count(), count);
    assert_eq!(ip("neigh show dev vx0 nud permanent").lines().count(), count);
    let entries = testkit::run("bridge", &["fdb", "show", "dev", "vx0"]);
    assert_eq!(entries.lines().count(), count);

    let start = cpu_time();
    let filter = RouteFilter {
        family: Some(Family::V4),
        protocol: Some(PROTOCOL),
        ..RouteFilter::default()
    };
    assert_eq!(route::list(nl, filter).unwrap().len(), count);
    assert_eq!(nexthop::list(nl, by_protocol()).unwrap().len(), count);
    assert_eq!(neigh::list(nl, Family::V4, Some(vx0)).unwrap().len(), count);
    assert_eq!(fdb::list(nl, vx0).unwrap().len(), count);
    println!("{peers} peers: {took:?} to program, {:?} to read back", cpu_time() - start);
    nl.apply([link::remove(vx0)]).unwrap();
    took
}

#[test]
fn programming_peers_takes_linear_time() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let nl = Netlink::open().unwrap();
        // Far above the time without compiler optimisation, far below the time if the kernel
        // compared each next hop with all others.
        assert!(program(&nl, 1000) < Duration::from_secs(1));
        assert!(program(&nl, 5000) < Duration::from_secs(5));
    });
}
