// SPDX-License-Identifier: Apache-2.0
//! Tunnels with a small path MTU, multicast and repairs. Two of them need the emulated machine.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use agent::status::RepairKind;
use testkit::{Pod, Wire, in_netns, wait_for};

use super::backends::check_both;
use super::{Member, Store, TIMEOUT, all_reach_all, network};
use crate::multicast::Listener;

/// On the way to the node behind the router, large packets vanish without a word.
pub(super) const SWALLOW: &str = "nft add table inet narrow
    nft add chain inet narrow pass '{ type filter hook forward priority 0; }'
    nft add rule inet narrow pass meta length '>' 1400 drop";

/// `left` is what of 1400 bytes pods may use.
fn check_paths_and_groups(backend: &str, left: u32) -> Vec<Member> {
    testkit::require!(Program("nft"), Program("socat"), Program("ethtool"));
    let wire = Wire::new();
    testkit::run("sh", &["-ec", SWALLOW]);
    let conf = format!(r#"{{"Network": "10.5.0.0/16", "Backend": {{"Type": "{backend}"}}}}"#);
    let store = Store::embedded(&conf).and(&["--multicast", "--compare-every", "20"]);
    let nodes = vec![wire.node(1, true, false), wire.far_node(3)];
    for node in &nodes {
        // Else the router sees many packets as a large one.
        node.sh("ethtool -K eth0 gso off tso off tx-udp-segmentation off");
    }
    let members = network(nodes, &store);
    all_reach_all(&members, TIMEOUT);
    let [near, far] = &members[..] else { panic!("two") };
    for (from, to) in [(near, far), (far, near)] {
        from.agent().wait("the path MTU", |status| {
            let path = &status.peers.list[0].path;
            path.path_mtu == Some(left) && path.problem.is_some()
        });
        let route = || from.node.sh(&format!("ip route get {}", to.pod.addresses[0]));
        wait_for("the MTU of the route", TIMEOUT, || route().contains(&format!("mtu {left}")));
    }
    check_groups(near, far);
    members
}

const SIZE: u64 = 300_000;

/// All bytes come to each address, in packets as large as the sender thinks they may be.
fn transfer(from: &Pod, to: &Pod) {
    for address in &to.addresses {
        let family = if address.is_ipv4() { "TCP4" } else { "TCP6" };
        let file = format!("/run/lab/received-by-{}-{family}", to.ns.name());
        let (listen, sink) = (format!("{family}-LISTEN:7000"), format!("OPEN:{file},creat"));
        let _server = to.ns.start("socat", &["-u", &listen, &sink]);
        let listens = || to.ns.exec("ss", &["-Hltn"]).contains(":7000 ");
        wait_for("the server to listen", TIMEOUT, listens);
        let server = SocketAddr::new(*address, 7000);
        let send = format!("head -c {SIZE} /dev/zero | socat -u - {family}:{server}");
        from.ns.exec("timeout", &["60", "sh", "-ec", &send]);
        let came = || fs::metadata(&file).map_or(0, |file| file.len());
        wait_for("all bytes", TIMEOUT, || came() == SIZE);
    }
}

fn check_groups(near: &Member, far: &Member) {
    for (from, to) in [(near, far), (far, near)] {
        let join = "UDP4-RECV:5000,ip-add-membership=239.1.2.3:eth0";
        let listener = Listener::start(&to.pod.ns, join);
        listener.wait(&from.pod.ns, "hello", "UDP4-DATAGRAM:239.1.2.3:5000");
    }
}

#[test]
fn udp_tunnel_measures_paths_and_forwards_groups() {
    in_netns(|| {
        testkit::require!(File("/dev/net/tun"));
        let members = check_paths_and_groups("udp", 1400 - 28);
        let [near, far] = &members[..] else { panic!("two") };
        transfer(&near.pod, &far.pod);
        transfer(&far.pod, &near.pod);
    });
}

/// Before the next comparison, in a machine where all takes ten times as long.
const AT_ONCE: Duration = Duration::from_secs(15);

/// The first node repairs this, and its pod reaches the other one.
fn check_repair(members: &[Member], soon: Duration, kind: RepairKind, breaking: &str) {
    let [first, second] = members else { panic!("two") };
    let counted = first.agent().repairs(kind);
    first.node.sh(breaking);
    first.agent().wait_for(soon, breaking, |status| status.kernel.repairs.counts[&kind] > counted);
    wait_for(breaking, TIMEOUT, || first.pod.reaches(&second.pod));
}

#[test]
fn vm_ipip_tunnel_measures_paths_and_is_repaired() {
    in_netns(|| {
        testkit::not_run_unless!(Link("ipip"));
        let members = check_paths_and_groups("ipip", 1400 - 20);
        check_repair(&members, AT_ONCE, RepairKind::Device, "ip link del flannel.ipip");
    });
}

/// Its packets are 60 bytes more than a multiple of 16. Of its peers the kernel tells nothing, so that they are
/// back after the next comparison.
#[test]
fn vm_wireguard_tunnel_measures_paths_and_is_repaired() {
    in_netns(|| {
        testkit::not_run_unless!(Link("wireguard"));
        let members = check_paths_and_groups("wireguard", 1328);
        check_repair(&members, AT_ONCE, RepairKind::Device, "ip link del flannel-wg");
        let remove = "wg set flannel-wg peer $(wg show flannel-wg peers) remove";
        check_repair(&members, TIMEOUT, RepairKind::Peer, remove);
    });
}

fn wireguard_of_both_families(backend: &str, devices: &[&str]) {
    testkit::not_run_unless!(Link("wireguard"));
    testkit::require!(Program("socat"));
    let members = check_both(backend, "1420");
    let [first, second] = &members[..] else { panic!("two") };
    for (from, to) in [(first, second), (second, first)] {
        assert_eq!(
            from.node.sh("wg show interfaces").split_whitespace().collect::<Vec<_>>(),
            devices
        );
        transfer(&from.pod, &to.pod);
    }
}

#[test]
fn vm_wireguard_with_both_families_has_two_tunnels() {
    in_netns(|| {
        let backend = r#"{"Type": "wireguard"}"#;
        wireguard_of_both_families(backend, &["flannel-wg", "flannel-wg-v6"]);
    });
}

#[test]
fn vm_wireguard_in_one_tunnel_carries_both_families() {
    in_netns(|| {
        let backend = r#"{"Type": "wireguard", "Mode": "ipv4"}"#;
        wireguard_of_both_families(backend, &["flannel-wg"]);
    });
}
