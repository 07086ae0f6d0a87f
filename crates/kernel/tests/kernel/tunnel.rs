// SPDX-License-Identifier: Apache-2.0
//! VXLAN and IPIP links.

use std::net::{IpAddr, Ipv4Addr};

use kernel::link::{self, Detail, Ipip, Kind, NewLink, Vxlan};
use kernel::route::{self, Route};
use kernel::{MacAddr, Netlink, Netns};
use serde_json::{Value, json};
use testkit::{Ns, in_netns};

use crate::{has_flag, index_of, ip, ip_json, name};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const HERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Creates the link `under0` with addresses of both families.
fn underlay() -> Netlink {
    ip("link add under0 type veth peer name under1");
    ip("link set under0 up");
    ip("link set under1 up");
    ip("addr add 192.0.2.1/24 dev under0");
    ip("addr add fd00::1/64 dev under0 nodad");
    Netlink::open().unwrap()
}

fn check_shown(shown: &Value, expected: &[(&str, Value)]) {
    for (key, value) in expected {
        assert_eq!(&shown[key], value, "{key} of {shown}");
    }
}

fn detail(nl: &Netlink, link: &str) -> Detail {
    link::by_name(nl, name(link)).unwrap().unwrap().detail
}

#[test]
fn vxlan_is_created_as_by_flannel() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let nl = underlay();
        let vxlan = Vxlan {
            link: Some(index_of(&nl, "under0")),
            local: Some(HERE.into()),
            ..Vxlan::new(1)
        };
        let new = NewLink {
            mac: Some(MAC),
            mtu: Some(1450),
            up: true,
            ..NewLink::new(name("flannel.1"), Kind::Vxlan(vxlan))
        };
        nl.apply([link::create(&new)]).unwrap();
        // The same attributes as on real flannel nodes, apart from name and ID.
        ip("link add reference type vxlan id 2 dev under0 local 192.0.2.1 dstport 8472 nolearning");
        let mut shown = ip_json(&Ns::here(), "link show flannel.1");
        let mut reference =
            ip_json(&Ns::here(), "link show reference")["linkinfo"]["info_data"].clone();
        reference["id"] = json!(1);
        assert_eq!(shown["linkinfo"]["info_data"].take(), reference);
        assert_eq!((&shown["mtu"], &shown["address"]), (&json!(1450), &json!("02:00:00:00:00:01")));
        assert!(has_flag(&shown, "UP"));
        assert_eq!(detail(&nl, "flannel.1"), Detail::Vxlan(vxlan));
        assert_eq!(detail(&nl, "reference"), Detail::Vxlan(Vxlan { id: 2, ..vxlan }));

        let other = MacAddr([2, 0, 0, 0, 0, 2]);
        let change =
            link::Attributes { mac: Some(other), mtu: Some(1400), ..link::Attributes::default() };
        nl.apply([link::set_attributes(name("flannel.1"), &change)]).unwrap();
        let observed = link::by_name(&nl, name("flannel.1")).unwrap().unwrap();
        assert_eq!((observed.mac, observed.mtu), (Some(other), 1400));
    });
}

#[test]
fn all_vxlan_attributes_are_set_and_read() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let nl = underlay();
        let link = Some(index_of(&nl, "under0"));
        let all = Vxlan {
            link,
            local: Some(HERE.into()),
            group: Some("192.0.2.9".parse().unwrap()),
            port: 4789,
            learning: true,
            gbp: true,
            ttl: 9,
            checksum: false,
            ..Vxlan::new(7)
        };
        let six: IpAddr = "fd00::1".parse().unwrap();
        let plain6 = Vxlan { link, local: Some(six), ..Vxlan::new(7) };
        let bare6 = Vxlan { checksum: false, port: 4790, ..plain6 };
        let links = [("four", all), ("six", plain6), ("bare", bare6)];
        let links =
            links.map(|(id, vxlan)| (id, vxlan, NewLink::new(name(id), Kind::Vxlan(vxlan))));
        nl.apply(links.each_ref().map(|(_, _, new)| link::create(new))).unwrap();
        for (id, vxlan, _) in &links {
            assert_eq!(detail(&nl, id), Detail::Vxlan(*vxlan));
        }
        let shown = |id: &str| {
            ip_json(&Ns::here(), &format!("link show {id}"))["linkinfo"]["info_data"].clone()
        };
        check_shown(
            &shown("four"),
            &[
                ("id", json!(7)),
                ("link", json!("under0")),
                ("local", json!("192.0.2.1")),
                ("remote", json!("192.0.2.9")),
                ("port", json!(4789)),
                ("learning", json!(true)),
                ("gbp", json!(true)),
                ("ttl", json!(9)),
                ("udp_csum", json!(false)),
            ],
        );
        check_shown(&shown("six"), &[("local6", json!("fd00::1")), ("port", json!(8472))]);
        check_shown(
            &shown("bare"),
            &[("udp_zero_csum6_tx", json!(true)), ("udp_zero_csum6_rx", json!(true))],
        );
    });
}

#[test]
fn vxlan_is_changed_in_place() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let nl = underlay();
        ip("link add other0 type veth peer name other1");
        ip("link add x type vxlan id 1 dev under0 local 192.0.2.1 dstport 4789 gbp nolearning");
        let (index, other) = (index_of(&nl, "x"), index_of(&nl, "other0"));
        let Detail::Vxlan(before) = detail(&nl, "x") else { panic!() };
        let local = Some("192.0.2.9".parse().unwrap());
        let desired = Vxlan { link: Some(other), local, learning: true, ..before };
        nl.apply([link::set_vxlan(index, &desired)]).unwrap();
        assert_eq!(detail(&nl, "x"), Detail::Vxlan(desired));
        let shown = ip_json(&Ns::here(), "link show x");
        let expected =
            [("link", json!("other0")), ("local", json!("192.0.2.9")), ("port", json!(4789))];
        check_shown(&shown["linkinfo"]["info_data"], &expected);
        assert_eq!(index_of(&nl, "x"), index);
    });
}

#[test]
fn vm_ipip_is_changed_in_place() {
    in_netns(|| {
        testkit::not_run_unless!(Link("ipip"));
        let nl = underlay();
        nl.apply([link::create(&NewLink::new(name("x"), Kind::Ipip(Ipip::new(HERE))))]).unwrap();
        let there = Ipv4Addr::new(192, 0, 2, 9);
        nl.apply([link::set_ipip(name("x"), &Ipip::new(there))]).unwrap();
        assert_eq!(detail(&nl, "x"), Detail::Ipip(Ipip::new(there)));
        assert_eq!(
            ip_json(&Ns::here(), "link show x")["linkinfo"]["info_data"]["local"],
            "192.0.2.9"
        );
    });
}

#[test]
fn vm_all_ipip_attributes_are_set_and_read() {
    in_netns(|| {
        testkit::not_run_unless!(Link("ipip"));
        let nl = underlay();
        let ipip = Ipip::new(HERE);
        let all = Ipip {
            link: Some(index_of(&nl, "under0")),
            remote: Some(Ipv4Addr::new(192, 0, 2, 9)),
            ttl: 9,
            ..ipip
        };
        let fragmenting =
            Ipip { remote: Some(Ipv4Addr::new(192, 0, 2, 8)), pmtudisc: false, ..ipip };
        let links = [("flannel.ipip", ipip), ("full", all), ("fragmenting", fragmenting)];
        for (id, ipip) in links {
            let new = NewLink { mtu: Some(1480), ..NewLink::new(name(id), Kind::Ipip(ipip)) };
            nl.apply([link::create(&new)]).unwrap();
            assert_eq!(detail(&nl, id), Detail::Ipip(ipip), "{id}");
        }
        let shown = |id: &str| ip_json(&Ns::here(), &format!("link show {id}"));
        let link = shown("flannel.ipip");
        assert_eq!((&link["mtu"], &link["linkinfo"]["info_kind"]), (&json!(1480), &json!("ipip")));
        let expected = [
            ("local", json!("192.0.2.1")),
            ("remote", json!("any")),
            ("ttl", json!(0)),
            ("pmtudisc", json!(true)),
        ];
        check_shown(&link["linkinfo"]["info_data"], &expected);
        let expected =
            [("link", json!("under0")), ("remote", json!("192.0.2.9")), ("ttl", json!(9))];
        check_shown(&shown("full")["linkinfo"]["info_data"], &expected);
        check_shown(&shown("fragmenting")["linkinfo"]["info_data"], &[("pmtudisc", json!(false))]);
        ip("link add reference type ipip local 192.0.2.2 remote any");
        let reference = Ipip { local: Some(Ipv4Addr::new(192, 0, 2, 2)), ..ipip };
        assert_eq!(detail(&nl, "reference"), Detail::Ipip(reference));
    });
}

/// Configures one of two nodes, with the subnets 10.5.`this`.0/24 and 10.5.`other`.0/24.
fn ipip_node(ns: &Ns, this: u8, other: u8) {
    ns.ip(&["addr", "add", &format!("192.0.2.{this}/24"), "dev", "under"]);
    let nl = Netns::open(ns.path()).unwrap().netlink().unwrap();
    let kind = Kind::Ipip(Ipip::new(Ipv4Addr::new(192, 0, 2, this)));
    nl.apply([link::create(&NewLink { up: true, ..NewLink::new(name("tunnel"), kind) })]).unwrap();
    let tunnel = index_of(&nl, "tunnel");
    let own = format!("10.5.{this}.1/32").parse().unwrap();
    let subnet = format!("10.5.{other}.0/24").parse().unwrap();
    let peer = IpAddr::from([192, 0, 2, other]);
    let to_peer = Route { onlink: true, ..Route::new(subnet).via(peer).dev(tunnel) };
    nl.apply([
        kernel::addr::add(tunnel, own, kernel::addr::AddrOptions::default()),
        route::replace(&to_peer),
    ])
    .unwrap();
}

#[test]
fn vm_ipip_sends_to_the_gateway_of_the_route() {
    in_netns(|| {
        testkit::not_run_unless!(Link("ipip"));
        let (a, b) = (Ns::new("a"), Ns::new("b"));
        a.connect("under", &b, "under");
        ipip_node(&a, 1, 2);
        ipip_node(&b, 2, 1);
        testkit::ping(&a, IpAddr::from([10, 5, 2, 1]));
    });
}
