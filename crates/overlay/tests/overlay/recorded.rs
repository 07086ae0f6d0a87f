// SPDX-License-Identifier: Apache-2.0
//! Plans for the recorded leases of real flannel nodes equal the kernel state that flannel made.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use kernel::{IfIndex, IfName};
use overlay::Addresses;
use overlay::desired::{DesiredRoute, DeviceKind, VxlanDevice};
use overlay::diff::{Change, DeviceChange, diff};
use overlay::lease::Lease;
use overlay::netconf::{NetConf, RawNetConf};
use overlay::observed::{ObservedDevice, ObservedKind, ObservedRoute, ObservedState};
use overlay::ownership::Ownership;
use overlay::plan::{Node, Peer, Plan, Underlay, plan};
use overlay::subnet_env::SubnetEnv;
use testkit::Recorded;

fn conf(recorded: &Recorded) -> NetConf {
    RawNetConf::parse(recorded.conf()).unwrap().pools().unwrap();
    NetConf::parse(recorded.conf()).unwrap()
}

fn env(recorded: &Recorded) -> String {
    recorded.lines("head")[1..].iter().map(|line| format!("{line}\n")).collect()
}

/// Parses the recorded leases and checks that they print to the same text.
fn leases(recorded: &Recorded) -> Vec<(&str, Lease)> {
    let read = |(key, value): (_, &str)| {
        let lease = Lease::parse(key, value.as_bytes()).unwrap();
        assert_eq!(lease.attributes.print(), value);
        assert!(key.ends_with(&format!("/{}", lease.key())), "{key}");
        (key, lease)
    };
    recorded.leases().map(read).collect()
}

fn underlay(recorded: &Recorded) -> Underlay {
    let line = recorded.lines("addr").iter().find(|line| line.starts_with("eth0")).unwrap();
    let nets: Vec<IpNet> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let name: IfName = "eth0".parse().unwrap();
    let near = (1..=3).flat_map(|n| [format!("192.168.90.{n}"), format!("fd00:90::{n}")]);
    let on_link: HashMap<IpAddr, IfName> =
        near.map(|address| (address.parse().unwrap(), name)).collect();
    let mut addresses = Addresses::default();
    for net in nets.iter().rev() {
        match net.addr() {
            IpAddr::V4(address) => addresses.v4 = Some(address),
            IpAddr::V6(address) => addresses.v6 = Some(address),
        }
    }
    Underlay { name, index: IfIndex(2), mtu: 1500, addresses, on_link }
}

/// Returns the plan of the node on which the file was recorded, and its own lease.
fn plan_of(recorded: &Recorded) -> (Plan, Lease) {
    let (conf, leases, underlay) = (conf(recorded), leases(recorded), underlay(recorded));
    let is_own = |lease: &&(&str, Lease)| lease.1.attributes.public.v4 == underlay.addresses.v4;
    let own = leases.iter().find(is_own).unwrap();
    let peers: Vec<Peer<'_>> = leases
        .iter()
        .filter(|lease| lease.0 != own.0)
        .map(|(name, lease)| Peer { name, created: 0, lease })
        .collect();
    assert!(!peers.is_empty());
    let node = Node { conf: &conf, lease: &own.1, underlay: &underlay };
    let plan = plan(&node, &peers).unwrap();
    assert_eq!(plan.rejected, []);
    (plan, own.1.clone())
}

fn shown_route(route: &DesiredRoute) -> String {
    let metric = if route.dst.addr().is_ipv6() { " metric 1024" } else { "" };
    let rest = if route.dst.addr().is_ipv6() { " pref medium" } else { "" };
    let plain = route.to_string();
    match plain.strip_suffix(" onlink") {
        Some(plain) => format!("{plain}{metric} onlink{rest}"),
        None => format!("{plain}{metric}{rest}"),
    }
}

/// Formats a device as `ip -d link` does.
fn shown_device(device: &overlay::desired::DesiredDevice) -> Vec<String> {
    let flags = match device.kind {
        DeviceKind::Tun => "<POINTOPOINT,MULTICAST,NOARP,UP,LOWER_UP>",
        _ => "<BROADCAST,MULTICAST,UP,LOWER_UP>",
    };
    let head = format!("{}: {flags} mtu {}", device.name, device.mtu);
    let DeviceKind::Vxlan(vxlan) = device.kind else { return vec![head] };
    let VxlanDevice { vni, mac, lower, local, port, learning, gbp } = vxlan;
    assert_eq!(lower, IfIndex(2).into());
    let learning = if learning { "" } else { " nolearning" };
    let gbp = if gbp { " gbp" } else { "" };
    let rest = format!(
        "    vxlan id {vni} local {local} dev eth0 srcport 0 0 dstport {port}{learning} ttl auto \
         ageing 300 udpcsum noudp6zerocsumtx noudp6zerocsumrx{gbp}"
    );
    vec![head, format!("    link/ether {mac}"), rest]
}

fn check(text: &str) -> (Recorded, Plan, Lease) {
    let recorded = Recorded::read(text);
    let (plan, own) = plan_of(&recorded);
    let desired = &plan.desired;
    let routes: BTreeSet<String> = desired.routes.values().map(shown_route).collect();
    assert_eq!(routes, recorded.routes());
    let neighbours = desired.neighbours.iter();
    let neighbours: BTreeSet<String> = neighbours
        .map(|((device, ip), mac)| format!("{ip} dev {device} lladdr {mac} permanent"))
        .collect();
    assert_eq!(neighbours, recorded.on_flannel("neigh", "permanent"));
    let forwarding = desired.forwarding.iter();
    let forwarding: BTreeSet<String> = forwarding
        .map(|((device, mac), dst)| format!("{mac} dev {device} dst {dst} self permanent"))
        .collect();
    assert_eq!(forwarding, recorded.on_flannel("fdb", "self permanent"));
    let addresses: BTreeSet<String> =
        desired.addresses.iter().map(|one| format!("{} {}", one.device, one.prefix)).collect();
    assert_eq!(addresses, recorded.addresses());
    let devices: Vec<String> = desired.devices.values().flat_map(shown_device).collect();
    for line in &devices {
        assert!(recorded.lines("link").contains(line), "{line:?} was not recorded");
    }
    let count = recorded.lines("link").iter().filter(|line| !line.starts_with(' ')).count();
    assert_eq!(desired.devices.len(), count);
    (recorded, plan, own)
}

fn shown_env(recorded: &Recorded, plan: &Plan, own: &Lease) -> String {
    let networks = conf(recorded).networks.iter().collect();
    let (subnets, mtu) = (own.subnets.iter().collect(), plan.pod_mtu);
    SubnetEnv { networks, subnets, mtu, ip_masq: true }.to_string()
}

#[test]
fn vxlan_plans_of_both_nodes_match_flannel() {
    check(include_str!("recorded/vxlan-n1.txt"));
    check(include_str!("recorded/vxlan-n2.txt"));
}

#[test]
fn vxlan_with_direct_routing_matches_flannel() {
    let (recorded, plan, own) = check(include_str!("recorded/vxlan-direct.txt"));
    assert_eq!(shown_env(&recorded, &plan, &own), env(&recorded));
}

#[test]
fn dual_stack_vxlan_matches_flannel() {
    for text in [include_str!("recorded/vxlan-dual.txt"), include_str!("recorded/vxlan-nft.txt")] {
        let (recorded, plan, own) = check(text);
        // flannel sets a pod MTU of 1450, which does not fit into its IPv6 tunnel with MTU 1430.
        let right = env(&recorded).replace("FLANNEL_MTU=1450", "FLANNEL_MTU=1430");
        assert_eq!(shown_env(&recorded, &plan, &own), right);
    }
}

#[test]
fn host_gw_matches_flannel() {
    let (recorded, plan, own) = check(include_str!("recorded/hostgw.txt"));
    assert_eq!(shown_env(&recorded, &plan, &own), env(&recorded));
}

#[test]
fn udp_matches_flannel() {
    let (recorded, plan, own) = check(include_str!("recorded/udp.txt"));
    assert_eq!(shown_env(&recorded, &plan, &own), env(&recorded));
    let peers: Vec<String> =
        plan.desired.udp.iter().map(|(subnet, to)| format!("{subnet} {to}")).collect();
    assert_eq!(peers, ["10.5.1.0/24 192.168.90.2:8285"]);
}

/// Kernel state that flannel leaves: the desired state without owner tag and protocol.
fn state_of_flannel(plan: &Plan) -> ObservedState {
    let desired = &plan.desired;
    let devices = desired.devices.values().map(|device| ObservedDevice {
        name: device.name,
        alias: None,
        is_up: true,
        mtu: device.mtu,
        kind: ObservedKind::Known(device.kind),
    });
    let routes = desired.routes.values().map(|route| ObservedRoute {
        route: *route,
        metric: route.metric(),
        protocol: kernel::route::PROTOCOL_BOOT,
        nexthop: None,
    });
    let forwarding = desired.forwarding.iter().map(|((device, mac), dst)| (*device, *mac, *dst));
    ObservedState {
        devices: devices.collect(),
        routes: routes.collect(),
        addresses: desired.addresses.clone(),
        neighbours: desired.neighbours.clone(),
        forwarding: forwarding.collect(),
        ..ObservedState::default()
    }
}

#[test]
fn taking_over_from_flannel_only_sets_owner() {
    for text in [
        include_str!("recorded/vxlan-n1.txt"),
        include_str!("recorded/vxlan-dual.txt"),
        include_str!("recorded/vxlan-direct.txt"),
        include_str!("recorded/hostgw.txt"),
        include_str!("recorded/udp.txt"),
    ] {
        let (recorded, plan, _) = check(text);
        let ownership = Ownership::new(&conf(&recorded), "podwire");
        let changes = diff(&plan.desired, &state_of_flannel(&plan), &ownership).changes;
        assert!(!changes.is_empty());
        for change in changes {
            let is_takeover = matches!(
                change,
                Change::ChangeDevice { to: DeviceChange::Owner, .. }
                    | Change::AddNexthop { .. }
                    | Change::SetRoute { .. }
            );
            assert!(is_takeover, "{change}");
        }
    }
}
