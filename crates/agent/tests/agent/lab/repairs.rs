// SPDX-License-Identifier: Apache-2.0
//! Changes by other programs are repaired quickly, and counted.

use std::time::{Duration, Instant};

use agent::status::RepairKind;
use ipnet::IpNet;
use testkit::{Pinging, Wire, in_netns, wait_for};

use super::{Agent, Member, Store, TIMEOUT, network};

/// Until what was broken is repaired and packets get through.
const SOON: Duration = Duration::from_secs(1);

/// A busy machine may delay one repair. A repair by the periodic comparison is late each time.
const TRIES: usize = 5;

/// Breaks one thing after the other on the first node. Each is repaired and counted in time, packets of pods are
/// held up no longer than that, and in the end all is as it was before.
fn check(members: &[Member], all: &[(RepairKind, &str)]) {
    let [first, second] = members else { panic!("two nodes") };
    let pinging = Pinging::start(&first.pod.ns, second.pod.addresses[0]);
    let state = || (first.node.kernel(), rules(first));
    let before = state();
    for (kind, breaking) in all {
        let script = script(members, breaking);
        let breaks = |_| {
            let (repaired, silence) = break_once(first, *kind, &script, &pinging);
            println!("{script}: repaired after {repaired:?}, no answer for {silence:?}");
            wait_for(&format!("{before:#?} after {script}"), TIMEOUT, || state() == before);
            wait_for("packets of the other node", TIMEOUT, || second.pod.reaches(&first.pod));
            repaired.max(silence) < SOON
        };
        assert!((0..TRIES).any(breaks), "never repaired within {SOON:?}: {script}");
    }
}

/// How long until it is repaired, and how long no packet got through.
fn break_once(
    member: &Member,
    kind: RepairKind,
    script: &str,
    pinging: &Pinging,
) -> (Duration, Duration) {
    let (counted, answers) = (member.agent().repairs(kind), pinging.answers());
    member.node.sh(script);
    let start = Instant::now();
    member
        .agent()
        .wait_for(TIMEOUT, script, |status| status.kernel.repairs.counts[&kind] > counted);
    (start.elapsed(), pinging.longest_silence(answers))
}

fn script(members: &[Member], breaking: &str) -> String {
    let (own, peer) = (subnet(&members[0]), subnet(&members[1]));
    breaking
        .replace("OWN", &own.network().to_string())
        .replace("SUBNET", &peer.to_string())
        .replace("PEER", &peer.network().to_string())
        .replace("MAC", &mac(&members[1]))
}

fn subnet(member: &Member) -> IpNet {
    member.agent().hub.network().unwrap().lease.subnets[0]
}

fn rules(member: &Member) -> String {
    member.node.sh("nft -s list table inet podwire-agent-podwire 2>/dev/null || true")
}

/// The MAC address of the tunnel device on a node.
fn mac(member: &Member) -> String {
    let shown = member.node.ns.ip_json(&["link", "show", "type", "vxlan"]);
    shown[0]["address"].as_str().unwrap_or_default().to_owned()
}

fn two_nodes(wire: &Wire, is_v4: bool, backend: &str) -> Vec<Member> {
    let nodes = [1, 2].map(|number| wire.node(number, is_v4, !is_v4)).into();
    let network_key = match is_v4 {
        true => r#""Network": "10.5.0.0/16""#,
        false => r#""EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:5::/48""#,
    };
    let conf = format!(r#"{{{network_key}, "Backend": {{"Type": "{backend}"}}}}"#);
    // A path check at the wrong moment would find the MTU that the test has just set.
    network(
        nodes,
        &Store::embedded(&conf).and(&["--ip-masq", "--ip-blackhole-route", "--path-check=false"]),
    )
}

#[test]
fn vxlan_changes_are_repaired() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let members = two_nodes(&wire, true, "vxlan");
        let all = [
            (RepairKind::Device, "ip link del flannel.1"),
            (RepairKind::Device, "ip link set flannel.1 down"),
            (RepairKind::Device, "ip link set flannel.1 mtu 1400"),
            (RepairKind::Device, "ip link set flannel.1 address 02:00:00:00:00:99"),
            (RepairKind::Address, "ip address del OWN/32 dev flannel.1"),
            (RepairKind::Route, "ip route del SUBNET"),
            (RepairKind::Route, "ip route replace SUBNET via 192.168.90.9 dev eth0"),
            (RepairKind::Route, "ip route replace SUBNET dev flannel.1 proto 112"),
            (RepairKind::Route, "ip route replace blackhole SUBNET"),
            (RepairKind::Route, "ip route replace unreachable SUBNET proto 112"),
            (RepairKind::Neighbour, "ip neigh del PEER dev flannel.1"),
            (RepairKind::Neighbour, "ip neigh replace PEER lladdr 02:00:00:00:00:99 dev flannel.1"),
            (RepairKind::Forwarding, "bridge fdb del MAC dev flannel.1 dst 192.168.90.2"),
            (RepairKind::Forwarding, "bridge fdb replace MAC dev flannel.1 dst 192.168.90.9"),
            (RepairKind::Nexthop, "ip nexthop flush proto 112"),
            (
                RepairKind::Nexthop,
                "ip nexthop replace id $(ip nexthop show proto 112 | cut -d' ' -f2) blackhole proto 112",
            ),
            (RepairKind::Route, "ip route del blackhole OWN/24"),
            (RepairKind::Rules, "sysctl -qw net.ipv4.ip_forward=0"),
            (RepairKind::Rules, "nft flush ruleset"),
            (RepairKind::Rules, "nft delete table inet podwire-agent-podwire"),
        ];
        check(&members, &all);
    });
}

#[test]
fn vxlan_changes_with_ipv6_are_repaired() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let members = two_nodes(&wire, false, "vxlan");
        let all = [
            (RepairKind::Device, "ip link del flannel-v6.1"),
            (RepairKind::Device, "ip link set flannel-v6.1 down"),
            (RepairKind::Address, "ip address del OWN/128 dev flannel-v6.1"),
            (RepairKind::Route, "ip -6 route del SUBNET"),
            (RepairKind::Route, "ip -6 route replace blackhole SUBNET"),
            (RepairKind::Neighbour, "ip neigh del PEER dev flannel-v6.1"),
            (RepairKind::Forwarding, "bridge fdb del MAC dev flannel-v6.1 dst fd00:90::2"),
            (RepairKind::Nexthop, "ip nexthop flush proto 112"),
            (RepairKind::Route, "ip -6 route del blackhole OWN/64 proto 112"),
            (RepairKind::Rules, "sysctl -qw net.ipv6.conf.all.forwarding=0"),
            (RepairKind::Rules, "nft flush ruleset"),
        ];
        check(&members, &all);
    });
}

#[test]
fn host_gw_changes_are_repaired() {
    in_netns(|| {
        let wire = Wire::new();
        let members = two_nodes(&wire, true, "host-gw");
        let all = [
            (RepairKind::Route, "ip route del SUBNET"),
            (RepairKind::Route, "ip route replace SUBNET via 192.168.90.254"),
            (RepairKind::Route, "ip link set eth0 down; ip link set eth0 up"),
            (RepairKind::Nexthop, "ip nexthop flush proto 112"),
            (RepairKind::Rules, "nft flush ruleset"),
        ];
        check(&members, &all);
    });
}

#[test]
fn udp_changes_are_repaired() {
    in_netns(|| {
        testkit::require!(File("/dev/net/tun"));
        let wire = Wire::new();
        let members = two_nodes(&wire, true, "udp");
        let all = [
            (RepairKind::Device, "ip link del flannel0"),
            (RepairKind::Device, "ip link set flannel0 down"),
            (RepairKind::Device, "ip link set flannel0 mtu 1300"),
            (RepairKind::Address, "ip address del OWN/32 dev flannel0"),
            (RepairKind::Route, "ip route del 10.5.0.0/16"),
        ];
        check(&members, &all);
    });
}

/// Comparisons without changes are shown as well.
#[test]
fn each_comparison_is_shown() {
    in_netns(|| {
        let wire = Wire::new();
        let node = wire.node(1, true, false);
        let conf = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}}"#;
        let agent = Agent::start(&node, &Store::embedded(conf).and(&["--compare-every", "1"]));
        agent.wait("status.ready", |status| status.ready);
        for _ in 0..2 {
            let last = agent.hub.summary().kernel.comparison.unwrap().at;
            agent.wait("the next comparison", |status| {
                status.kernel.comparison.unwrap().at.0 > last.0
            });
        }
    });
}
