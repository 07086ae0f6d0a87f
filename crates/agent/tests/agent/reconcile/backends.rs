// SPDX-License-Identifier: Apache-2.0
//! Two connected nodes with each backend exchange packets, also after a repair.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use agent::dataplane::routes::{self, Options, Outcome, RoutesDataplane, Secrets, public_key};
use agent::path_check::{Command, ProbeIntervals, targets};
use kernel::Netns;
use kernel::wireguard::{PrivateKey, PublicKey};
use overlay::Addresses;
use overlay::plan::{Network, Underlay};
use overlay::publish::{Identity, attributes};
use testkit::{Ns, in_netns};

use super::node::{SOON, conf, is_unchanged, lease, options, public, subnet};
use super::repairs::block_on;
use crate::path_check::lab::Checker;

const NEVER: Duration = Duration::from_secs(100_000);

/// A node. Its number is the last byte of its addresses.
struct Node {
    ns: Ns,
    netns: Netns,
    number: u32,
    key: PrivateKey,
}

impl Node {
    fn new(number: u32) -> Self {
        let ns = Ns::new(&format!("node-{number}"));
        let netns = Netns::open(ns.path()).unwrap();
        let node = Self { ns, netns, number, key: PrivateKey::random().unwrap() };
        node.ip("link set lo up");
        // A pod's address.
        node.ip(&format!("address add 10.0.{number}.1/32 dev lo"));
        node
    }

    fn ip(&self, args: &str) -> String {
        self.ns.ip(&args.split_whitespace().collect::<Vec<_>>())
    }

    fn addresses(&self) -> Addresses {
        Addresses { v4: Some(public(self.number)), v6: None }
    }

    fn public_key(&self) -> PublicKey {
        let key = self.netns.enter(|| public_key(&self.key, &[])).unwrap();
        PublicKey(key.unwrap().unwrap().0)
    }

    fn lease(&self, backend: &str) -> overlay::lease::Lease {
        let conf = conf(backend);
        let wireguard_key = backend.contains("wireguard").then(|| self.public_key());
        let identity = Identity {
            seed: &self.number.to_be_bytes(),
            addresses: self.addresses(),
            public: self.addresses(),
            wireguard_key,
            extension_output: None,
        };
        let subnets = lease(&conf, self.number).subnets;
        overlay::lease::Lease { subnets, attributes: attributes(&conf, &identity).unwrap() }
    }

    fn underlay(&self) -> Underlay {
        let name = "eth0".parse().unwrap();
        let nl = self.netns.netlink().unwrap();
        let link = kernel::link::by_name(&nl, name).unwrap().unwrap();
        let (index, mtu, addresses) = (link.index, link.mtu, self.addresses());
        Underlay { name, index, mtu, addresses, on_link: HashMap::new() }
    }

    fn network(&self, backend: &str, other: &Node) -> Network {
        let peers = BTreeMap::from([(subnet(other.number), (0, other.lease(backend)))]);
        Network::new(conf(backend), self.lease(backend), self.underlay(), peers).unwrap()
    }

    /// The path check's target for the other node.
    fn target(&self, backend: &str, other: &Node) -> Command {
        let (network, lease) = (self.network(backend, other), other.lease(backend));
        let targets = targets(network.plan(), 1500, "other", &lease);
        Command::Watch(targets.into_iter().next().unwrap())
    }

    fn start(&self, backend: &str, other: &Node) -> RoutesDataplane {
        self.begin(self.network(backend, other))
    }

    fn begin(&self, network: Network) -> RoutesDataplane {
        let secrets = Secrets { wireguard: Some(self.key.clone()) };
        let options = Options { secrets, ..options() };
        let started = self.netns.enter(|| routes::start(options, NEVER)).unwrap();
        let (thread, _) = started.unwrap();
        let outcome = block_on(thread.run(|one| one.set_network(network))).unwrap();
        assert_converged(&outcome);
        thread
    }
}

fn assert_converged(outcome: &Outcome) {
    assert_eq!((&outcome.failures, &outcome.conflicts), (&vec![], &vec![]));
    assert_eq!(outcome.rejected, []);
}

fn two_nodes() -> [Node; 2] {
    let [a, b] = [1, 2].map(Node::new);
    a.ns.connect("eth0", &b.ns, "eth0");
    for node in [&a, &b] {
        node.ip(&format!("address add {}/12 dev eth0", public(node.number)));
    }
    [a, b]
}

/// Pings from pod address to pod address.
fn ping(from: &Node, to: &Node) {
    let (source, target) = (format!("10.0.{}.1", from.number), format!("10.0.{}.1", to.number));
    let once = || from.ns.try_exec("ping", &["-nc1", "-W1", "-I", &source, &target]).ok();
    assert!(testkit::wait_some(SOON, once).is_some(), "no answer from {target}");
}

fn check(backend: &str, device: Option<&str>) {
    let nodes = two_nodes();
    let [a, b] = &nodes;
    let threads = [a.start(backend, b), b.start(backend, a)];
    ping(a, b);
    if let Some(device) = device {
        // Dependent objects are re-created, too.
        a.ip(&format!("link delete {device}"));
        ping(a, b);
        b.ip(&format!("link set {device} down"));
        // WireGuard has lost its sessions. The other end would notice that only after 15 s.
        ping(b, a);
        ping(a, b);
    }
    for thread in threads {
        let outcome = block_on(thread.run(|one| one.compare())).unwrap();
        assert!(is_unchanged(&outcome), "{outcome:?}");
        assert_converged(&block_on(thread.run(|one| one.remove_all())).unwrap());
    }
    for node in &nodes {
        assert!(!node.ip("link show").contains("flannel"));
        assert_eq!(node.ip("route show proto 112"), "");
    }
}

#[test]
fn vxlan_carries_packets_also_after_a_repair() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check(r#"{"Type": "vxlan"}"#, Some("flannel.1"));
    });
}

#[test]
fn udp_carries_packets_also_after_a_repair() {
    in_netns(|| check(r#"{"Type": "udp"}"#, Some("flannel0")));
}

#[test]
fn host_gw_carries_packets_also_after_a_repair() {
    in_netns(|| check(r#"{"Type": "host-gw"}"#, None));
}

#[test]
fn vm_ipip_carries_packets_also_after_a_repair() {
    in_netns(|| {
        testkit::not_run_unless!(Link("ipip"));
        check(r#"{"Type": "ipip"}"#, Some("flannel.ipip"));
    });
}

#[test]
fn vm_wireguard_carries_packets_also_after_a_repair() {
    in_netns(|| {
        testkit::not_run_unless!(Link("wireguard"));
        check(
            r#"{"Type": "wireguard", "PSK": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}"#,
            Some("flannel-wg"),
        );
    });
}

/// A restart changes nothing of the device, so its session continues.
#[test]
fn vm_wireguard_session_survives_a_restart() {
    in_netns(|| {
        testkit::not_run_unless!(Link("wireguard"));
        let backend = r#"{"Type": "wireguard"}"#;
        let [a, b] = two_nodes();
        let thread = a.start(backend, &b);
        let _other = b.start(backend, &a);
        ping(&a, &b);
        let shown = || a.ns.exec("wg", &["show", "flannel-wg", "latest-handshakes"]);
        let before = shown();
        drop(thread);
        let (again, _) = a.netns.enter(|| routes::start(options(), NEVER)).unwrap().unwrap();
        let network = a.network(backend, &b);
        let outcome = block_on(again.run(|one| one.set_network(network))).unwrap();
        assert!(is_unchanged(&outcome), "{outcome:?}");
        assert_eq!(shown(), before);
        let text = a.ns.exec("wg", &["show", "flannel-wg", "public-key"]);
        assert_eq!(text.trim(), a.public_key().to_string());
    });
}

/// One of the path check's three hellos in three seconds is answered. WireGuard retries a handshake
/// only after 5 s if both ends start one at the same time, or if the other end does not know the
/// peer yet.
#[test]
fn vm_wireguard_starts_without_delay() {
    in_netns(|| {
        testkit::not_run_unless!(Link("wireguard"));
        let backend = r#"{"Type": "wireguard"}"#;
        let [a, b] = two_nodes();
        let checkers = || [&a, &b].map(|node| Checker::start(&node.ns, ProbeIntervals::default()));
        let [to_b, to_a] = [a.target(backend, &b), b.target(backend, &a)];
        let peer_known_late = || {
            let [first, mut second] = checkers();
            let network = b.network(backend, &a);
            let _thread = a.start(backend, &b);
            first.send(to_b.clone());
            let sent = || a.ns.exec("wg", &["show", "flannel-wg", "transfer"]);
            testkit::wait_for("the first handshake", SOON, || !sent().trim_end().ends_with("\t0"));
            let _thread = b.begin(network);
            second.send(to_a.clone());
            second.next().reachable
        };
        let both_start = || {
            let [mut first, mut second] = checkers();
            // With this delay both handshakes are on their way at the same time.
            for node in [&a, &b] {
                node.ns.exec("sh", &["-c", "tc qdisc replace dev eth0 root netem delay 50ms"]);
            }
            let _threads = [a.start(backend, &b), b.start(backend, &a)];
            first.send(to_b.clone());
            second.send(to_a.clone());
            first.next().reachable && second.next().reachable
        };
        // An emulated machine may be slow itself.
        let succeeds = |attempt: &dyn Fn() -> bool| {
            (0..3).any(|_| {
                let is_reached = attempt();
                for node in [&a, &b] {
                    node.ip("link delete flannel-wg");
                }
                is_reached
            })
        };
        assert!(succeeds(&peer_known_late), "one node knows its peer late");
        assert!(succeeds(&both_start), "both nodes start at the same time");
    });
}

/// The tunnel is used while a route leads to the peer by a gateway.
#[test]
fn direct_routing_follows_the_routes() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let backend = r#"{"Type": "vxlan", "DirectRouting": true}"#;
        let [a, b] = two_nodes();
        let thread = a.start(backend, &b);
        let route = || a.ip("route show 10.0.2.0/24");
        assert!(route().contains("via 172.16.0.2 dev eth0"), "{}", route());
        let by_gateway = "route add 172.16.0.2/32 via 172.16.0.9 dev eth0";
        a.ip(by_gateway);
        testkit::wait_for("the route through the tunnel", SOON, || {
            route().contains("via 10.0.2.0 dev flannel.1")
        });
        a.ip(&by_gateway.replace("add", "del"));
        testkit::wait_for("the direct route", SOON, || route().contains("via 172.16.0.2 dev eth0"));
        let unused: IpAddr = "10.0.2.0".parse().unwrap();
        assert_eq!(a.ip(&format!("neigh show {unused} dev flannel.1")), "");
        // If the link goes down, the kernel removes its next hops without an event.
        b.ip("link set eth0 down");
        b.ip("link set eth0 up");
        testkit::wait_for("the direct route", SOON, || route().contains("via 172.16.0.2 dev eth0"));
        let outcome = block_on(thread.run(|one| one.compare())).unwrap();
        assert!(is_unchanged(&outcome), "{outcome:?}");
    });
}
