// SPDX-License-Identifier: Apache-2.0
//! vxlan: one VXLAN device for each underlay family, and a neighbour entry, a forwarding entry and a
//! route for each subnet of a peer. The gateway of the route is the first address of the subnet, which
//! the peer's device has.
//!
//! A subnet uses the tunnel over its own family if both nodes have one, otherwise the tunnel over the
//! other family: a tunnel carries both.

use std::net::IpAddr;

use gojson::DecodeError;
use ipnet::IpNet;
use kernel::{Family, IfName, MacAddr};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{BackendData, PORTS, in_range, mtu};
use crate::cidr::{self, PerFamily};
use crate::desired::{
    DesiredDevice, DesiredRoute, DesiredState, DeviceAddress, DeviceKind, LowerDevice, VxlanDevice,
};
use crate::mac;
use crate::plan::{Error, Node, Peer, RejectReason, direct_route, tunnel_mtu};
use crate::publish::Identity;

/// Default port of the kernel, which is older than the port that IANA assigned to VXLAN (4789).
const DEFAULT_PORT: u16 = 8472;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vxlan {
    /// The VXLAN network identifier.
    pub vni: u32,
    pub port: u16,
    /// Group-based policy extension of the header.
    pub gbp: bool,
    pub learning: bool,
    /// Peers on the same link are reached without a tunnel.
    pub direct_routing: bool,
    /// MTU of the underlay, if it differs from that of the interface.
    pub mtu: Option<u32>,
}

pub(super) const KEYS: &str = "VNI Port GBP Learning DirectRouting MTU";

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct VxlanConf {
    #[serde(rename = "VNI")]
    vni: Option<i64>,
    port: Option<i64>,
    #[serde(rename = "GBP")]
    gbp: Option<bool>,
    learning: Option<bool>,
    direct_routing: Option<bool>,
    #[serde(rename = "MTU")]
    mtu: Option<i64>,
}

impl Vxlan {
    pub(super) fn parse(conf: &Map<String, Value>) -> Result<Self, DecodeError> {
        let conf: VxlanConf = gojson::decode_object(conf)?;
        // The header has 24 bits for it.
        let vni = in_range("VNI", conf.vni, 0..=0xff_ffff)?;
        let port = in_range("Port", conf.port.filter(|port| *port != 0), PORTS)?;
        Ok(Self {
            vni: vni.unwrap_or(1),
            port: port.and_then(|port| u16::try_from(port).ok()).unwrap_or(DEFAULT_PORT),
            gbp: conf.gbp.unwrap_or(false),
            learning: conf.learning.unwrap_or(false),
            direct_routing: conf.direct_routing.unwrap_or(false),
            mtu: mtu(conf.mtu)?,
        })
    }
}

/// A VXLAN tunnel endpoint, as published in a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vtep {
    /// flannel before 0.13.1 does not publish it.
    pub vni: Option<u32>,
    pub mac: MacAddr,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct VtepConf {
    #[serde(rename = "VNI")]
    vni: Option<u32>,
    #[serde(rename = "VtepMAC")]
    mac: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct VtepJson {
    #[serde(rename = "VNI")]
    vni: u32,
    #[serde(rename = "VtepMAC")]
    mac: String,
}

impl Vtep {
    pub(super) fn parse(value: &Value) -> Result<Self, DecodeError> {
        let conf: VtepConf = gojson::decode(value)?;
        let text = conf.mac.unwrap_or_default();
        match text.parse().ok().filter(|mac: &MacAddr| mac.is_unicast()) {
            Some(mac) => Ok(Self { vni: conf.vni, mac }),
            None => {
                let problem = "expected the MAC address of one device";
                Err(DecodeError::at("VtepMAC", format!("{text:?}"), problem))
            }
        }
    }

    pub(super) fn to_json(self) -> VtepJson {
        VtepJson { vni: self.vni.unwrap_or(0), mac: self.mac.to_string() }
    }
}

/// Returns the data that a node publishes for tunnels over these underlay families.
pub(crate) fn lease_data(
    conf: &Vxlan,
    carriers: &[Family],
    identity: &Identity<'_>,
) -> BackendData {
    let vtep =
        |carrier| Vtep { vni: Some(conf.vni), mac: mac::of_node(identity.seed, conf.vni, carrier) };
    BackendData::Vxlan(PerFamily::collect(carriers, vtep))
}

/// Headers of Ethernet, VXLAN and UDP, and of the underlay family.
fn overhead(carrier: Family) -> u32 {
    match carrier {
        Family::V4 => 14 + 8 + 8 + 20,
        Family::V6 => 14 + 8 + 8 + 40,
    }
}

/// Returns flannel's name of the device, or a shorter one if the VNI makes that too long.
pub(crate) fn device_name(vni: u32, carrier: Family) -> IfName {
    let (long, short) = match carrier {
        Family::V4 => (format!("flannel.{vni}"), format!("fl.{vni}")),
        Family::V6 => (format!("flannel-v6.{vni}"), format!("fl-v6.{vni}")),
    };
    long.parse().or_else(|_| short.parse()).expect("the short name with eight digits fits")
}

pub(crate) fn devices(node: &Node<'_>, conf: &Vxlan) -> Result<DesiredState, Error> {
    let own = own_vteps(node)?;
    let mut desired = DesiredState::default();
    for (carrier, vtep) in own.iter() {
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
        let carrier = own.preferred(cidr::of(subnet)).ok_or(Error::NoTunnel(subnet))?;
        let device = device_name(conf.vni, carrier);
        desired.addresses.insert(DeviceAddress { device, prefix: cidr::host(subnet.network()) });
    }
    Ok(desired)
}

pub(crate) fn add_subnet(
    node: &Node<'_>,
    conf: &Vxlan,
    peer: &Peer<'_>,
    subnet: IpNet,
    desired: &mut DesiredState,
) -> Result<(), RejectReason> {
    if conf.direct_routing
        && let Some(route) = direct_route(node, peer, subnet)
    {
        desired.routes.insert(subnet, route);
        return Ok(());
    }
    let (carrier, theirs, public) = tunnel(node, peer, cidr::of(subnet))?;
    if let Some(vni) = theirs.vni.filter(|vni| *vni != conf.vni) {
        return Err(RejectReason::Vni { theirs: vni, ours: conf.vni });
    }
    let device = device_name(conf.vni, carrier);
    // A cloned machine has the identity of the original, and thus its MAC address.
    if own_vtep(node, carrier).is_some_and(|vtep| vtep.mac == theirs.mac) {
        return Err(RejectReason::OwnMac(theirs.mac));
    }
    let dst = desired.forwarding.entry((device, theirs.mac)).or_insert(public);
    if *dst != public {
        return Err(RejectReason::MacTaken(theirs.mac));
    }
    let gateway = subnet.network();
    desired.neighbours.insert((device, gateway), theirs.mac);
    desired.routes.insert(subnet, DesiredRoute::onlink(subnet, gateway, device));
    Ok(())
}

fn own_vteps<'a>(node: &Node<'a>) -> Result<&'a PerFamily<Vtep>, Error> {
    match &node.lease.attributes.data {
        BackendData::Vxlan(vteps) => Ok(vteps),
        other => Err(Error::OwnData { published: other.kind().to_owned(), backend: "vxlan" }),
    }
}

fn own_vtep<'a>(node: &Node<'a>, carrier: Family) -> Option<&'a Vtep> {
    own_vteps(node).ok()?.get(carrier)
}

/// Returns the underlay family over which both nodes have a tunnel, with the peer's endpoint. `family`
/// is preferred.
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
        own_vtep(node, carrier)?;
        Some((carrier, theirs.get(carrier)?, attributes.public.get(carrier)?))
    };
    over(family).or_else(|| over(cidr::other(family))).ok_or(RejectReason::NoCommonUnderlay)
}
