// SPDX-License-Identifier: Apache-2.0
//! With the recorded leases of real flannel nodes, the kernel state is as flannel's was.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use kernel::{IfName, Netlink};
use overlay::Addresses;
use overlay::lease::Lease;
use overlay::netconf::NetConf;
use overlay::plan::{Network, Underlay};
use serde_json::Value;
use testkit::{Recorded, in_netns};

use super::node::{forwarding, ip, ip_json, is_unchanged, open};

/// Returns the address of the underlay interface.
fn address(recorded: &Recorded) -> IpAddr {
    let eth0 = recorded.lines("addr").iter().find(|line| line.starts_with("eth0")).unwrap();
    eth0.split(' ').find_map(|word| word.split('/').next()?.parse().ok()).unwrap()
}

fn network(recorded: &Recorded) -> Network {
    let address = address(recorded);
    let mut leases: BTreeMap<String, (u64, Lease)> = recorded
        .leases()
        .map(|(key, value)| (key.to_owned(), (0, Lease::parse(key, value.as_bytes()).unwrap())))
        .collect();
    let is_own = |lease: &Lease| lease.attributes.public.iter().any(|one| one == address);
    let own = leases.iter().find(|(_, (_, lease))| is_own(lease)).unwrap().0.clone();
    let (_, lease) = leases.remove(&own).unwrap();
    let name: IfName = "eth0".parse().unwrap();
    let link = kernel::link::by_name(&Netlink::open().unwrap(), name).unwrap().unwrap();
    let addresses = Addresses {
        v4: Some(address.to_string().parse().unwrap()),
        v6: Some("fd00:90::1".parse().unwrap()),
    };
    let on_link = HashMap::new();
    let underlay = Underlay { name, index: link.index, mtu: link.mtu, addresses, on_link };
    Network::new(NetConf::parse(recorded.conf()).unwrap(), lease, underlay, leases).unwrap()
}

/// Creates the state of the node before flannel started.
fn make_node(recorded: &Recorded) {
    ip("link add eth0 type veth peer name wire");
    ip("link set eth0 up");
    ip("link set wire up");
    ip(&format!("address add {}/24 dev eth0", address(recorded)));
    ip("address add fd00:90::1/64 dev eth0 nodad");
    ip("route add default via 192.168.90.254");
    ip("-6 route add default via fd00:90::fe");
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn shown_route(route: &Value) -> String {
    let dst = text(route, "dst");
    let is_v6 = dst.contains(':');
    let via = match text(route, "gateway") {
        "" => String::new(),
        gateway => format!(" via {gateway}"),
    };
    let has_onlink = route["flags"].as_array().unwrap().iter().any(|flag| flag == "onlink");
    let onlink = if has_onlink { " onlink" } else { "" };
    let (metric, rest) = if is_v6 { (" metric 1024", " pref medium") } else { ("", "") };
    format!("{dst}{via} dev {}{metric}{onlink}{rest}", text(route, "dev"))
}

fn check(recorded: &str) {
    let recorded = Recorded::read(recorded);
    make_node(&recorded);
    let mut reconciler = open();
    let outcome = reconciler.set_network(network(&recorded));
    assert_eq!(
        (&outcome.failures, &outcome.conflicts, &outcome.rejected),
        (&vec![], &vec![], &vec![])
    );

    let routes = [ip_json("-4 route show proto 112"), ip_json("-6 route show proto 112")].concat();
    assert_eq!(routes.iter().map(shown_route).collect::<BTreeSet<_>>(), recorded.routes());
    let neighbours =
        [ip_json("-4 neigh show nud permanent"), ip_json("-6 neigh show nud permanent")];
    let neighbours: BTreeSet<String> = neighbours
        .concat()
        .iter()
        .map(|one| {
            let (dst, dev, mac) = (text(one, "dst"), text(one, "dev"), text(one, "lladdr"));
            format!("{dst} dev {dev} lladdr {mac} permanent")
        })
        .collect();
    assert_eq!(neighbours, recorded.on_flannel("neigh", "permanent"));
    assert_eq!(BTreeSet::from_iter(forwarding()), recorded.on_flannel("fdb", "self permanent"));
    let mut addresses = BTreeSet::new();
    for device in
        ip_json("address show").iter().filter(|one| text(one, "ifname").starts_with("flannel"))
    {
        for address in device["addr_info"].as_array().unwrap() {
            let (local, len) = (text(address, "local"), &address["prefixlen"]);
            if !local.starts_with("fe80:") {
                addresses.insert(format!("{} {local}/{len}", text(device, "ifname")));
            }
        }
        assert_eq!(device["ifalias"], "podwire");
        let sysctl = format!("/proc/sys/net/ipv6/conf/{}/accept_ra", text(device, "ifname"));
        assert_eq!(std::fs::read_to_string(sysctl).unwrap().trim(), "0");
    }
    assert_eq!(addresses, recorded.addresses());
    check_links(&recorded);
    let again = reconciler.compare();
    assert!(is_unchanged(&again), "{again:?}");
}

/// Compares the devices with the recorded output of `ip`, except for offloads of the TUN device.
fn check_links(recorded: &Recorded) {
    let shown = ip("-d link show");
    let links: Vec<&str> = shown.lines().filter(|line| line.contains(": flannel")).collect();
    let heads = recorded.lines("link").iter().filter(|line| !line.starts_with(' ')).count();
    assert_eq!(links.len(), heads, "{shown}");
    for line in recorded.lines("link").iter().filter(|line| !line.contains("tun type")) {
        let line = line.trim();
        assert!(shown.contains(line), "{line:?} is not in\n{shown}");
    }
}

#[test]
fn vxlan_state_of_one_node_is_as_flannels() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check(include_str!("../../../../overlay/tests/overlay/recorded/vxlan-n1.txt"));
    });
}

#[test]
fn vxlan_state_of_the_other_node_is_as_flannels() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check(include_str!("../../../../overlay/tests/overlay/recorded/vxlan-n2.txt"));
    });
}

#[test]
fn vxlan_state_with_all_options_is_as_flannels() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check(include_str!("../../../../overlay/tests/overlay/recorded/vxlan-direct.txt"));
    });
}

#[test]
fn vxlan_state_of_both_families_is_as_flannels() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check(include_str!("../../../../overlay/tests/overlay/recorded/vxlan-dual.txt"));
    });
}

#[test]
fn host_gw_state_is_as_flannels() {
    in_netns(|| check(include_str!("../../../../overlay/tests/overlay/recorded/hostgw.txt")));
}

#[test]
fn udp_state_is_as_flannels() {
    in_netns(|| check(include_str!("../../../../overlay/tests/overlay/recorded/udp.txt")));
}
