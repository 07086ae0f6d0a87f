// SPDX-License-Identifier: Apache-2.0
//! VXLAN: a device for each family that carries, and for each subnet of a peer a neighbour, a
//! forwarding entry and a route. The gateway of the route is the subnet's base address, which the
//! peer's device has.
//!
//! A subnet is carried by its own family where both nodes can, else by the other one: frames in a
//! tunnel do not care what is outside.

use std::net::IpAddr;

use ipnet::IpNet;
use kernel::{Family, IfName};

use super::wanted::{Address, Device, DeviceKind, Lower, Route, VxlanDevice, Wanted};
use super::{Error, Node, Peer, Reason, direct, tunnel_mtu};
use crate::family::{self, PerFamily};
use crate::lease::{Data, Vtep};
use crate::netconf::Vxlan;

/// Headers of Ethernet, VXLAN and UDP, and of the family outside.
fn overhead(carrier: Family) -> u32 {
    match carrier {
        Family::V4 => 14 + 8 + 8 + 20,
        Family::V6 => 14 + 8 + 8 + 40,
    }
}

/// flannel's names. It cannot have numbers that make them too long; ours are shorter then.
pub fn device_name(vni: u32, carrier: Family) -> IfName {
    let (long, short) = match carrier {
        Family::V4 => (format!("flannel.{vni}"), format!("fl.{vni}")),
        Family::V6 => (format!("flannel-v6.{vni}"), format!("fl-v6.{vni}")),
    };
    long.parse().or_else(|_| short.parse()).expect("eight digits and a few letters are a name")
}

pub(super) fn devices(node: &Node<'_>, conf: &Vxlan) -> Result<Wanted, Error> {
    let ours = vteps(node)?;
    let mut wanted = Wanted::default();
    for (carrier, vtep) in ours.iter() {
        let name = device_name(conf.vni, carrier);
        let local = node.underlay.addresses.get(carrier).ok_or(Error::NoUnderlay(carrier))?;
        let kind = DeviceKind::Vxlan(VxlanDevice {
            vni: conf.vni,
            mac: vtep.mac,
            lower: Lower { index: node.underlay.index, name: Some(node.underlay.name) },
            local,
            port: conf.port,
            learning: conf.learning,
            gbp: conf.gbp,
        });
        let mtu = tunnel_mtu(node, conf.mtu, overhead(carrier))?;
        wanted.devices.insert(name, Device { name, mtu, kind });
    }
    for subnet in node.subnets() {
        let carrier = home(ours, family::of(subnet)).ok_or(Error::NoTunnel(subnet))?;
        let device = device_name(conf.vni, carrier);
        wanted.addresses.insert(Address { device, prefix: family::host(subnet.network()) });
    }
    Ok(wanted)
}

pub(super) fn carry(
    node: &Node<'_>,
    conf: &Vxlan,
    peer: &Peer<'_>,
    subnet: IpNet,
    wanted: &mut Wanted,
) -> Result<(), Reason> {
    if conf.direct_routing
        && let Some(route) = direct(node, peer, subnet)
    {
        wanted.routes.insert(subnet, route);
        return Ok(());
    }
    let (carrier, theirs, public) = tunnel(node, peer, family::of(subnet))?;
    if let Some(vni) = theirs.vni.filter(|vni| *vni != conf.vni) {
        return Err(Reason::Vni { theirs: vni, ours: conf.vni });
    }
    let device = device_name(conf.vni, carrier);
    // A clone of a machine has its identity, too.
    if ours(node, carrier).is_some_and(|vtep| vtep.mac == theirs.mac) {
        return Err(Reason::OwnMac(theirs.mac));
    }
    let behind = wanted.forwarding.entry((device, theirs.mac)).or_insert(public);
    if *behind != public {
        return Err(Reason::MacTaken(theirs.mac));
    }
    let gateway = subnet.network();
    wanted.neighbours.insert((device, gateway), theirs.mac);
    wanted.routes.insert(subnet, Route::onlink(subnet, gateway, device));
    Ok(())
}

fn vteps<'a>(node: &Node<'a>) -> Result<&'a PerFamily<Vtep>, Error> {
    match &node.lease.attributes.data {
        Data::Vxlan(vteps) => Ok(vteps),
        other => Err(Error::OwnData { published: other.kind().to_owned(), backend: "vxlan" }),
    }
}

fn ours<'a>(node: &Node<'a>, carrier: Family) -> Option<&'a Vtep> {
    vteps(node).ok()?.get(carrier)
}

/// The device that has the address of a family of ours.
fn home(ours: &PerFamily<Vtep>, family: Family) -> Option<Family> {
    [family, family::other(family)].into_iter().find(|carrier| ours.get(*carrier).is_some())
}

/// The family that both nodes have a tunnel over.
fn tunnel<'a>(
    node: &Node<'_>,
    peer: &Peer<'a>,
    family: Family,
) -> Result<(Family, &'a Vtep, IpAddr), Reason> {
    let attributes = &peer.lease.attributes;
    let Data::Vxlan(theirs) = &attributes.data else { return Err(peer.other_backend("vxlan")) };
    if theirs.iter().next().is_none() {
        return Err(Reason::NoData { backend: "vxlan" });
    }
    let over = |carrier| {
        ours(node, carrier)?;
        Some((carrier, theirs.get(carrier)?, attributes.public.get(carrier)?))
    };
    over(family).or_else(|| over(family::other(family))).ok_or(Reason::NoCommonUnderlay)
}
