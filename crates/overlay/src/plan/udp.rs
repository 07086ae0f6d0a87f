// SPDX-License-Identifier: Apache-2.0
//! udp: a TUN device that the whole network is routed into. Which node a packet goes to is looked
//! up by the program that reads it.

use std::net::SocketAddrV4;

use ipnet::IpNet;
use kernel::{Family, IfName};

use super::wanted::{Address, Device, DeviceKind, Route, Wanted};
use super::{Error, Node, Peer, Reason, tunnel_mtu};
use crate::family;
use crate::netconf::Udp;

/// Headers of IPv4 and UDP; the packet itself follows.
const OVERHEAD: u32 = 20 + 8;

pub fn device_name() -> IfName {
    "flannel0".parse().expect("eight letters are a name")
}

pub(super) fn devices(node: &Node<'_>) -> Result<Wanted, Error> {
    let needs_v4 = Error::Ipv4Only { backend: "udp" };
    let subnet = node.lease.subnets.v4().ok_or(needs_v4.clone())?;
    let network = node.conf.networks.v4().ok_or(needs_v4)?;
    node.underlay.addresses.v4.ok_or(Error::NoUnderlay(Family::V4))?;
    let name = device_name();
    let mtu = tunnel_mtu(node, None, OVERHEAD)?;
    let mut wanted = Wanted::default();
    wanted.devices.insert(name, Device { name, mtu, kind: DeviceKind::Tun });
    let prefix = family::host(subnet.network().into());
    wanted.addresses.insert(Address { device: name, prefix });
    wanted.routes.insert(network.into(), Route::into_device(network.into(), name, false));
    Ok(wanted)
}

pub(super) fn carry(
    conf: &Udp,
    peer: &Peer<'_>,
    subnet: IpNet,
    wanted: &mut Wanted,
) -> Result<(), Reason> {
    let IpNet::V4(subnet) = subnet else { return Err(Reason::Ipv4Only { backend: "udp" }) };
    let public = peer.lease.attributes.public.v4.ok_or(Reason::NoCommonUnderlay)?;
    wanted.udp.insert(subnet, SocketAddrV4::new(public, conf.port));
    Ok(())
}
