// SPDX-License-Identifier: Apache-2.0
//! A node in the test's namespace, with two pods on a bridge, a pod of another node behind a link
//! that stands for the tunnel, and a host outside the network.

use std::net::IpAddr;
use std::time::Duration;

use testkit::{Daemon, Ns, run, wait_some};

pub const POD: &str = "10.5.1.2";
pub const OTHER: &str = "10.5.1.3";
pub const REMOTE: &str = "10.5.2.2";
pub const WORLD: &str = "192.0.2.2";
/// Addresses of the node: on the uplink, and on the tunnel.
pub const NODE: &str = "192.0.2.1";
pub const TUNNEL: &str = "10.5.1.0";

pub const POD6: &str = "fd05:0:0:1::2";
pub const OTHER6: &str = "fd05:0:0:1::3";
pub const REMOTE6: &str = "fd05:0:0:2::2";
pub const WORLD6: &str = "2001:db8::2";
pub const NODE6: &str = "2001:db8::1";
pub const TUNNEL6: &str = "fd05:0:0:1::";

pub struct Lab {
    pub node: Ns,
    pub pod: Ns,
    pub other: Ns,
    pub remote: Ns,
    pub world: Ns,
    _servers: Vec<Daemon>,
}

impl Lab {
    pub fn new() -> Self {
        let node = Ns::here();
        let [pod, other, remote, world] = ["pod", "other", "remote", "world"].map(Ns::new);
        ip(&node, "link add cni0 type bridge");
        ip(&node, "link set cni0 up");
        address(&node, "cni0", "10.5.1.1/24", "fd05:0:0:1::1/64");
        for (ns, link, v4, v6) in [(&pod, "veth1", POD, POD6), (&other, "veth2", OTHER, OTHER6)] {
            node.connect(link, ns, "eth0");
            ip(&node, &format!("link set {link} master cni0"));
            address(ns, "eth0", &format!("{v4}/24"), &format!("{v6}/64"));
            gateway(ns, "10.5.1.1", "fd05:0:0:1::1");
        }
        node.connect("tunnel", &remote, "eth0");
        address(&node, "tunnel", "10.5.1.0/32", "fd05:0:0:1::/128");
        ip(&node, "route add 10.5.2.0/24 dev tunnel");
        ip(&node, "-6 route add fd05:0:0:2::/64 dev tunnel");
        address(&remote, "eth0", "10.5.2.2/24", "fd05:0:0:2::2/64");
        ip(&remote, "route add 10.5.1.0/24 via 10.5.1.0 dev eth0 onlink");
        ip(&remote, "-6 route add fd05:0:0:1::/64 via fd05:0:0:1:: dev eth0 onlink");
        node.connect("uplink", &world, "eth0");
        address(&node, "uplink", "192.0.2.1/24", "2001:db8::1/64");
        address(&world, "eth0", "192.0.2.2/24", "2001:db8::2/64");
        gateway(&world, NODE, NODE6);
        let servers = [&pod, &other, &remote, &world].into_iter().flat_map(serve).collect();
        Self { node, pod, other, remote, world, _servers: servers }
    }
}

fn ip(ns: &Ns, words: &str) {
    ns.ip(&words.split_whitespace().collect::<Vec<_>>());
}

fn address(ns: &Ns, link: &str, v4: &str, v6: &str) {
    ip(ns, "link set lo up");
    ip(ns, &format!("addr add {v4} dev {link}"));
    ip(ns, &format!("-6 addr add {v6} dev {link} nodad"));
}

fn gateway(ns: &Ns, v4: &str, v6: &str) {
    ip(ns, &format!("route add default via {v4}"));
    ip(ns, &format!("-6 route add default via {v6}"));
}

/// A server that returns the address of its client.
fn serve(ns: &Ns) -> [Daemon; 2] {
    ["TCP4-LISTEN:7,fork,reuseaddr", "TCP6-LISTEN:7,fork,reuseaddr,ipv6only=1"]
        .map(|listen| ns.start("socat", &[listen, "SYSTEM:echo $SOCAT_PEERADDR"]))
}

/// Returns the address of `from` that `to` sees in a TCP connection; `None` without an answer.
pub fn seen(from: &Ns, to: &str) -> Option<String> {
    let address: IpAddr = to.parse().unwrap();
    let to = match address {
        IpAddr::V4(v4) => format!("TCP4:{v4}:7,connect-timeout=1"),
        IpAddr::V6(v6) => format!("TCP6:[{v6}]:7,connect-timeout=1"),
    };
    let answer = from.try_exec("socat", &["-u", &to, "-"]).ok()?;
    let answer = answer.trim().trim_start_matches('[').trim_end_matches(']');
    answer.parse::<IpAddr>().ok().map(|address| address.to_string())
}

/// Like [`seen`], but waits for an answer, because servers need a moment to start.
#[track_caller]
pub fn check(from: &Ns, to: &str, expected: &str) {
    let found = wait_some(Duration::from_secs(30), || seen(from, to));
    assert_eq!(found.as_deref(), Some(expected), "to {to}\n{}", run("nft", &["list", "ruleset"]));
}
