// SPDX-License-Identifier: Apache-2.0
//! The configuration gets another backend, and one node follows later than the other. Pods reach each other all
//! the while.

use testkit::{Pinging, Wire, in_netns, wait_for};

use super::configuration::{replace, wait_problem};
use super::{Agent, Member, Store, TIMEOUT, all_reach_all, network};

const VXLAN: &str = r#"{"Type": "vxlan"}"#;
const OTHER_VNI: &str = r#"{"Type": "vxlan", "VNI": 7}"#;
const HOST_GW: &str = r#"{"Type": "host-gw"}"#;
const UDP: &str = r#"{"Type": "udp"}"#;

/// Packets that may be lost at a change, of a hundred in a second: a tunnel's queue goes with its device.
const LOST: usize = 50;

fn conf(more: &str, backend: &str) -> String {
    format!(r#"{{"Network": "10.5.0.0/16", {more}"Backend": {backend}}}"#)
}

/// A configuration that only the first node can use: its single subnet is the first node's.
fn conf_of_first(members: &[Member], backend: &str) -> String {
    let subnet = members[0].agent().hub.network().unwrap().lease.subnets[0].addr();
    conf(&format!(r#""SubnetMin": "{subnet}", "SubnetMax": "{subnet}", "#), backend)
}

fn two_nodes(backend: &str) -> Vec<Member> {
    let wire = Wire::new();
    let nodes = [1, 2].map(|number| wire.node(number, true, false));
    let members = network(nodes.into(), &Store::embedded(&conf("", backend)));
    all_reach_all(&members, TIMEOUT);
    members
}

/// Pings from each pod to the other.
struct Stream(Vec<Pinging>);

impl Stream {
    fn start(members: &[Member]) -> Stream {
        let pairs = [(&members[0], &members[1]), (&members[1], &members[0])];
        let start =
            |(from, to): (&Member, &Member)| Pinging::start(&from.pod.ns, to.pod.addresses[0]);
        Stream(pairs.map(start).into())
    }

    #[track_caller]
    fn end(self, lost: usize) {
        for pinging in self.0 {
            let (sent, answered) = pinging.end();
            assert!(sent - answered <= lost, "{answered} of {sent} came back");
        }
    }
}

fn kind(backend: &str) -> &str {
    backend.split('"').nth(3).unwrap()
}

fn has_backend(agent: &Agent, backend: &str) {
    agent.wait("network.backend", |status| {
        let now = status.membership.network.as_ref().map(|network| network.backend.as_str());
        status.ready && now == Some(kind(backend))
    });
}

/// The device by which packets for the other node's pod leave.
fn device(from: &Member, to: &Member) -> String {
    let found = from.node.ns.ip_json(&["route", "get", &to.pod.addresses[0].to_string()]);
    found[0]["dev"].as_str().unwrap().to_owned()
}

/// Only the first node follows: both serve each other by the backend before.
fn first_changes(members: &[Member], backend: &str) {
    let [first, second] = members else { panic!("two") };
    let before = [device(first, second), device(second, first)];
    let leases = || first.agent().hub.network().unwrap().lease;
    let lease = leases();
    replace(&first.node, &Store::embedded(&conf_of_first(members, backend)), &[]);
    has_backend(first.agent(), backend);
    assert_eq!(leases().subnets, lease.subnets);
    wait_problem(second.agent(), &["all 1 subnets", "stays in force"]);
    let published = if kind(backend) == "udp" { "" } else { kind(backend) };
    second.agent().wait("the first node's new lease", |status| {
        status.peers.list.first().is_some_and(|peer| peer.backend == published)
    });
    for member in members {
        assert_eq!(member.agent().hub.status().peers.rejected, []);
    }
    assert_eq!([device(first, second), device(second, first)], before);
}

fn second_follows(members: &[Member], backend: &str, device_after: &str) {
    let [first, second] = members else { panic!("two") };
    replace(&first.node, &Store::embedded(&conf("", backend)), &[]);
    has_backend(second.agent(), backend);
    for (from, to) in [(first, second), (second, first)] {
        wait_for("the route over the new device", TIMEOUT, || device(from, to) == device_after);
        assert_eq!(from.agent().hub.status().peers.rejected, []);
    }
}

#[test]
fn change_from_vxlan_to_host_gw_keeps_traffic() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let mut members = two_nodes(VXLAN);
        let stream = Stream::start(&members);
        first_changes(&members, HOST_GW);
        // The configuration may as well reach an agent by a restart.
        drop(members[0].agent.take());
        let store = Store::embedded(&conf("", VXLAN));
        members[0].agent = Some(Agent::start(&members[0].node, &store));
        has_backend(members[0].agent(), HOST_GW);
        assert_eq!(device(&members[0], &members[1]), "flannel.1");
        let mtu = |member: &Member| member.node.subnet_env()["FLANNEL_MTU"].clone();
        assert_eq!([mtu(&members[0]), mtu(&members[1])], ["1450", "1450"]);
        second_follows(&members, HOST_GW, "eth0");
        for member in &members {
            wait_for("removal of the tunnel device", TIMEOUT, || {
                !member.node.sh("ip -br link").contains("flannel") && mtu(member) == "1500"
            });
        }
        stream.end(LOST);
        all_reach_all(&members, TIMEOUT);
    });
}

/// `has_stream`: whether packets are sent all the while.
fn through(first: &str, changes: &[(&str, &str)], has_stream: bool) {
    let members = two_nodes(first);
    for (backend, device) in changes {
        let stream = has_stream.then(|| Stream::start(&members));
        first_changes(&members, backend);
        all_reach_all(&members, TIMEOUT);
        second_follows(&members, backend, device);
        all_reach_all(&members, TIMEOUT);
        if let Some(stream) = stream {
            stream.end(LOST);
        }
    }
}

#[test]
fn change_through_all_backends_keeps_traffic() {
    in_netns(|| {
        testkit::require!(Link("vxlan"), File("/dev/net/tun"));
        // The second change takes the first one back: both nodes still keep the previous backend.
        let changes = [
            (VXLAN, "flannel.1"),
            (HOST_GW, "eth0"),
            (UDP, "flannel0"),
            (VXLAN, "flannel.1"),
            (OTHER_VNI, "flannel.7"),
            (UDP, "flannel0"),
        ];
        through(HOST_GW, &changes, true);
    });
}

/// Without a stream, which the emulated machine is too slow for. Two ends of WireGuard that begin at the same moment
/// try again after five seconds anyway.
#[test]
fn vm_change_through_tunnels_keeps_traffic() {
    in_netns(|| {
        testkit::not_run_unless!(Link("wireguard"), Link("ipip"));
        let (wireguard, ipip) = (r#"{"Type": "wireguard"}"#, r#"{"Type": "ipip"}"#);
        let changes = [(ipip, "flannel.ipip"), (wireguard, "flannel-wg")];
        through(wireguard, &changes, false);
    });
}
