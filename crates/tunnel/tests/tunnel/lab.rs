// SPDX-License-Identifier: Apache-2.0
//! Two nodes on one wire, a pod behind each.

use std::net::SocketAddr;

use kernel::Netns;
use testkit::Ns;
use tunnel::{Config, Peer, Tunnel};

pub const DEVICE: &str = "flannel0";
pub const PORT: u16 = 8285;
/// Of the wire, less the headers of the tunnel.
pub const MTU: usize = 1472;

/// A node: its number is the last part of its addresses.
#[derive(Debug)]
pub struct Node {
    pub ns: Ns,
    pub pod: Ns,
    number: u8,
}

/// Nodes 1 and 2, without tunnels.
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

/// The same with a tunnel of ours on each.
pub fn two() -> ([Node; 2], [Tunnel; 2]) {
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
        // A neighbour cannot be asked for while an address of the asker's is being tried out.
        let no_trial = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
            echo 0 > /proc/sys/net/ipv6/conf/all/accept_dad
            ip link set lo up";
        for place in [&ns, &pod] {
            place.exec("sh", &["-ec", no_trial]);
        }
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward
            echo 1 > /proc/sys/net/ipv6/conf/all/forwarding";
        ns.exec("sh", &["-ec", forward]);
        ns.connect("pod0", &pod, "eth0");
        let node = Node { ns, pod, number };
        for (place, last) in [(&node.ns, 1), (&node.pod, 2)] {
            let device = if last == 1 { "pod0" } else { "eth0" };
            ip(place, &format!("addr add 10.244.{number}.{last}/24 dev {device}"));
            ip(place, &format!("addr add fd44:{number}::{last}/64 dev {device} nodad"));
        }
        node.set_pod_mtu(MTU);
        ip(&node.pod, &format!("route add default via 10.244.{number}.1"));
        ip(&node.pod, &format!("-6 route add default via fd44:{number}::1"));
        node
    }

    pub fn ip(&self, args: &str) -> String {
        ip(&self.ns, args)
    }

    /// That of the tunnel, as flannel's plugin has it.
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

    /// A tunnel of ours here, and what the interface needs.
    pub fn start(&self) -> Tunnel {
        let tunnel = self.netns().enter(|| Tunnel::start(&self.config())).unwrap().unwrap();
        self.set_up_device();
        tunnel
    }

    /// As flannel does it.
    pub fn set_up_device(&self) {
        self.ip(&format!("link set {DEVICE} mtu {MTU} up"));
        self.ip(&format!("addr add 10.244.{}.0/32 dev {DEVICE}", self.number));
        self.ip(&format!("route add 10.244.0.0/16 dev {DEVICE}"));
        self.ip(&format!("-6 route add fd44::/16 dev {DEVICE}"));
    }

    /// What other nodes know of this one.
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

fn ip(place: &Ns, args: &str) -> String {
    place.ip(&args.split_whitespace().collect::<Vec<_>>())
}

/// One echo request with these arguments.
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
