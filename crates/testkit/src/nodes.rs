// SPDX-License-Identifier: Apache-2.0
//! Nodes on one wire, each with a pod: what a node agent is tried on. The wire is a bridge in the
//! test's own namespace, which is the router too, and where servers for all nodes listen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::ns::Ns;

/// Forwards, and uses addresses at once.
const PREPARE: &str = "
echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
echo 0 > /proc/sys/net/ipv6/conf/all/accept_dad
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
";

/// All that an agent keeps of devices, addresses, routes and the like, in the words of `ip` and
/// `bridge`, without numbers that the kernel or the agent gives as they come.
const STATE: &str = "
ip -o -d link show | grep ': flannel' | sed 's/^[0-9]*: //'
ip -o address show | grep ' flannel' | grep -v 'scope link' | sed 's/^[0-9]*: //'
ip -4 route show proto 112 | sed 's/nhid [0-9]* //'
ip -6 route show proto 112 | sed 's/nhid [0-9]* //'
ip nexthop show proto 112 | sed 's/^id [0-9]* //'
ip neigh show nud permanent | grep ' flannel'
ip -6 neigh show nud permanent | grep ' flannel'
bridge fdb show | grep ' flannel' | grep ' dst '
true
";

/// The bridge between nodes, with 192.168.90.254 and fd00:90::fe.
#[derive(Debug)]
pub struct Wire(());

impl Wire {
    /// Where servers for all nodes listen.
    pub const HOST: &str = "192.168.90.254";

    /// Only inside [`in_netns`](crate::in_netns()).
    #[track_caller]
    pub fn new() -> Wire {
        sh(&Ns::here(), PREPARE);
        sh(
            &Ns::here(),
            // With an address of its own: else it has that of a port, and another when that one goes.
            "ip link add wire address 02:00:00:00:90:fe type bridge
            ip link set wire up
            ip address add 192.168.90.254/24 dev wire
            ip address add fd00:90::fe/64 dev wire nodad
            mkdir -p /run/lab",
        );
        Wire(())
    }

    /// A node on it, with these of `192.168.90.<number>/24` and `fd00:90::<number>/64`.
    #[track_caller]
    pub fn node(&self, number: u8, has_v4: bool, has_v6: bool) -> Node {
        let node = Node::new(number, &format!("port-{number}"));
        sh(&Ns::here(), &format!("ip link set port-{number} master wire"));
        node.address(&format!("192.168.90.{number}/24"), "192.168.90.254", has_v4);
        node.address(&format!("fd00:90::{number}/64"), "fd00:90::fe", has_v6);
        node
    }

    /// A node behind the router, with `192.168.<number>.1/24`.
    #[track_caller]
    pub fn far_node(&self, number: u8) -> Node {
        let port = format!("port-{number}");
        let node = Node::new(number, &port);
        Ns::here().ip(&["address", "add", &format!("192.168.{number}.254/24"), "dev", &port]);
        node.address(&format!("192.168.{number}.1/24"), &format!("192.168.{number}.254"), true);
        node
    }
}

impl Default for Wire {
    fn default() -> Self {
        Self::new()
    }
}

/// A machine of the network.
#[derive(Debug)]
pub struct Node {
    /// Its namespace.
    pub ns: Ns,
    number: u8,
    dir: PathBuf,
}

impl Node {
    #[track_caller]
    fn new(number: u8, port: &str) -> Node {
        let ns = Ns::new(&format!("node-{number}"));
        sh(&ns, PREPARE);
        ns.ip(&["link", "set", "lo", "up"]);
        ns.connect("eth0", &Ns::here(), port);
        let dir = PathBuf::from(format!("/run/lab/node-{number}"));
        fs::create_dir_all(&dir).expect("a test may write below /run");
        Node { ns, number, dir }
    }

    #[track_caller]
    fn address(&self, address: &str, router: &str, has_it: bool) {
        if !has_it {
            return;
        }
        let words: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
        self.ns.ip(&[&["address", "add", address, "dev", "eth0"], words].concat());
        self.ns.ip(&["route", "add", "default", "via", router]);
    }

    /// Which one.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Where its agent keeps files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Flags of an agent on it, but for the store.
    pub fn flags(&self) -> Vec<String> {
        let below = |name: &str| self.dir.join(name).display().to_string();
        let pairs = [
            ("--node-name", format!("node-{}", self.number)),
            ("--iface", "eth0".to_owned()),
            ("--subnet-file", below("subnet.env")),
            ("--state-dir", below("state")),
            ("--run-dir", below("run")),
        ];
        pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
    }

    /// subnet.env by key; empty where there is none.
    pub fn subnet_env(&self) -> BTreeMap<String, String> {
        let text = fs::read_to_string(self.dir.join("subnet.env")).unwrap_or_default();
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// Commands of a shell, which stops at the first that fails.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        sh(&self.ns, script)
    }

    /// What is in the kernel for the network, a line each.
    #[track_caller]
    pub fn kernel(&self) -> BTreeSet<String> {
        let text = self.ns.exec("sh", &["-c", STATE]);
        text.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// A pod, on a bridge with the first address of each subnet that subnet.env tells.
    #[track_caller]
    pub fn pod(&self) -> Pod {
        let env = self.subnet_env();
        let gateways: Vec<&String> = ["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"]
            .iter()
            .filter_map(|key| env.get(*key))
            .collect();
        let ns = Ns::new(&format!("pod-{}", self.number));
        let mtu = &env["FLANNEL_MTU"];
        sh(&ns, PREPARE);
        self.sh("ip link add cni0 type bridge; ip link set cni0 up");
        self.ns.connect("veth0", &ns, "eth0");
        self.sh(&format!("ip link set veth0 mtu {mtu} master cni0"));
        ns.ip(&["link", "set", "lo", "up"]);
        ns.ip(&["link", "set", "eth0", "mtu", mtu]);
        let mut addresses = Vec::new();
        for gateway in gateways {
            let (via, length) = gateway.split_once('/').expect("a subnet has a length");
            let own = format!("{}2", via.strip_suffix('1').expect("a gateway is the first"));
            let nodad = if own.contains(':') { "nodad" } else { "" };
            self.sh(&format!("ip address add {gateway} dev cni0 {nodad}"));
            sh(&ns, &format!("ip address add {own}/{length} dev eth0 {nodad}"));
            ns.ip(&["route", "add", "default", "via", via]);
            addresses.push(own.parse().expect("an address"));
        }
        Pod { ns, addresses }
    }
}

/// A pod, with its addresses of IPv4 and IPv6 in this order.
#[derive(Debug)]
pub struct Pod {
    /// Its namespace.
    pub ns: Ns,
    /// One a family.
    pub addresses: Vec<IpAddr>,
}

impl Pod {
    /// Whether each address of another pod answers to one packet within a second.
    pub fn reaches(&self, other: &Pod) -> bool {
        other.addresses.iter().all(|address| crate::can_ping(&self.ns, *address))
    }

    /// Whether a packet of this size, as a whole, reaches another pod's first address.
    pub fn reaches_with(&self, other: &Pod, size: u32) -> bool {
        let to = other.addresses[0].to_string();
        let payload = (size - if to.contains(':') { 48 } else { 28 }).to_string();
        let words = ["-n", "-c", "1", "-W", "1", "-M", "do", "-s", &payload, &to];
        self.ns.try_exec("ping", &words).is_ok()
    }
}

#[track_caller]
fn sh(ns: &Ns, script: &str) -> String {
    ns.exec("sh", &["-ec", script])
}
