// SPDX-License-Identifier: Apache-2.0
//! Two nodes on one link, with a pod behind each.

use std::net::SocketAddr;

use kernel::Netns;
use testkit::Ns;
use tunnel::{Config, Peer, Tunnel};

pub const DEVICE: &str = "flannel0";
pub const PORT: u16 = 8285;
/// MTU of the link without the headers of the tunnel.
pub const MTU: usize = 1472;

/// A node; its number is the last part of its addresses.
#[derive(Debug)]
pub struct Node {
    pub ns: Ns,
    pub pod: Ns,
    number: u8,
}

/// Creates nodes 1 and 2 without tunnels.
pub fn nodes() -> [Node; 2] {
    let [a, b] = [1, 2].map(Node::new);
    a.ns.connect("eth0", &b.ns, "eth0");
    for node in [&a, &b] {
        let n = node.number;
        node.ip(&format!("addr add 192.0.2.{n}/24 dev eth0"));
        node.ip(&format!("addr add 2001:db8::{n}/64 dev eth0 nodad"));
    }
    [a, b]
}

/// Creates two nodes with a tunnel each.
pub fn nodes_with_tunnels() -> ([Node; 2], [Tunnel; 2]) {
    let [a, b] = nodes();
    let tunnels = [a.start(), b.start()];
    assert_eq!(tunnels[0].set_peers(&b.peers()), []);
    assert_eq!(tunnels[1].set_peers(&a.peers()), []);
    ([a, b], tunnels)
}

impl Node {
    fn new(number: u8) -> Node {
        let ns = Ns::new(&format!("node-{number}"));
        let pod = Ns::new(&format!("pod-{number}"));
        // The kernel sends no neighbour solicitation while duplicate address detection is under
        // way.
        let disable_dad = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
            echo 0 > /proc/sys/net/ipv6/conf/all/accept_dad
            ip link set lo up";
        for ns in [&ns, &pod] {
            ns.exec("sh", &["-ec", disable_dad]);
        }
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward
            echo 1 > /proc/sys/net/ipv6/conf/all/forwarding";
        ns.exec("sh", &["-ec", forward]);
        ns.connect("pod0", &pod, "eth0");
        let node = Node { ns, pod, number };
        for (ns, last) in [(&node.ns, 1), (&node.pod, 2)] {
            let device = if last == 1 { "pod0" } else { "eth0" };
            ip(ns, &format!("addr add 10.244.{number}.{last}/24 dev {device}"));
            ip(ns, &format!("addr add fd44:{number}::{last}/64 dev {device} nodad"));
        }
        node.set_pod_mtu(MTU);
        ip(&node.pod, &format!("route add default via 10.244.{number}.1"));
        ip(&node.pod, &format!("-6 route add default via fd44:{number}::1"));
        node
    }

    pub fn ip(&self, args: &str) -> String {
        ip(&self.ns, args)
    }

    /// Sets the MTU of the pod's interface, as flannel's plugin does.
    pub fn set_pod_mtu(&self, mtu: usize) {
        ip(&self.ns, &format!("link set pod0 mtu {mtu}"));
        ip(&self.pod, &format!("link set eth0 mtu {mtu}"));
    }

    pub fn netns(&self) -> Netns {
        Netns::open(self.ns.path()).unwrap()
    }

    pub fn pod_netns(&self) -> Netns {
        Netns::open(self.pod.path()).unwrap()
    }

    pub fn config(&self) -> Config {
        let listen = SocketAddr::from(([192, 0, 2, self.number], PORT));
        Config { device: DEVICE.parse().unwrap(), listen, queues: 2 }
    }

    /// Starts a tunnel and configures its interface.
    pub fn start(&self) -> Tunnel {
        let tunnel = self.netns().enter(|| Tunnel::start(&self.config())).unwrap().unwrap();
        self.set_up_device();
        tunnel
    }

    /// Configures the interface as flannel does.
    pub fn set_up_device(&self) {
        self.ip(&format!("link set {DEVICE} mtu {MTU} up"));
        self.ip(&format!("addr add 10.244.{}.0/32 dev {DEVICE}", self.number));
        self.ip(&format!("route add 10.244.0.0/16 dev {DEVICE}"));
        self.ip(&format!("-6 route add fd44::/16 dev {DEVICE}"));
    }

    /// Returns this node as a peer of other nodes.
    pub fn peers(&self) -> [Peer; 2] {
        let n = self.number;
        let via = self.config().listen;
        [format!("10.244.{n}.0/24"), format!("fd44:{n}::/64")]
            .map(|prefix| Peer { prefix: prefix.parse().unwrap(), via })
    }

    pub fn pod_v4(&self) -> String {
        format!("10.244.{}.2", self.number)
    }

    pub fn pod_v6(&self) -> String {
        format!("fd44:{}::2", self.number)
    }
}

fn ip(ns: &Ns, args: &str) -> String {
    ns.ip(&args.split_whitespace().collect::<Vec<_>>())
}

/// Sends one echo request with these arguments.
pub fn ping(from: &Ns, args: &str) -> Result<String, String> {
    let args: Vec<&str> =
        ["-n", "-c", "1", "-W", "5"].into_iter().chain(args.split_whitespace()).collect();
    from.try_exec("ping", &args)
}

/// Pings with payloads of these sizes.
#[track_caller]
pub fn ping_sizes(from: &Ns, to: &str, sizes: &[usize]) {
    for size in sizes {
        if let Err(why) = ping(from, &format!("-s {size} {to}")) {
            panic!("{size} bytes to {to}: {why}");
        }
    }
}
