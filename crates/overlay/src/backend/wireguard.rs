// SPDX-License-Identifier: Apache-2.0
//! WireGuard: one device for each family, or one for both; the whole network is routed into it, and
//! the subnets that a peer may send and is sent decide the rest.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use kernel::wireguard::PublicKey;
use kernel::{Family, IfName};

use crate::backend::{BackendData, Wireguard, WireguardData, WireguardMode};
use crate::cidr::{self, Addresses, PerFamily};
use crate::desired::{
    DesiredDevice, DesiredRoute, DesiredState, DesiredWireguardPeer, DeviceAddress, DeviceKind,
};
use crate::plan::{Error, Node, Peer, RejectReason, tunnel_mtu};

/// What flannel reckons with, whatever the family outside.
const OVERHEAD: u32 = 80;

/// The device of a family; with one tunnel for both it is that of IPv4.
pub fn device_name(carrier: Family) -> IfName {
    let name = match carrier {
        Family::V4 => "flannel-wg",
        Family::V6 => "flannel-wg-v6",
    };
    name.parse().expect("a dozen letters are a name")
}

pub(crate) fn devices(node: &Node<'_>, conf: &Wireguard) -> Result<DesiredState, Error> {
    let ours = own(node)?;
    let mtu = tunnel_mtu(node, conf.mtu, OVERHEAD)?;
    let mut desired = DesiredState::default();
    for (carrier, end) in ours.iter() {
        let name = device_of(conf, carrier);
        let listen_port = match (conf.mode, carrier) {
            (WireguardMode::Separate, Family::V6) => conf.listen_port_v6,
            _ => conf.listen_port,
        };
        let kind = DeviceKind::Wireguard { public_key: end.key, listen_port };
        desired.devices.insert(name, DesiredDevice { name, mtu, kind });
    }
    for subnet in node.subnets() {
        let family = cidr::of(subnet);
        let network = node.conf.networks.get(family).unwrap_or(subnet);
        let carrier = home(ours, family).ok_or(Error::NoTunnel(subnet))?;
        let device = device_of(conf, carrier);
        desired.addresses.insert(DeviceAddress { device, prefix: cidr::host(subnet.network()) });
        desired.routes.insert(network, DesiredRoute::into_device(network, device, true));
    }
    Ok(desired)
}

pub(crate) fn carry(
    node: &Node<'_>,
    conf: &Wireguard,
    peer: &Peer<'_>,
    subnet: IpNet,
    desired: &mut DesiredState,
) -> Result<(), RejectReason> {
    let BackendData::Wireguard(theirs) = &peer.lease.attributes.data else {
        return Err(peer.other_backend("wireguard"));
    };
    if theirs.iter().next().is_none() {
        return Err(RejectReason::NoData { backend: "wireguard" });
    }
    let Ok(ours) = own(node) else { return Err(RejectReason::NoCommonUnderlay) };
    let family = cidr::of(subnet);
    let (carrier, key, endpoint) = match conf.mode {
        WireguardMode::Separate => {
            separate(conf, ours, theirs, &peer.lease.attributes.public, family)
        }
        _ => single(node, conf, theirs, &peer.lease.attributes.public),
    }
    .ok_or(RejectReason::NoCommonUnderlay)?;
    if ours.iter().any(|(_, end)| end.key == key) {
        return Err(RejectReason::OwnKey);
    }
    let device = device_of(conf, carrier);
    let fresh = DesiredWireguardPeer {
        endpoint,
        allowed: BTreeSet::new(),
        psk: conf.psk.clone(),
        keepalive: conf.keepalive,
    };
    let entry = desired.wireguard.entry((device, key)).or_insert(fresh);
    if entry.endpoint != endpoint {
        return Err(RejectReason::KeyTaken);
    }
    entry.allowed.insert(subnet);
    // The network's route leads elsewhere if most of this family take another tunnel.
    let home = home(ours, family).map(|carrier| device_of(conf, carrier));
    if home != Some(device) {
        desired.routes.insert(subnet, DesiredRoute::into_device(subnet, device, true));
    }
    Ok(())
}

type Tunnel = (Family, PublicKey, SocketAddr);

/// The tunnel of the subnet's own family, else the other one.
fn separate(
    conf: &Wireguard,
    ours: &PerFamily<WireguardData>,
    theirs: &PerFamily<WireguardData>,
    public: &Addresses,
    family: Family,
) -> Option<Tunnel> {
    let over = |carrier: Family| {
        ours.get(carrier)?;
        let end = theirs.get(carrier)?;
        let own_port = match carrier {
            Family::V4 => conf.listen_port,
            Family::V6 => conf.listen_port_v6,
        };
        let endpoint = SocketAddr::new(public.get(carrier)?, end.port.unwrap_or(own_port));
        Some((carrier, end.key, endpoint))
    };
    over(family).or_else(|| over(cidr::other(family)))
}

/// The one tunnel, which the device of IPv4 is.
fn single(
    node: &Node<'_>,
    conf: &Wireguard,
    theirs: &PerFamily<WireguardData>,
    public: &Addresses,
) -> Option<Tunnel> {
    let end = theirs.v4.or(theirs.v6)?;
    let outside = match conf.mode {
        WireguardMode::Ipv4 => Family::V4,
        WireguardMode::Ipv6 => Family::V6,
        _ => likelier(&node.underlay.addresses, public)?,
    };
    // flannel listens on the first port for both families, and still publishes the second one.
    let port = match (theirs.v4, end.port) {
        (None, Some(port)) if port == conf.listen_port_v6 => conf.listen_port,
        (_, port) => port.unwrap_or(conf.listen_port),
    };
    Some((Family::V4, end.key, SocketAddr::new(public.get(outside)?, port)))
}

/// The family over which a peer is likelier to be reached, as flannel guesses.
fn likelier(ours: &Addresses, theirs: &Addresses) -> Option<Family> {
    let is_private_v6 = |address: Ipv6Addr| address.segments()[0] & 0xfe00 == 0xfc00;
    let public_v4 = |address: &Ipv4Addr| !address.is_private();
    match (theirs.v4, theirs.v6) {
        (None, None) => None,
        (None, Some(_)) => Some(Family::V6),
        (Some(_), None) => Some(Family::V4),
        (Some(v4), Some(_)) if public_v4(&v4) && ours.v4.is_some() => Some(Family::V4),
        (Some(_), Some(v6)) => {
            let is_open =
                |address: Option<Ipv6Addr>| address.is_some_and(|one| !is_private_v6(one));
            let is_v6 = is_open(Some(v6)) && is_open(ours.v6) || ours.v4.is_none();
            Some(if is_v6 { Family::V6 } else { Family::V4 })
        }
    }
}

fn own<'a>(node: &Node<'a>) -> Result<&'a PerFamily<WireguardData>, Error> {
    match &node.lease.attributes.data {
        BackendData::Wireguard(ends) => Ok(ends),
        other => Err(Error::OwnData { published: other.kind().to_owned(), backend: "wireguard" }),
    }
}

fn device_of(conf: &Wireguard, carrier: Family) -> IfName {
    device_name(if conf.mode == WireguardMode::Separate { carrier } else { Family::V4 })
}

/// The tunnel that the network of a family is routed into.
fn home(ours: &PerFamily<WireguardData>, family: Family) -> Option<Family> {
    [family, cidr::other(family)].into_iter().find(|carrier| ours.get(*carrier).is_some())
}
