// SPDX-License-Identifier: Apache-2.0
//! The tunnel devices of routed pods.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kernel::{Family, IfName, MacAddr};
use sha1::{Digest, Sha1};

use super::{Encapsulation, RoutedNode, RoutedPool};
use crate::cidr;
use crate::desired::{
    DesiredDevice, DesiredState, DeviceAddress, DeviceKind, LowerDevice, VxlanDevice,
};
use crate::plan::{Error, Underlay};

/// Calico's VXLAN network identifier.
const VNI: u32 = 4096;

/// The port that IANA assigned to VXLAN, which Calico uses.
const PORT: u16 = 4789;

/// A tunnel device of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tunnel {
    /// Carries packets of this family over the same family.
    Vxlan(Family),
    Ipip,
}

impl Tunnel {
    /// Returns the tunnel that a pool needs.
    pub fn of(pool: &RoutedPool) -> Option<Self> {
        match pool.encapsulation {
            Encapsulation::None => None,
            Encapsulation::Vxlan(_) => Some(Self::Vxlan(cidr::of(pool.cidr))),
            Encapsulation::Ipip(_) => Some(Self::Ipip),
        }
    }
}

/// Returns Calico's name of the VXLAN device.
pub(super) fn vxlan_name(family: Family) -> IfName {
    let name = match family {
        Family::V4 => "vxlan.calico",
        Family::V6 => "vxlan-v6.calico",
    };
    name.parse().expect("a valid interface name")
}

/// Returns the name of the IPIP device. Calico uses `tunl0`, which the kernel module creates and which cannot be
/// removed. A device with another name exchanges packets with it.
pub(super) fn ipip_name() -> IfName {
    "ipip.podwire".parse().expect("a valid interface name")
}

/// Returns the names of the devices with the link kind of each.
pub(crate) fn known_devices() -> BTreeMap<IfName, &'static str> {
    BTreeMap::from([
        (vxlan_name(Family::V4), "vxlan"),
        (vxlan_name(Family::V6), "vxlan"),
        (ipip_name(), "ipip"),
    ])
}

/// Returns the MAC address that Calico gives to the VXLAN device of a node: the letter `f` and five bytes of
/// the SHA-1 of the node's name. Other nodes compute the same one if the node publishes none.
pub fn tunnel_mac(node: &str, family: Family) -> MacAddr {
    let name = match family {
        Family::V4 => node.to_owned(),
        // Calico distinguishes the devices of one node by the name that it hashes.
        Family::V6 => format!("{node}-v6"),
    };
    let digest = Sha1::digest(name.as_bytes());
    let mut octets = [b'f', 0, 0, 0, 0, 0];
    octets[1..].copy_from_slice(&digest[..5]);
    MacAddr(octets)
}

/// Returns the devices of these tunnels with their addresses.
pub(super) fn desired<'a>(
    own: &RoutedNode,
    underlay: &Underlay,
    tunnels: impl IntoIterator<Item = &'a Tunnel>,
) -> Result<DesiredState, Error> {
    let mut desired = DesiredState::default();
    for tunnel in tunnels {
        let device = match tunnel {
            Tunnel::Vxlan(family) => vxlan(own, underlay, *family)?,
            Tunnel::Ipip => ipip(own, underlay)?,
        };
        // The node has no address for the tunnel yet.
        let Some((device, address)) = device else { continue };
        let prefix = cidr::host(address);
        desired.addresses.insert(DeviceAddress { device: device.name, prefix });
        desired.devices.insert(device.name, device);
    }
    Ok(desired)
}

fn vxlan(
    own: &RoutedNode,
    underlay: &Underlay,
    family: Family,
) -> Result<Option<(DesiredDevice, IpAddr)>, Error> {
    let Some(end) = own.vxlan.get(family) else { return Ok(None) };
    let local = underlay.addresses.get(family).ok_or(Error::NoUnderlay(family))?;
    let name = vxlan_name(family);
    let kind = DeviceKind::Vxlan(VxlanDevice {
        vni: VNI,
        mac: end.mac,
        lower: LowerDevice { index: underlay.index, name: Some(underlay.name) },
        local,
        port: PORT,
        learning: false,
        gbp: false,
    });
    // Headers of Ethernet, VXLAN, UDP and IP.
    let overhead = 14 + 8 + 8 + if family == Family::V4 { 20 } else { 40 };
    let mtu = mtu(underlay, overhead, family)?;
    Ok(Some((DesiredDevice { name, mtu, kind }, end.address)))
}

fn ipip(own: &RoutedNode, underlay: &Underlay) -> Result<Option<(DesiredDevice, IpAddr)>, Error> {
    let Some(address) = own.ipip else { return Ok(None) };
    let local = underlay.addresses.v4.ok_or(Error::NoUnderlay(Family::V4))?;
    let name = ipip_name();
    // The outer IPv4 header.
    let mtu = mtu(underlay, 20, Family::V4)?;
    let kind = DeviceKind::Ipip { local };
    Ok(Some((DesiredDevice { name, mtu, kind }, address.into())))
}

/// Returns whether Calico takes an interface with this name for one that leads out of the host. Its default for
/// `mtuIfacePattern` is `^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)`.
pub fn leads_out_of_host(name: &IfName) -> bool {
    let name = name.as_str();
    let is_kernel_name = ["eth", "wlan", "wwan"].iter().any(|prefix| name.starts_with(prefix));
    let is_udev_name = ["en", "wl", "ww", "sl", "ib"].iter().any(|prefix| {
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with(['P', 'c', 'o', 'p', 's', 'v', 'x']))
    });
    is_kernel_name || is_udev_name
}

/// Returns the MTU of a tunnel, which must be at least the minimum MTU of its family.
fn mtu(underlay: &Underlay, overhead: u32, family: Family) -> Result<u32, Error> {
    let least = if family == Family::V6 { 1280 } else { 68 };
    match underlay.mtu.checked_sub(overhead) {
        Some(mtu) if mtu >= least => Ok(mtu),
        _ => {
            let left = i64::from(underlay.mtu) - i64::from(overhead);
            Err(Error::Mtu { name: underlay.name, underlay: underlay.mtu, left, least })
        }
    }
}
