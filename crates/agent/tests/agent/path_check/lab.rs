// SPDX-License-Identifier: Apache-2.0
//! Two nodes with a VXLAN tunnel like flannel's, and a router between them.

use std::time::Duration;

use agent::path_check::{Command, PathCheck, PathResult, ProbeIntervals, Target};
use agent::supervisor::Heartbeat;
use kernel::Netns;
use testkit::{Ns, wait_some};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

pub const TIMEOUT: Duration = Duration::from_secs(60);
/// MTU in the tunnel over links of 1500 bytes.
pub const FULL: u32 = 1450;
pub const OVERHEAD: u32 = 50;

/// Short intervals, so that a test sees changes soon.
pub const OFTEN: ProbeIntervals = ProbeIntervals {
    period: Duration::from_millis(200),
    round: Duration::from_millis(10),
    per_round: 16,
    first_retry: Duration::from_millis(100),
    last_retry: Duration::from_millis(100),
};

/// One check only while a test runs.
pub const ONCE: ProbeIntervals = {
    let hour = Duration::from_secs(3600);
    ProbeIntervals { period: hour, first_retry: hour, last_retry: hour, ..OFTEN }
};

/// Nodes 1 and 2 and the router.
pub struct Lab {
    pub nodes: [Ns; 2],
    pub router: Ns,
}

impl Lab {
    /// Creates the nodes and the router. All links have MTU 1500.
    pub fn new() -> Lab {
        let nodes = ["node-1", "node-2"].map(Ns::new);
        let router = Ns::new("router");
        prepare(&router);
        for (node, n) in nodes.iter().zip(1..) {
            prepare(node);
            node.connect("eth0", &router, &format!("to-{n}"));
            sh(
                &router,
                &format!(
                    "ip addr add 192.0.{n}.1/24 dev to-{n}
                    ip addr add 2001:db8:{n}::1/64 dev to-{n} nodad"
                ),
            );
            sh(
                node,
                &format!(
                    "ip addr add 192.0.{n}.2/24 dev eth0
                    ip addr add 2001:db8:{n}::2/64 dev eth0 nodad
                    ip route add default via 192.0.{n}.1
                    ip -6 route add default via 2001:db8:{n}::1"
                ),
            );
        }
        Lab { nodes, router }
    }

    /// Adds a tunnel between the nodes.
    pub fn with_tunnel() -> Lab {
        let lab = Lab::new();
        for (node, n) in lab.nodes.iter().zip([1, 2]) {
            let other = 3 - n;
            tunnel(node, n, &format!("192.0.{n}.2"), &format!("192.0.{other}.2"));
        }
        lab
    }
}

/// Creates a tunnel to the other node with flannel's options.
pub fn tunnel(node: &Ns, n: u8, local: &str, remote: &str) {
    let other = 3 - n;
    sh(
        node,
        &format!(
            "ip link add flannel.1 address 02:00:00:00:00:0{n} mtu {FULL} type vxlan id 1 \
                local {local} dev eth0 dstport 8472 nolearning
            ip link set flannel.1 up
            ip addr add 10.244.{n}.0/32 dev flannel.1
            ip addr add fd44:{n}::/128 dev flannel.1 nodad
            bridge fdb add 02:00:00:00:00:0{other} dev flannel.1 dst {remote}
            ip neigh add 10.244.{other}.0 dev flannel.1 lladdr 02:00:00:00:00:0{other} nud permanent
            ip neigh add fd44:{other}:: dev flannel.1 lladdr 02:00:00:00:00:0{other} nud permanent
            ip route add 10.244.{other}.0/24 via 10.244.{other}.0 dev flannel.1 onlink
            ip -6 route add fd44:{other}::/64 via fd44:{other}:: dev flannel.1 onlink"
        ),
    );
}

fn prepare(ns: &Ns) {
    sh(
        ns,
        "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
        echo 0 > /proc/sys/net/ipv6/conf/all/accept_dad
        echo 1 > /proc/sys/net/ipv4/ip_forward
        echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
        ip link set lo up",
    );
}

pub fn sh(ns: &Ns, script: &str) -> String {
    ns.exec("sh", &["-ec", script])
}

/// Target for the second node through the tunnel.
pub fn through_tunnel(address: &str) -> Target {
    let subnet = if address.contains(':') { "fd44:2::/64" } else { "10.244.2.0/24" };
    Target {
        peer: format!("node-2 at {address}"),
        subnet: subnet.parse().unwrap(),
        address: address.parse().unwrap(),
        full: FULL,
        overhead: OVERHEAD,
        device: Some("flannel.1".parse().unwrap()),
        starts_second: false,
    }
}

/// A path check that runs in a namespace until it is dropped.
pub struct Checker {
    commands: UnboundedSender<Command>,
    results: UnboundedReceiver<PathResult>,
}

impl Checker {
    pub fn start(ns: &Ns, intervals: ProbeIntervals) -> Checker {
        let (commands, command_receiver) = unbounded_channel();
        let (result_sender, results) = unbounded_channel();
        let mut check = PathCheck::new(intervals, command_receiver, result_sender);
        let ns = Netns::open(ns.path()).unwrap();
        std::thread::spawn(move || {
            let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
            ns.enter(|| runtime().unwrap().block_on(check.run(&Heartbeat::unsupervised())))
                .unwrap()
                .unwrap();
        });
        Checker { commands, results }
    }

    pub fn send(&self, command: Command) {
        self.commands.send(command).unwrap();
    }

    /// Waits for a result that matches.
    #[track_caller]
    pub fn wait(&mut self, condition: &str, matches: impl Fn(&PathResult) -> bool) -> PathResult {
        let mut others = Vec::new();
        let found = wait_some(TIMEOUT, || {
            let result = self.results.try_recv().ok()?;
            if matches(&result) {
                return Some(result);
            }
            others.push(result);
            None
        });
        found.unwrap_or_else(|| panic!("timeout while waiting for {condition}; got {others:?}"))
    }

    /// Waits for the next result.
    #[track_caller]
    pub fn next(&mut self) -> PathResult {
        self.wait("a result", |_| true)
    }

    /// Whether there is no result.
    pub fn is_quiet(&mut self) -> bool {
        self.results.try_recv().is_err()
    }
}
