// SPDX-License-Identifier: Apache-2.0
//! Hearing of changes that `ip` makes.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use kernel::events::{Event, Events, Object, Topic};
use kernel::neigh::{self, Neigh};
use kernel::{Family, MacAddr, Netlink, Received};
use testkit::in_netns;

use crate::{addr, index_of, ip, name};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

/// Waits for an event that is wanted, and fails if there is none.
#[track_caller]
fn expect(events: &mut Events, what: &str, wanted: impl Fn(&Event) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut seen = Vec::new();
    loop {
        match events.receive(deadline, |event| seen.push(event)).unwrap() {
            Received::Events if seen.iter().any(&wanted) => return,
            Received::Events => {}
            other => panic!("{other:?} instead of {what}; seen: {seen:#?}"),
        }
    }
}

fn on_link(ip_args: &str, events: &mut Events, is_removal: bool, is_it: impl Fn(&Object) -> bool) {
    ip(ip_args);
    expect(events, ip_args, |event| event.is_removal == is_removal && is_it(&event.object));
}

#[test]
fn each_kind_of_change_is_told() {
    in_netns(|| {
        ip("link add br0 type bridge");
        let mut events = Events::listen(&Topic::ALL).unwrap();
        let events = &mut events;
        let is_link = |object: &Object| matches!(object, Object::Link(l) if l.name == name("a0"));
        on_link("link add a0 type veth peer name a1", events, false, is_link);
        ip("link set a1 up");
        on_link(
            "link set a0 up mtu 1400",
            events,
            false,
            |object| matches!(object, Object::Link(link) if link.is_up() && link.mtu == 1400),
        );
        let is_addr = |object: &Object| matches!(object, Object::Addr(found) if found.prefix.addr() == addr("10.1.2.3"));
        on_link("addr add 10.1.2.3/24 dev a0", events, false, is_addr);
        let is_addr6 = |object: &Object| matches!(object, Object::Addr(found) if found.prefix.addr() == addr("fd00::3"));
        on_link("addr add fd00::3/64 dev a0 nodad", events, false, is_addr6);
        let is_route = |object: &Object| matches!(object, Object::Route(found) if found.gateway == Some(addr("10.1.2.1")));
        on_link("route add 10.5.0.0/16 via 10.1.2.1", events, false, is_route);
        on_link("route del 10.5.0.0/16", events, true, is_route);
        let is_route6 = |object: &Object| matches!(object, Object::Route(found) if found.gateway == Some(addr("fd00::1")));
        on_link("-6 route add fd05::/64 via fd00::1", events, false, is_route6);
        let is_neigh = |object: &Object| matches!(object, Object::Neigh(n) if n.mac == Some(MAC));
        let neigh = "10.1.2.9 lladdr 02:00:00:00:00:09 dev a0";
        on_link(&format!("neigh add {neigh} nud permanent"), events, false, is_neigh);
        ip("neigh del 10.1.2.9 dev a0");
        expect(
            events,
            "removal",
            |event| matches!(&event.object, Object::Neigh(n) if event.is_removal && n.ip == addr("10.1.2.9")),
        );
        let is_hop = |object: &Object| matches!(object, Object::Nexthop(hop) if hop.id == 7);
        on_link("nexthop add id 7 via 10.1.2.1 dev a0", events, false, is_hop);
        on_link("nexthop del id 7", events, true, is_hop);
        on_link("addr del 10.1.2.3/24 dev a0", events, true, is_addr);
        on_link("link del a0", events, true, is_link);
    });
}

#[test]
fn forwarding_entries_are_told_from_neighbours() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        ip("link add vx0 type vxlan id 7 local 192.0.2.1 dstport 4789");
        let mut events = Events::listen(&[Topic::Neighs]).unwrap();
        for (verb, is_removal) in [("add", false), ("del", true)] {
            let entry = ["02:00:00:00:00:09", "dev", "vx0", "dst", "192.0.2.7"];
            testkit::run("bridge", &[&["fdb", verb][..], &entry].concat());
            expect(&mut events, verb, |event| {
                let it = |object: &Object| matches!(object, Object::Fdb(fdb) if fdb.dst == Some(addr("192.0.2.7")));
                event.is_removal == is_removal && it(&event.object)
            });
        }
    });
}

#[test]
fn a_port_that_leaves_its_bridge_is_not_removed() {
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
fn lost_events_are_told_once_and_none_after_that_is_lost() {
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
        // From here on the state is read, and every change after that is told.
        assert_eq!(neigh::list(&nl, Family::V4, Some(a0)).unwrap(), []);
        nl.apply([neigh::replace(&one(1))]).unwrap();
        expect(&mut events, "the change after", |event| event.object == Object::Neigh(one(1)));
        assert_eq!(events.receive(now, |_| ()).unwrap(), Received::Deadline);
    });
}
