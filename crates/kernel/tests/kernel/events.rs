// SPDX-License-Identifier: Apache-2.0
//! Events of changes made by `ip`.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use kernel::events::{Event, Events, Object, Topic};
use kernel::neigh::{self, Neigh};
use kernel::{Family, MacAddr, Netlink, Received};
use testkit::in_netns;

use crate::{addr, index_of, ip, name};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

/// Waits for an event that matches, and panics after the deadline.
#[track_caller]
fn expect(events: &mut Events, what: &str, matches: impl Fn(&Event) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut seen = Vec::new();
    loop {
        match events.receive(deadline, |event| seen.push(event)).unwrap() {
            Received::Events if seen.iter().any(&matches) => return,
            Received::Events => {}
            other => panic!("{other:?} instead of {what}; seen: {seen:#?}"),
        }
    }
}

/// Runs `ip` and waits for the event of its change.
fn expect_after(
    ip_args: &str,
    events: &mut Events,
    is_removal: bool,
    matches: impl Fn(&Object) -> bool,
) {
    ip(ip_args);
    expect(events, ip_args, |event| event.is_removal == is_removal && matches(&event.object));
}

#[test]
fn each_kind_of_change_has_an_event() {
    in_netns(|| {
        ip("link add br0 type bridge");
        let mut events = Events::listen(&Topic::ALL).unwrap();
        let events = &mut events;
        let is_link = |object: &Object| matches!(object, Object::Link(l) if l.name == name("a0"));
        expect_after("link add a0 type veth peer name a1", events, false, is_link);
        ip("link set a1 up");
        expect_after(
            "link set a0 up mtu 1400",
            events,
            false,
            |object| matches!(object, Object::Link(link) if link.is_up() && link.mtu == 1400),
        );
        let is_addr = |object: &Object| matches!(object, Object::Addr(observed) if observed.prefix.addr() == addr("10.1.2.3"));
        expect_after("addr add 10.1.2.3/24 dev a0", events, false, is_addr);
        let is_addr6 = |object: &Object| matches!(object, Object::Addr(observed) if observed.prefix.addr() == addr("fd00::3"));
        expect_after("addr add fd00::3/64 dev a0 nodad", events, false, is_addr6);
        let is_route = |object: &Object| matches!(object, Object::Route(observed) if observed.gateway == Some(addr("10.1.2.1")));
        expect_after("route add 10.5.0.0/16 via 10.1.2.1", events, false, is_route);
        expect_after("route del 10.5.0.0/16", events, true, is_route);
        let is_route6 = |object: &Object| matches!(object, Object::Route(observed) if observed.gateway == Some(addr("fd00::1")));
        expect_after("-6 route add fd05::/64 via fd00::1", events, false, is_route6);
        let is_neigh = |object: &Object| matches!(object, Object::Neigh(n) if n.mac == Some(MAC));
        let neigh = "10.1.2.9 lladdr 02:00:00:00:00:09 dev a0";
        expect_after(&format!("neigh add {neigh} nud permanent"), events, false, is_neigh);
        ip("neigh del 10.1.2.9 dev a0");
        expect(
            events,
            "removal",
            |event| matches!(&event.object, Object::Neigh(n) if event.is_removal && n.ip == addr("10.1.2.9")),
        );
        let is_hop = |object: &Object| matches!(object, Object::Nexthop(hop) if hop.id == 7);
        expect_after("nexthop add id 7 via 10.1.2.1 dev a0", events, false, is_hop);
        expect_after("nexthop del id 7", events, true, is_hop);
        expect_after("addr del 10.1.2.3/24 dev a0", events, true, is_addr);
        expect_after("link del a0", events, true, is_link);
    });
}

#[test]
fn forwarding_entry_event_is_not_a_neighbour() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        ip("link add vx0 type vxlan id 7 local 192.0.2.1 dstport 4789");
        let mut events = Events::listen(&[Topic::Neighs]).unwrap();
        for (verb, is_removal) in [("add", false), ("del", true)] {
            let entry = ["02:00:00:00:00:09", "dev", "vx0", "dst", "192.0.2.7"];
            testkit::run("bridge", &[&["fdb", verb][..], &entry].concat());
            expect(&mut events, verb, |event| {
                let is_entry = |object: &Object| matches!(object, Object::Fdb(fdb) if fdb.dst == Some(addr("192.0.2.7")));
                event.is_removal == is_removal && is_entry(&event.object)
            });
        }
    });
}

#[test]
fn port_that_leaves_its_bridge_is_not_removed() {
    in_netns(|| {
        ip("link add br0 type bridge");
        ip("link add a0 type veth peer name a1");
        ip("link set a0 master br0");
        let mut events = Events::listen(&[Topic::Links]).unwrap();
        ip("link set a0 nomaster");
        ip("link set a1 mtu 1300");
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut seen: Vec<Event> = Vec::new();
        let is_last =
            |event: &Event| matches!(&event.object, Object::Link(link) if link.mtu == 1300);
        while !seen.iter().any(is_last) {
            let received = events.receive(deadline, |event| seen.push(event)).unwrap();
            assert_eq!(received, Received::Events);
        }
        assert!(seen.iter().all(|event| !event.is_removal), "{seen:#?}");
    });
}

#[test]
fn overrun_is_reported_once_and_events_resume() {
    in_netns(|| {
        ip("link add a0 type veth peer name a1");
        ip("link set a0 up");
        let nl = Netlink::open().unwrap();
        let a0 = index_of(&nl, "a0");
        let mut events = Events::listen(&[Topic::Neighs]).unwrap();
        let one = |n: u32| Neigh::permanent(a0, Ipv4Addr::from_bits(0x0a80_0000 + n).into(), MAC);
        for _ in 0..10 {
            nl.apply((0..1000).map(|n| neigh::replace(&one(n)))).unwrap();
            nl.apply((0..1000).map(|n| neigh::remove(&one(n)))).unwrap();
        }
        let now = Instant::now();
        assert_eq!(events.receive(now, |_| ()).unwrap(), Received::Overrun);
        // The state is read now; every later change has an event.
        assert_eq!(neigh::list(&nl, Family::V4, Some(a0)).unwrap(), []);
        nl.apply([neigh::replace(&one(1))]).unwrap();
        expect(&mut events, "change after the overrun", |event| {
            event.object == Object::Neigh(one(1))
        });
        assert_eq!(events.receive(now, |_| ()).unwrap(), Received::Deadline);
    });
}
