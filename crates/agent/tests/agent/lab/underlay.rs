// SPDX-License-Identifier: Apache-2.0
//! The underlay changes at run time: the agent follows, pods keep their addresses, and peers
//! reach them again.

use std::time::Duration;

use agent::status::ConditionKind;
use testkit::{Pinging, Wire, in_netns, wait_for};

use super::{Member, Store, TIMEOUT, all_reach_all, network};

/// Until packets get through again, on a busy machine; an answer over a connection that is none any more is awaited
/// for five.
pub(super) const SOON: Duration = Duration::from_secs(4);

pub(super) const READDRESS: &str = "
    ip address del 192.168.90.1/24 dev eth0
    ip address add 192.168.90.101/24 dev eth0
    ip route add default via 192.168.90.254";

fn two_nodes(wire: &Wire, backend: &str) -> Vec<Member> {
    let nodes = [1, 2].map(|number| wire.node(number, true, false)).into();
    let conf = format!(r#"{{"Network": "10.5.0.0/16", "Backend": {{"Type": "{backend}"}}}}"#);
    let members = network(nodes, &Store::embedded(&conf));
    all_reach_all(&members, TIMEOUT);
    members
}

/// Changes the first node's underlay; then its own view has `shown`, its subnet is the same, and pods
/// reach each other.
pub(super) fn follows(members: &[Member], change: &str, shown: &str) {
    let first = &members[0];
    let subnet = first.node.subnet_env()["FLANNEL_SUBNET"].clone();
    first.node.sh(change);
    first.agent().wait(change, |status| {
        let underlay = status.membership.network.as_ref().map(|network| &network.underlay);
        status.ready && underlay.is_some_and(|one| format!("{one:?}").contains(shown))
    });
    all_reach_all(members, TIMEOUT);
    assert_eq!(first.node.subnet_env()["FLANNEL_SUBNET"], subnet, "pods keep their addresses");
}

fn address_mtu_and_loss_are_followed(backend: &str, overhead: u32) {
    let wire = Wire::new();
    let members = two_nodes(&wire, backend);
    let mtu = || members[0].node.subnet_env()["FLANNEL_MTU"].parse::<u32>().unwrap();
    let readdress = "
        ip address del 192.168.90.1/24 dev eth0
        ip address add 192.168.90.101/24 dev eth0";
    follows(&members, readdress, "192.168.90.101");
    // Neighbours that are still known may have let packets through before.
    members[1].agent().wait("exactly one peer", |status| {
        let publics: Vec<String> =
            status.peers.list.iter().map(|peer| peer.public[0].to_string()).collect();
        publics == ["192.168.90.101"]
    });
    assert_eq!(mtu(), 1500 - overhead);
    follows(&members, "ip link set eth0 mtu 1400", "mtu: 1400");
    assert_eq!(mtu(), 1400 - overhead);
    follows(&members, "ip link set eth0 mtu 1500", "mtu: 1500");
    assert_eq!(mtu(), 1500 - overhead);

    members[0].node.sh("ip link del eth0");
    members[0].agent().wait("the reported failure", |status| {
        !status.ready && status.problems.contains_key(&ConditionKind::Underlay)
    });
    let again = "
        ip link add eth0 type veth peer name port-1 netns PID
        ip link set eth0 up
        ip address add 192.168.90.102/24 dev eth0";
    let here = std::process::id().to_string();
    members[0].node.sh(&again.replace("PID", &here));
    testkit::run("ip", &["link", "set", "port-1", "master", "wire", "up"]);
    follows(&members, "true", "192.168.90.102");
}

#[test]
fn vxlan_follows_the_underlay() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        address_mtu_and_loss_are_followed("vxlan", 50);
    });
}

#[test]
fn host_gw_follows_the_underlay() {
    in_netns(|| address_mtu_and_loss_are_followed("host-gw", 0));
}

#[test]
fn udp_follows_the_underlay() {
    in_netns(|| {
        testkit::require!(File("/dev/net/tun"));
        address_mtu_and_loss_are_followed("udp", 28);
    });
}

/// The connection to etcd is lost with the address.
#[test]
fn underlay_change_to_etcd_is_followed() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let server = super::etcd();
        let nodes = [1, 2].map(|number| wire.node(number, true, false)).into();
        let conf = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;
        let members = network(nodes, &Store::etcd(&server, conf));
        all_reach_all(&members, TIMEOUT);
        let mac = || members[0].node.sh("cat /sys/class/net/flannel.1/address");
        let before = mac();
        let pinging = Pinging::start(&members[0].pod.ns, members[1].pod.addresses[0]);
        let answers = pinging.answers();
        follows(&members, READDRESS, "192.168.90.101");
        let silence = pinging.longest_silence(answers);
        assert!(silence < SOON, "no packet got through for {silence:?}");
        assert_eq!(mac(), before, "same node");
        let leases = || server.entries("/coreos.com/network/subnets/");
        wait_for("one lease per node", TIMEOUT, || leases().len() == 2);

        members[0].node.sh("ip address del 192.168.90.101/24 dev eth0");
        members[0].agent().wait("both reported failures", |status| {
            !status.ready
                && status.store.reachable == Some(false)
                && status.problems.contains_key(&ConditionKind::Underlay)
        });
        follows(&members, "ip address add 192.168.90.101/24 dev eth0", "192.168.90.101");
    });
}

/// Peers know the node by IPv4 only, and would not find it over IPv6.
#[test]
fn node_waits_for_its_published_family() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let nodes = [1, 2].map(|number| wire.node(number, true, true)).into();
        let conf = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;
        let members = network(nodes, &Store::embedded(conf));
        all_reach_all(&members, TIMEOUT);
        let index = || members[0].node.sh("cat /sys/class/net/flannel.1/ifindex");
        let before = index();
        members[0].node.sh("ip address del 192.168.90.1/24 dev eth0");
        members[0].agent().wait("the reported failure", |status| {
            !status.ready && status.problems.contains_key(&ConditionKind::Underlay)
        });
        assert_eq!(index(), before, "the device stays");
        // The default route was removed with the address and is not restored.
        follows(&members, "ip address add 192.168.90.1/24 dev eth0", "192.168.90.1");
        assert_eq!(index(), before, "it is the same device");
    });
}

/// From the old address a new connection is not answered.
#[test]
fn underlay_change_while_connecting_is_followed() {
    in_netns(|| {
        testkit::require!(Link("vxlan"), Program("nft"));
        let wire = Wire::new();
        let server = super::etcd();
        let nodes = [1, 2].map(|number| wire.node(number, true, false)).into();
        let conf = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;
        let members = network(nodes, &Store::etcd(&server, conf));
        all_reach_all(&members, TIMEOUT);
        let silenced = "
            nft add table inet silent
            nft add chain inet silent in '{ type filter hook input priority 0; }'
            nft add rule inet silent in ip saddr 192.168.90.1 tcp flags syn / syn,ack counter drop
            nft add rule inet silent in ip saddr 192.168.90.1 tcp dport 2379 drop";
        testkit::run("sh", &["-ec", silenced]);
        let pinging = Pinging::start(&members[0].pod.ns, members[1].pod.addresses[0]);
        // A new session starts.
        members[0].node.sh("ip link set eth0 mtu 1400");
        let asks =
            || !testkit::run("nft", &["list", "table", "inet", "silent"]).contains(" packets 0 ");
        wait_for("a connection to etcd", TIMEOUT, asks);
        let answers = pinging.answers();
        follows(&members, READDRESS, "192.168.90.101");
        let silence = pinging.longest_silence(answers);
        assert!(silence < SOON, "no packet got through for {silence:?}");
    });
}
