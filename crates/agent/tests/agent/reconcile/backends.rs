// SPDX-License-Identifier: Apache-2.0
//! Two nodes on one wire, with each backend: packets pass, and pass again after a repair.

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

use super::node::{SOON, conf, lease, options, public, subnet};
use super::repairs::block_on;
use crate::path_check::lab::Checker;

const NEVER: Duration = Duration::from_secs(100_000);

/// A node; its number is the last part of its addresses.
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
        let found = self.netns.enter(|| public_key(&self.key, &[])).unwrap();
        PublicKey(found.unwrap().unwrap().0)
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
        let found = targets(network.plan(), 1500, "other", &lease);
        Command::Watch(found.into_iter().next().unwrap())
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
        assert_well(&outcome);
        thread
    }
}

fn assert_well(outcome: &Outcome) {
    assert_eq!((&outcome.failures, &outcome.conflicts), (&vec![], &vec![]));
    assert_eq!(outcome.refused, []);
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
        // WireGuard has lost its sessions, and the other end would notice only after 15 s.
        ping(b, a);
        ping(a, b);
    }
    for thread in threads {
        let outcome = block_on(thread.run(|one| one.compare())).unwrap();
        assert!(outcome.is_quiet(), "{outcome:?}");
        assert_well(&block_on(thread.run(|one| one.remove_everything())).unwrap());
    }
    for node in &nodes {
        assert!(!node.ip("link show").contains("flannel"));
        assert_eq!(node.ip("route show proto 112"), "");
    }
}

#[test]
fn vxlan() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check(r#"{"Type": "vxlan"}"#, Some("flannel.1"));
    });
}

#[test]
fn udp() {
    in_netns(|| check(r#"{"Type": "udp"}"#, Some("flannel0")));
}

#[test]
fn host_gw() {
    in_netns(|| check(r#"{"Type": "host-gw"}"#, None));
}

#[test]
fn vm_ipip() {
    in_netns(|| {
        testkit::not_run_unless!(Link("ipip"));
        check(r#"{"Type": "ipip"}"#, Some("flannel.ipip"));
    });
}

#[test]
fn vm_wireguard() {
    in_netns(|| {
        testkit::not_run_unless!(Link("wireguard"));
        check(
            r#"{"Type": "wireguard", "PSK": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}"#,
            Some("flannel-wg"),
        );
    });
}

/// The session goes on over a restart: nothing of the device is changed.
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
        assert!(outcome.is_quiet(), "{outcome:?}");
        assert_eq!(shown(), before);
        let text = a.ns.exec("wg", &["show", "flannel-wg", "public-key"]);
        assert_eq!(text.trim(), a.public_key().to_string());
    });
}

/// Three knocks in three seconds are answered: of two that begin a session at once each would forget its own
/// beginning, and one that comes before its peer is known is forgotten, both for 5 s.
#[test]
fn vm_wireguard_starts_without_delay() {
    in_netns(|| {
        testkit::not_run_unless!(Link("wireguard"));
        let backend = r#"{"Type": "wireguard"}"#;
        let [a, b] = two_nodes();
        let checkers = || [&a, &b].map(|node| Checker::start(&node.ns, ProbeIntervals::default()));
        let [to_b, to_a] = [a.target(backend, &b), b.target(backend, &a)];
        let knows_late = || {
            let [early, mut late] = checkers();
            let network = b.network(backend, &a);
            let _thread = a.start(backend, &b);
            early.send(to_b.clone());
            let sent = || a.ns.exec("wg", &["show", "flannel-wg", "transfer"]);
            testkit::wait_for("the first handshake", SOON, || !sent().trim_end().ends_with("\t0"));
            let _thread = b.begin(network);
            late.send(to_a.clone());
            late.next().reachable
        };
        let know_at_once = || {
            let [mut first, mut second] = checkers();
            // On a long way packets meet.
            for node in [&a, &b] {
                node.ns.exec("sh", &["-c", "tc qdisc replace dev eth0 root netem delay 50ms"]);
            }
            let _threads = [a.start(backend, &b), b.start(backend, &a)];
            first.send(to_b.clone());
            second.send(to_a.clone());
            first.next().reachable && second.next().reachable
        };
        // An emulated machine may be late itself.
        let tries = |way: &dyn Fn() -> bool| {
            (0..3).any(|_| {
                let is_reached = way();
                for node in [&a, &b] {
                    node.ip("link delete flannel-wg");
                }
                is_reached
            })
        };
        assert!(tries(&knows_late), "one that knows its peer late");
        assert!(tries(&know_at_once), "two that begin at once");
    });
}

/// A peer behind a router is reached through a tunnel, and without as soon as a route says that it is near.
#[test]
fn direct_routing_follows_the_routes() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let backend = r#"{"Type": "vxlan", "DirectRouting": true}"#;
        let [a, b] = two_nodes();
        let thread = a.start(backend, &b);
        let route = || a.ip("route show 10.0.2.0/24");
        assert!(route().contains("via 172.16.0.2 dev eth0"), "{}", route());
        let far = "route add 172.16.0.2/32 via 172.16.0.9 dev eth0";
        a.ip(far);
        testkit::wait_for("the route through the tunnel", SOON, || {
            route().contains("via 10.0.2.0 dev flannel.1")
        });
        a.ip(&far.replace("add", "del"));
        testkit::wait_for("the direct route", SOON, || route().contains("via 172.16.0.2 dev eth0"));
        let left: IpAddr = "10.0.2.0".parse().unwrap();
        assert_eq!(a.ip(&format!("neigh show {left} dev flannel.1")), "");
        // The wire is unplugged for a moment: the kernel drops next hops without a word.
        b.ip("link set eth0 down");
        b.ip("link set eth0 up");
        testkit::wait_for("the direct route", SOON, || route().contains("via 172.16.0.2 dev eth0"));
        let outcome = block_on(thread.run(|one| one.compare())).unwrap();
        assert!(outcome.is_quiet(), "{outcome:?}");
    });
}
