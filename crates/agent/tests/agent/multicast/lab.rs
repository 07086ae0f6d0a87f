// SPDX-License-Identifier: Apache-2.0
//! Nodes on one link with routes to each other's pods, and pods on bridges.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use agent::multicast::{Command, Counters, Multicast, Peer};
use agent::supervisor::Heartbeat;
use ipnet::IpNet;
use kernel::Netns;
use testkit::{Daemon, Ns, wait_for};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Node `n` has the subnets 10.244.n.0/24 and fd44:n::/64.
pub struct Node {
    pub n: u8,
    pub ns: Ns,
}

/// A pod. Its number is the last part of its addresses.
pub struct Pod {
    pub ns: Ns,
    pub address: String,
}

/// Multicast forwarding on a node until it is dropped.
pub struct Forwarder {
    pub counters: Arc<Counters>,
    /// Closing the channel ends the forwarder.
    commands: Option<UnboundedSender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.commands = None;
        // Ignore a panic here, it would hide an earlier one.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

pub fn sh(ns: &Ns, script: &str) -> String {
    ns.exec("sh", &["-ec", script])
}

/// Three nodes with bridges.
pub fn nodes() -> [Node; 3] {
    let here = Ns::here();
    here.ip(&["link", "add", "wire", "type", "bridge"]);
    here.ip(&["link", "set", "wire", "up"]);
    let nodes = [1, 2, 3].map(|n| Node { n, ns: Ns::new(&format!("node-{n}")) });
    for Node { n, ns } in &nodes {
        prepare(ns);
        here.connect(&format!("to-{n}"), ns, "eth0");
        here.ip(&["link", "set", &format!("to-{n}"), "master", "wire"]);
        sh(ns, &format!("ip addr add 192.0.2.{n}/24 dev eth0"));
        for other in [1, 2, 3].iter().filter(|other| *other != n) {
            sh(ns, &format!("ip route add 10.244.{other}.0/24 via 192.0.2.{other}"));
        }
        sh(
            ns,
            "nft add table inet count
            nft add chain inet count in '{ type filter hook input priority 0; }'
            nft add rule inet count in udp dport 8287 @th,104,8 1 counter",
        );
    }
    nodes
}

fn prepare(ns: &Ns) {
    sh(
        ns,
        "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
        echo 0 > /proc/sys/net/ipv6/conf/all/accept_dad
        echo 1 > /proc/sys/net/ipv4/ip_forward
        ip link set lo up",
    );
}

impl Node {
    /// Creates the bridge like the bridge plugin.
    pub fn make_bridge(&self) {
        let n = self.n;
        sh(
            &self.ns,
            &format!(
                "ip link add cni0 type bridge
                ip link set cni0 up
                ip addr add 10.244.{n}.1/24 dev cni0
                ip addr add fd44:{n}::1/64 dev cni0 nodad"
            ),
        );
    }

    pub fn pod(&self, k: u8) -> Pod {
        let n = self.n;
        let ns = Ns::new(&format!("pod-{n}-{k}"));
        prepare(&ns);
        self.ns.connect(&format!("veth{k}"), &ns, "eth0");
        self.ns.ip(&["link", "set", &format!("veth{k}"), "master", "cni0"]);
        sh(
            &ns,
            &format!(
                "ip addr add 10.244.{n}.{k}/24 brd + dev eth0
                ip addr add fd44:{n}::{k}/64 dev eth0 nodad
                ip route add default via 10.244.{n}.1
                ip -6 route add default via fd44:{n}::1"
            ),
        );
        Pod { ns, address: format!("10.244.{n}.{k}") }
    }

    pub fn subnets(&self) -> Vec<IpNet> {
        let n = self.n;
        [format!("10.244.{n}.0/24"), format!("fd44:{n}::/64")]
            .map(|net| net.parse().unwrap())
            .into()
    }

    pub fn peer(&self) -> Peer {
        Peer { name: format!("node-{}", self.n), subnets: self.subnets() }
    }

    /// Starts multicast forwarding.
    pub fn start(&self, others: &[&Node]) -> Forwarder {
        let (commands, receiver) = unbounded_channel();
        let counters = Arc::new(Counters::default());
        let ns = Netns::open(self.ns.path()).unwrap();
        let mut multicast = Multicast::new(receiver, Arc::clone(&counters));
        let thread = std::thread::spawn(move || {
            let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
            ns.enter(|| runtime().unwrap().block_on(multicast.run(&Heartbeat::unsupervised())))
                .unwrap()
                .unwrap();
        });
        let peers = others.iter().map(|other| other.peer()).collect();
        commands.send(Command::SetNetwork { subnets: self.subnets(), peers }).unwrap();
        Forwarder { counters, commands: Some(commands), thread: Some(thread) }
    }

    /// Number of pod packets that other nodes have sent to this node.
    pub fn received(&self) -> u64 {
        let text = sh(&self.ns, "nft list chain inet count in");
        let (_, behind) = text.split_once("packets ").unwrap();
        behind.split_whitespace().next().unwrap().parse().unwrap()
    }
}

impl Forwarder {
    pub fn send(&self, command: Command) {
        self.commands.as_ref().unwrap().send(command).unwrap();
    }

    pub fn wait_for_groups(&self, count: u64) {
        wait_for(&format!("{count} groups"), TIMEOUT, || {
            self.counters.groups.load(Ordering::Relaxed) == count
        });
    }
}

/// All three nodes with bridges and forwarders.
pub fn running() -> ([Node; 3], [Forwarder; 3]) {
    let nodes = nodes();
    nodes.iter().for_each(Node::make_bridge);
    let [a, b, c] = &nodes;
    let forwarders = [a.start(&[b, c]), b.start(&[a, c]), c.start(&[a, b])];
    (nodes, forwarders)
}

/// Records the datagrams that a pod receives on a port.
pub struct Listener {
    file: String,
    _program: Daemon,
}

impl Listener {
    /// `socket` is a socat address.
    pub fn start(pod: &Ns, socket: &str) -> Listener {
        let port = socket.split([':', ',']).nth(1).unwrap();
        let file = format!("/run/received-{}-{port}", pod.name());
        fs::write(&file, "").unwrap();
        let target = format!("OPEN:{file},append");
        let program = pod.start("socat", &["-u", "-b", "65536", socket, &target]);
        wait_for("the listener to listen", TIMEOUT, || {
            pod.exec("ss", &["-Hlun"]).contains(&format!(":{port} "))
        });
        Listener { file, _program: program }
    }

    pub fn received(&self) -> String {
        fs::read_to_string(&self.file).unwrap()
    }

    /// Sends until the word is received. An announcement of a group takes a moment.
    pub fn wait(&self, pod: &Ns, word: &str, socket: &str) {
        wait_for(&format!("{word} by {socket}"), TIMEOUT, || {
            send(pod, word, socket);
            self.received().contains(word)
        });
    }

    /// Sends once and waits until the word is received. Earlier packets have arrived by then.
    pub fn expect(&self, pod: &Ns, word: &str, socket: &str) {
        send(pod, word, socket);
        wait_for(&format!("{word} by {socket}"), TIMEOUT, || self.received().contains(word));
    }
}

/// Sends a datagram from a pod.
pub fn send(pod: &Ns, word: &str, socket: &str) {
    sh(pod, &format!("printf {word} | socat -u - {socket}"));
}
