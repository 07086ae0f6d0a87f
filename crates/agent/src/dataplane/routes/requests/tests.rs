// SPDX-License-Identifier: Apache-2.0
use kernel::MacAddr;
use kernel::wireguard::{PresharedKey, PublicKey};
use overlay::desired::{DesiredRoute, DeviceAddress, NextHop};
use overlay::observed::ObservedRoute;

use super::*;

fn name(text: &str) -> IfName {
    text.parse().unwrap()
}

fn known(device: IfName) -> Option<IfIndex> {
    (device.as_str() != "gone").then_some(IfIndex(7))
}

/// Shows operation and object of the request.
fn shown(change: &Change, is_exclusive: bool) -> Vec<String> {
    match step(change, "owner", is_exclusive, known) {
        Step::Send(one) => vec![format!("{} {}", one.op, one.object())],
        other => vec![format!("{other:?}")],
    }
}

fn route(device: &str) -> DesiredRoute {
    let next_hop = NextHop {
        gateway: Some("10.5.2.0".parse().unwrap()),
        device: name(device),
        onlink: true,
        is_link_scope: false,
        mtu: None,
    };
    DesiredRoute::unicast("10.5.2.0/24".parse().unwrap(), next_hop)
}

#[test]
fn change_converts_to_one_request() {
    let device = name("flannel.1");
    let (ip, mac) = ("10.5.2.0".parse().unwrap(), MacAddr([2, 0, 0, 0, 0, 2]));
    let dst = "192.0.2.2".parse().unwrap();
    let gateway = Gateway { address: ip, device, onlink: true };
    let address = DeviceAddress { device, prefix: "10.5.1.0/32".parse().unwrap() };
    let observed =
        ObservedRoute { route: route("flannel.1"), metric: 0, protocol: 3, nexthop: None };
    let change = |to| Change::ChangeDevice { name: device, to };
    for (change, expected) in [
        (change(DeviceChange::Owner), "set alias of #7"),
        (change(DeviceChange::Mtu(1400)), "set MTU of #7"),
        (change(DeviceChange::Mac(mac)), "set MAC address of #7"),
        (change(DeviceChange::Up), "set link up #7"),
        (Change::AddAddress(address), "add address 10.5.1.0/32 on #7"),
        (Change::RemoveAddress(address), "remove address 10.5.1.0/32 on #7"),
        (Change::SetNeighbour { device, ip, mac }, "replace neighbour 10.5.2.0 on #7"),
        (Change::RemoveNeighbour { device, ip }, "remove neighbour 10.5.2.0 on #7"),
        (
            Change::SetForwarding { device, mac, dst },
            "replace forwarding entry 02:00:00:00:00:02 via 192.0.2.2 on #7",
        ),
        (
            Change::RemoveForwarding { device, mac, dst },
            "remove forwarding entry 02:00:00:00:00:02 via 192.0.2.2 on #7",
        ),
        (Change::AddNexthop { id: 9, gateway }, "add next hop 9 via 10.5.2.0 dev #7"),
        (Change::RemoveNexthop { id: 9 }, "remove next hop 9"),
        (
            Change::SetRoute { route: route("flannel.1"), nexthop: Some(9) },
            "replace route 10.5.2.0/24 by next hop 9",
        ),
        (Change::RemoveRoute(observed), "remove route 10.5.2.0/24 via 10.5.2.0 dev #7"),
    ] {
        assert_eq!(shown(&change, false), [expected], "{change}");
    }
}

#[test]
fn exclusive_route_is_not_replaced() {
    let change = Change::SetRoute { route: route("flannel.1"), nexthop: None };
    assert_eq!(shown(&change, true), ["add route 10.5.2.0/24 via 10.5.2.0 dev #7"]);
}

#[test]
fn change_on_a_missing_device_is_no_request() {
    let device = name("gone");
    let ip = "10.5.2.0".parse().unwrap();
    let remove = Change::RemoveNeighbour { device, ip };
    assert_eq!(step(&remove, "owner", false, known), Step::Gone);
    let set = Change::SetNeighbour { device, ip, mac: MacAddr([2; 6]) };
    assert_eq!(step(&set, "owner", false, known), Step::NoDevice(device));
}

#[test]
fn peer_request_sets_everything_but_a_roamed_endpoint() {
    let peer = DesiredWireguardPeer {
        endpoint: "192.0.2.2:51820".parse().unwrap(),
        allowed: ["10.5.2.0/24".parse().unwrap()].into(),
        psk: None,
        keepalive: None,
    };
    let request = set_peer(PublicKey([1; 32]), &peer, false);
    assert_eq!((request.endpoint, request.keepalive), (Some(peer.endpoint), Some(0)));
    assert_eq!(request.preshared_key, Some(PresharedKey([0; 32])), "an earlier key is removed");
    assert!(request.replace_allowed_ips && !request.remove);
    let secret =
        DesiredWireguardPeer { psk: Some(PresharedKey([7; 32])), keepalive: Some(25), ..peer };
    let request = set_peer(PublicKey([1; 32]), &secret, true);
    assert_eq!((request.endpoint, request.keepalive), (None, Some(25)));
    assert_eq!(request.preshared_key, Some(PresharedKey([7; 32])));
}
