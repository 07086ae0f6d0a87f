// SPDX-License-Identifier: Apache-2.0
//! IPv4 in IPv4: one device to any remote; the gateway of a route is the remote.

use ipnet::IpNet;
use kernel::{Family, IfName};

use super::wanted::{Address, Device, DeviceKind, Route, Wanted};
use super::{Error, Node, Peer, Reason, direct, tunnel_mtu};
use crate::family;
use crate::netconf::Ipip;

/// One more header.
const OVERHEAD: u32 = 20;

pub fn device_name() -> IfName {
    "flannel.ipip".parse().expect("a dozen letters are a name")
}

pub(super) fn devices(node: &Node<'_>) -> Result<Wanted, Error> {
    let local = node.underlay.addresses.v4.ok_or(Error::NoUnderlay(Family::V4))?;
    let subnet = node.lease.subnets.v4().ok_or(Error::Ipv4Only { backend: "ipip" })?;
    let name = device_name();
    let mtu = tunnel_mtu(node, None, OVERHEAD)?;
    let mut wanted = Wanted::default();
    wanted.devices.insert(name, Device { name, mtu, kind: DeviceKind::Ipip { local } });
    let prefix = family::host(subnet.network().into());
    wanted.addresses.insert(Address { device: name, prefix });
    Ok(wanted)
}

pub(super) fn carry(
    node: &Node<'_>,
    conf: &Ipip,
    peer: &Peer<'_>,
    subnet: IpNet,
    wanted: &mut Wanted,
) -> Result<(), Reason> {
    if family::of(subnet) == Family::V6 {
        return Err(Reason::Ipv4Only { backend: "ipip" });
    }
    let public = peer.lease.attributes.public.get(Family::V4).ok_or(Reason::NoCommonUnderlay)?;
    let near = if conf.direct_routing { direct(node, peer, subnet) } else { None };
    let route = near.unwrap_or_else(|| Route::onlink(subnet, public, device_name()));
    wanted.routes.insert(subnet, route);
    Ok(())
}
