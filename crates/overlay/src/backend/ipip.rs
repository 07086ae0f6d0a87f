// SPDX-License-Identifier: Apache-2.0
//! ipip: one IPv4-in-IPv4 device without a fixed remote address. The gateway of a route is the remote
//! node.

use ipnet::IpNet;
use kernel::{Family, IfName};

use crate::cidr;
use crate::desired::{DesiredDevice, DesiredRoute, DesiredState, DeviceAddress, DeviceKind};
use crate::plan::{Error, Node, Peer, RejectReason, direct_route, tunnel_mtu};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipip {
    /// Peers on the same link are reached without a tunnel.
    pub direct_routing: bool,
}

/// The outer IPv4 header.
const OVERHEAD: u32 = 20;

pub(crate) fn device_name() -> IfName {
    "flannel.ipip".parse().expect("a valid interface name")
}

pub(crate) fn devices(node: &Node<'_>) -> Result<DesiredState, Error> {
    let local = node.underlay.addresses.v4.ok_or(Error::NoUnderlay(Family::V4))?;
    let subnet = node.lease.subnets.v4().ok_or(Error::Ipv4Only { backend: "ipip" })?;
    let name = device_name();
    let mtu = tunnel_mtu(node, None, OVERHEAD)?;
    let mut desired = DesiredState::default();
    desired.devices.insert(name, DesiredDevice { name, mtu, kind: DeviceKind::Ipip { local } });
    let prefix = cidr::host(subnet.network().into());
    desired.addresses.insert(DeviceAddress { device: name, prefix });
    Ok(desired)
}

pub(crate) fn add_subnet(
    node: &Node<'_>,
    conf: &Ipip,
    peer: &Peer<'_>,
    subnet: IpNet,
    desired: &mut DesiredState,
) -> Result<(), RejectReason> {
    if cidr::of(subnet) == Family::V6 {
        return Err(RejectReason::Ipv4Only { backend: "ipip" });
    }
    let public = peer.lease.attributes.public.get(Family::V4);
    let public = public.ok_or(RejectReason::NoCommonUnderlay)?;
    let direct = if conf.direct_routing { direct_route(node, peer, subnet) } else { None };
    let route = direct.unwrap_or_else(|| DesiredRoute::onlink(subnet, public, device_name()));
    desired.routes.insert(subnet, route);
    Ok(())
}
