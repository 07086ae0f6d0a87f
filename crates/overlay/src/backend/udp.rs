// SPDX-License-Identifier: Apache-2.0
//! udp: a TUN device that the whole network is routed into. Which node a packet goes to is looked
//! up by the program that reads it.

use std::net::SocketAddrV4;

use ipnet::IpNet;
use kernel::{Family, IfName};

use crate::backend::Udp;
use crate::cidr;
use crate::desired::{DesiredDevice, DesiredRoute, DesiredState, DeviceAddress, DeviceKind};
use crate::plan::{Error, Node, Peer, RejectReason, tunnel_mtu};

/// Headers of IPv4 and UDP; the packet itself follows.
const OVERHEAD: u32 = 20 + 8;

pub fn device_name() -> IfName {
    "flannel0".parse().expect("eight letters are a name")
}

pub(crate) fn devices(node: &Node<'_>) -> Result<DesiredState, Error> {
    let needs_v4 = Error::Ipv4Only { backend: "udp" };
    let subnet = node.lease.subnets.v4().ok_or(needs_v4.clone())?;
    let network = node.conf.networks.v4().ok_or(needs_v4)?;
    node.underlay.addresses.v4.ok_or(Error::NoUnderlay(Family::V4))?;
    let name = device_name();
    let mtu = tunnel_mtu(node, None, OVERHEAD)?;
    let mut desired = DesiredState::default();
    desired.devices.insert(name, DesiredDevice { name, mtu, kind: DeviceKind::Tun });
    let prefix = cidr::host(subnet.network().into());
    desired.addresses.insert(DeviceAddress { device: name, prefix });
    desired.routes.insert(network.into(), DesiredRoute::into_device(network.into(), name, false));
    Ok(desired)
}

pub(crate) fn carry(
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
