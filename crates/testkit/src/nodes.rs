// SPDX-License-Identifier: Apache-2.0
//! Nodes connected by a bridge, each with a pod, for tests of the node agent. The test's own namespace
//! contains the bridge, acts as router, and runs the servers for all nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::ns::Ns;

/// Enables forwarding and disables duplicate address detection, so that addresses are usable at once.
const PREPARE: &str = "
echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
echo 0 > /proc/sys/net/ipv6/conf/all/accept_dad
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
";

/// Prints all devices, addresses, routes and entries of an agent with `ip` and `bridge`, without indices
/// and IDs that differ between runs.
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

/// The bridge that connects the nodes, with addresses 192.168.90.254 and fd00:90::fe.
#[derive(Debug)]
pub struct Wire(());

impl Wire {
    /// Address on which servers for all nodes listen.
    pub const HOST: &str = "192.168.90.254";

    /// Creates the bridge. Call it only inside [`in_netns`](crate::in_netns()).
    #[track_caller]
    pub fn new() -> Wire {
        sh(&Ns::here(), PREPARE);
        sh(
            &Ns::here(),
            // A fixed MAC address: otherwise the bridge has that of a port and changes it when ports go.
            "ip link add wire address 02:00:00:00:90:fe type bridge
            ip link set wire up
            ip address add 192.168.90.254/24 dev wire
            ip address add fd00:90::fe/64 dev wire nodad
            mkdir -p /run/lab",
        );
        Wire(())
    }

    /// Adds a node to the bridge, with `192.168.90.<number>/24` if `has_v4` and `fd00:90::<number>/64` if
    /// `has_v6`.
    #[track_caller]
    pub fn node(&self, number: u8, has_v4: bool, has_v6: bool) -> Node {
        let node = Node::new(number, &format!("port-{number}"));
        sh(&Ns::here(), &format!("ip link set port-{number} master wire"));
        node.address(&format!("192.168.90.{number}/24"), "192.168.90.254", has_v4);
        node.address(&format!("fd00:90::{number}/64"), "fd00:90::fe", has_v6);
        node
    }

    /// Adds a node behind the router, with `192.168.<number>.1/24`.
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

/// A node of the lab.
#[derive(Debug)]
pub struct Node {
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
        fs::create_dir_all(&dir).expect("create the directory of a node");
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

    pub fn number(&self) -> u8 {
        self.number
    }

    /// Directory for the files of the node's agent.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the options of an agent on this node, except those of the store.
    pub fn flags(&self) -> Vec<String> {
        let below = |name: &str| self.dir.join(name).display().to_string();
        let pairs = [
            ("--node-name", format!("node-{}", self.number)),
            ("--iface", "eth0".to_owned()),
            ("--subnet-file", below("subnet.env")),
            ("--calico-dir", below("calico")),
            ("--state-dir", below("state")),
            ("--run-dir", below("run")),
        ];
        pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
    }

    /// Returns the keys of subnet.env. The map is empty if the file does not exist.
    pub fn subnet_env(&self) -> BTreeMap<String, String> {
        let text = fs::read_to_string(self.dir.join("subnet.env")).unwrap_or_default();
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// Runs a shell script on the node, up to the first command that fails.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        sh(&self.ns, script)
    }

    /// Returns the kernel objects of the network, one per line.
    #[track_caller]
    pub fn kernel(&self) -> BTreeSet<String> {
        let text = self.ns.exec("sh", &["-c", STATE]);
        text.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// Creates a pod on a bridge that has the first address of each subnet in subnet.env.
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
            let (via, length) = gateway.split_once('/').expect("a subnet with a prefix length");
            let own = format!("{}2", via.strip_suffix('1').expect("a gateway that ends with 1"));
            let nodad = if own.contains(':') { "nodad" } else { "" };
            self.sh(&format!("ip address add {gateway} dev cni0 {nodad}"));
            sh(&ns, &format!("ip address add {own}/{length} dev eth0 {nodad}"));
            ns.ip(&["route", "add", "default", "via", via]);
            addresses.push(own.parse().expect("an address"));
        }
        Pod { ns, addresses }
    }
}

impl Node {
    /// Creates a routed pod with these addresses, wired as Calico does it: the host end has no address, and the
    /// pod reaches everything through a gateway with a fixed MAC address.
    #[track_caller]
    pub fn routed_pod(&self, name: &str, addresses: &[IpAddr]) -> Pod {
        let ns = Ns::new(name);
        sh(&ns, PREPARE);
        let host_end = format!("cali{name}");
        self.ns.connect(&host_end, &ns, "eth0");
        ns.ip(&["link", "set", "lo", "up"]);
        self.sh(&format!("ip link set {host_end} address ee:ee:ee:ee:ee:ee up"));
        for address in addresses {
            let (gateway, nodad) = match address {
                IpAddr::V4(_) => ("169.254.1.1", ""),
                IpAddr::V6(_) => ("fe80::ecee:eeff:feee:eeee", "nodad"),
            };
            sh(
                &ns,
                &format!(
                    "ip address add {address} dev eth0 {nodad}
                 ip route add {gateway} dev eth0
                 ip neigh replace {gateway} lladdr ee:ee:ee:ee:ee:ee dev eth0
                 ip route add default via {gateway} dev eth0"
                ),
            );
            self.sh(&format!("ip route add {address} dev {host_end}"));
        }
        Pod { ns, addresses: addresses.to_vec() }
    }
}

/// A pod of the lab.
#[derive(Debug)]
pub struct Pod {
    pub ns: Ns,
    /// At most one address of each family, IPv4 first.
    pub addresses: Vec<IpAddr>,
}

impl Pod {
    /// Returns whether each address of another pod answers one ping within a second.
    pub fn reaches(&self, other: &Pod) -> bool {
        other.addresses.iter().all(|address| crate::can_ping(&self.ns, *address))
    }

    /// Returns whether an unfragmented packet of this size reaches the first address of another pod.
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
