// SPDX-License-Identifier: Apache-2.0
//! Tests against the real kernel, each in its own namespaces. `ip` and `bridge` verify what the
//! crate changes, and create what it reads.

#![expect(clippy::unwrap_used, reason = "a test panics when it fails")]

mod addr;
mod bridge_vlan;
mod conntrack;
mod events;
mod icmp_probe;
mod iptables_legacy;
mod link;
mod link_lifecycle;
mod multicast;
mod neigh;
mod netns;
mod nexthop;
mod nft;
mod nft_table;
mod packet;
mod route;
mod rule;
mod tc;
mod tun;
mod tunnel;
mod udp_gso;
mod wireguard;
mod xtables;

use std::net::IpAddr;

use ipnet::IpNet;
use kernel::{IfIndex, IfName, Netlink, Netns};
use serde_json::Value;
use testkit::Ns;

fn name(text: &str) -> IfName {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ip(args: &str) -> String {
    Ns::here().ip(&args.split_whitespace().collect::<Vec<_>>())
}

/// Returns the single object that `ip -d -j` shows.
fn ip_json(ns: &Ns, args: &str) -> Value {
    let shown = ns.ip_json(&args.split_whitespace().collect::<Vec<_>>());
    assert_eq!(shown.as_array().map(Vec::len), Some(1), "ip {args}: {shown}");
    shown[0].clone()
}

fn index_of(nl: &Netlink, link: &str) -> IfIndex {
    kernel::link::index_of(nl, name(link)).unwrap()
}

/// Creates the veth pair `a0` and `a1`, both up; `a0` has addresses.
fn pair_with_addresses() -> Netlink {
    ip("link add a0 type veth peer name a1");
    ip("link set a0 up");
    ip("link set a1 up");
    ip("addr add 10.1.2.3/24 dev a0");
    ip("addr add fd00::3/64 dev a0 nodad");
    Netlink::open().unwrap()
}

/// Creates a host with the bridge `br0`, which is up, and a pod.
fn host_and_pod() -> (Netlink, Netns, Ns) {
    ip("link add br0 type bridge");
    ip("link set br0 up");
    let pod = Ns::new("pod");
    (Netlink::open().unwrap(), Netns::open(pod.path()).unwrap(), pod)
}

fn has_flag(link: &Value, flag: &str) -> bool {
    link["flags"].as_array().unwrap().iter().any(|set| set == flag)
}
