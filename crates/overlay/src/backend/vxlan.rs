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

use crate::backend::{BackendData, Vtep, Vxlan};
use crate::cidr::{self, PerFamily};
use crate::desired::{
    DesiredDevice, DesiredRoute, DesiredState, DeviceAddress, DeviceKind, LowerDevice, VxlanDevice,
};
use crate::plan::{Error, Node, Peer, RejectReason, direct, tunnel_mtu};

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

pub(crate) fn devices(node: &Node<'_>, conf: &Vxlan) -> Result<DesiredState, Error> {
    let ours = vteps(node)?;
    let mut desired = DesiredState::default();
    for (carrier, vtep) in ours.iter() {
        let name = device_name(conf.vni, carrier);
        let local = node.underlay.addresses.get(carrier).ok_or(Error::NoUnderlay(carrier))?;
        let kind = DeviceKind::Vxlan(VxlanDevice {
            vni: conf.vni,
            mac: vtep.mac,
            lower: LowerDevice { index: node.underlay.index, name: Some(node.underlay.name) },
            local,
            port: conf.port,
            learning: conf.learning,
            gbp: conf.gbp,
        });
        let mtu = tunnel_mtu(node, conf.mtu, overhead(carrier))?;
        desired.devices.insert(name, DesiredDevice { name, mtu, kind });
    }
    for subnet in node.subnets() {
        let carrier = home(ours, cidr::of(subnet)).ok_or(Error::NoTunnel(subnet))?;
        let device = device_name(conf.vni, carrier);
        desired.addresses.insert(DeviceAddress { device, prefix: cidr::host(subnet.network()) });
    }
    Ok(desired)
}

pub(crate) fn carry(
    node: &Node<'_>,
    conf: &Vxlan,
    peer: &Peer<'_>,
    subnet: IpNet,
    desired: &mut DesiredState,
) -> Result<(), RejectReason> {
    if conf.direct_routing
        && let Some(route) = direct(node, peer, subnet)
    {
        desired.routes.insert(subnet, route);
        return Ok(());
    }
    let (carrier, theirs, public) = tunnel(node, peer, cidr::of(subnet))?;
    if let Some(vni) = theirs.vni.filter(|vni| *vni != conf.vni) {
        return Err(RejectReason::Vni { theirs: vni, ours: conf.vni });
    }
    let device = device_name(conf.vni, carrier);
    // A clone of a machine has its identity, too.
    if ours(node, carrier).is_some_and(|vtep| vtep.mac == theirs.mac) {
        return Err(RejectReason::OwnMac(theirs.mac));
    }
    let behind = desired.forwarding.entry((device, theirs.mac)).or_insert(public);
    if *behind != public {
        return Err(RejectReason::MacTaken(theirs.mac));
    }
    let gateway = subnet.network();
    desired.neighbours.insert((device, gateway), theirs.mac);
    desired.routes.insert(subnet, DesiredRoute::onlink(subnet, gateway, device));
    Ok(())
}

fn vteps<'a>(node: &Node<'a>) -> Result<&'a PerFamily<Vtep>, Error> {
    match &node.lease.attributes.data {
        BackendData::Vxlan(vteps) => Ok(vteps),
        other => Err(Error::OwnData { published: other.kind().to_owned(), backend: "vxlan" }),
    }
}

fn ours<'a>(node: &Node<'a>, carrier: Family) -> Option<&'a Vtep> {
    vteps(node).ok()?.get(carrier)
}

/// The device that has the address of a family of ours.
fn home(ours: &PerFamily<Vtep>, family: Family) -> Option<Family> {
    [family, cidr::other(family)].into_iter().find(|carrier| ours.get(*carrier).is_some())
}

/// The family that both nodes have a tunnel over.
fn tunnel<'a>(
    node: &Node<'_>,
    peer: &Peer<'a>,
    family: Family,
) -> Result<(Family, &'a Vtep, IpAddr), RejectReason> {
    let attributes = &peer.lease.attributes;
    let BackendData::Vxlan(theirs) = &attributes.data else {
        return Err(peer.other_backend("vxlan"));
    };
    if theirs.iter().next().is_none() {
        return Err(RejectReason::NoData { backend: "vxlan" });
    }
    let over = |carrier| {
        ours(node, carrier)?;
        Some((carrier, theirs.get(carrier)?, attributes.public.get(carrier)?))
    };
    over(family).or_else(|| over(cidr::other(family))).ok_or(RejectReason::NoCommonUnderlay)
}
