// SPDX-License-Identifier: Apache-2.0
//! udp: a TUN device that the whole network is routed into. The agent reads it and sends each packet
//! to the node that has the destination's subnet.

use std::net::SocketAddrV4;

use ipnet::IpNet;
use kernel::{Family, IfName};

use crate::cidr;
use crate::desired::{DesiredDevice, DesiredRoute, DesiredState, DeviceAddress, DeviceKind};
use crate::plan::{Error, Node, Peer, RejectReason, tunnel_mtu};

pub(super) const DEFAULT_PORT: u16 = 8285;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Udp {
    pub port: u16,
}

/// IPv4 and UDP headers. The packet follows them directly.
const OVERHEAD: u32 = 20 + 8;

pub(crate) fn device_name() -> IfName {
    "flannel0".parse().expect("a valid interface name")
}

pub(crate) fn devices(node: &Node<'_>) -> Result<DesiredState, Error> {
    let needs_v4 = Error::Ipv4Only { backend: "udp" };
    let subnet = node.lease.subnets.v4().ok_or(needs_v4.clone())?;
    let network: IpNet = node.conf.networks.v4().ok_or(needs_v4)?.into();
    node.underlay.addresses.v4.ok_or(Error::NoUnderlay(Family::V4))?;
    let name = device_name();
    let mtu = tunnel_mtu(node, None, OVERHEAD)?;
    let mut desired = DesiredState::default();
    desired.devices.insert(name, DesiredDevice { name, mtu, kind: DeviceKind::Tun });
    let prefix = cidr::host(subnet.network().into());
    desired.addresses.insert(DeviceAddress { device: name, prefix });
    desired.routes.insert(network, DesiredRoute::into_device(network, name, false));
    Ok(desired)
}

pub(crate) fn add_subnet(
    conf: &Udp,
    peer: &Peer<'_>,
    subnet: IpNet,
    desired: &mut DesiredState,
) -> Result<(), RejectReason> {
    let IpNet::V4(subnet) = subnet else { return Err(RejectReason::Ipv4Only { backend: "udp" }) };
    let public = peer.lease.attributes.public.v4.ok_or(RejectReason::NoCommonUnderlay)?;
    desired.udp.insert(subnet, SocketAddrV4::new(public, conf.port));
    Ok(())
}
