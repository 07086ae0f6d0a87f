// SPDX-License-Identifier: Apache-2.0
//! wireguard: one WireGuard device for each underlay family, or one for both. The whole network is
//! routed into it, and the allowed subnets of the peers select the peer.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use gojson::DecodeError;
use ipnet::IpNet;
use kernel::wireguard::{PresharedKey, PublicKey};
use kernel::{Family, IfName};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use text::Secret;

use super::{BackendData, in_range, mtu, port};
use crate::cidr::{self, Addresses, PerFamily};
use crate::desired::{
    DesiredDevice, DesiredRoute, DesiredState, DesiredWireguardPeer, DeviceAddress, DeviceKind,
};
use crate::plan::{Error, Node, Peer, RejectReason, tunnel_mtu};
use crate::publish::{self, Identity};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wireguard {
    pub listen_port: u16,
    pub listen_port_v6: u16,
    /// MTU of the underlay, if it differs from that of the interface.
    pub mtu: Option<u32>,
    pub psk: Option<PresharedKey>,
    /// Keepalive interval in seconds.
    pub keepalive: Option<u16>,
    pub mode: WireguardMode,
}

/// Tunnels between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireguardMode {
    /// One tunnel for each underlay family.
    Separate,
    /// One tunnel over the family that is more likely to work.
    Auto,
    /// One tunnel over IPv4.
    Ipv4,
    /// One tunnel over IPv6.
    Ipv6,
}

pub(super) const KEYS: &str = "ListenPort ListenPortV6 MTU PSK PersistentKeepaliveInterval Mode";

/// Problem reported for a key that cannot be parsed. Errors never show the key itself.
const KEY_FORM: &str = "expected base64 of 32 bytes";

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct WireguardConf {
    listen_port: Option<i64>,
    listen_port_v6: Option<i64>,
    #[serde(rename = "MTU")]
    mtu: Option<i64>,
    #[serde(rename = "PSK", deserialize_with = "secret")]
    psk: Option<Secret>,
    persistent_keepalive_interval: Option<i64>,
    mode: Option<String>,
}

fn secret<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Secret>, D::Error> {
    Option::<String>::deserialize(value).map(|text| text.map(Secret::new))
}

/// Removes the value of the pre-shared key from an error, whatever its type is.
fn without_secrets(error: DecodeError) -> DecodeError {
    let key = error.path.split(['.', '[']).next().unwrap_or_default();
    let value = error.value.filter(|_| !key.eq_ignore_ascii_case("PSK"));
    DecodeError { value, ..error }
}

impl Wireguard {
    pub(super) fn parse(conf: &Map<String, Value>) -> Result<Self, DecodeError> {
        let conf: WireguardConf = gojson::decode_object(conf).map_err(without_secrets)?;
        let psk = match &conf.psk {
            None => None,
            Some(text) => Some(text.expose().parse().map_err(|_| DecodeError {
                path: "PSK".to_owned(),
                value: None,
                problem: KEY_FORM.to_owned(),
            })?),
        };
        let mode = match conf.mode.as_deref() {
            None | Some("separate") => WireguardMode::Separate,
            Some("auto") => WireguardMode::Auto,
            Some("ipv4") => WireguardMode::Ipv4,
            Some("ipv6") => WireguardMode::Ipv6,
            Some(other) => {
                let problem = "expected one of separate, auto, ipv4, ipv6";
                return Err(DecodeError::at("Mode", format!("{other:?}"), problem));
            }
        };
        let interval = conf.persistent_keepalive_interval;
        let keepalive = in_range("PersistentKeepaliveInterval", interval, 0..=65_535)?;
        Ok(Self {
            listen_port: port("ListenPort", conf.listen_port)?.unwrap_or(51_820),
            listen_port_v6: port("ListenPortV6", conf.listen_port_v6)?.unwrap_or(51_821),
            mtu: mtu(conf.mtu)?,
            psk,
            keepalive: keepalive.and_then(|secs| u16::try_from(secs).ok()).filter(|secs| *secs > 0),
            mode,
        })
    }
}

/// A WireGuard tunnel endpoint, as published in a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireguardData {
    pub key: PublicKey,
    /// flannel before 0.21 does not publish it.
    pub port: Option<u16>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct WireguardDataConf {
    public_key: Option<String>,
    port: Option<u16>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct WireguardJson {
    public_key: String,
    port: u16,
}

impl WireguardData {
    pub(super) fn parse(value: &Value) -> Result<Self, DecodeError> {
        let conf: WireguardDataConf = gojson::decode(value)?;
        let text = conf.public_key.unwrap_or_default();
        let invalid = |_| DecodeError::at("PublicKey", format!("{text:?}"), KEY_FORM);
        let key = text.parse().map_err(invalid)?;
        Ok(Self { key, port: conf.port.filter(|port| *port != 0) })
    }

    pub(super) fn to_json(self) -> WireguardJson {
        WireguardJson { public_key: self.key.to_string(), port: self.port.unwrap_or(0) }
    }
}

/// Returns the data that a node publishes for tunnels over these underlay families.
pub(crate) fn lease_data(
    conf: &Wireguard,
    carriers: &[Family],
    identity: &Identity<'_>,
) -> Result<BackendData, publish::Error> {
    let key = identity.wireguard_key.ok_or(publish::Error::NoKey)?;
    let end = |carrier| WireguardData { key, port: Some(listen_port(conf, carrier)) };
    Ok(BackendData::Wireguard(PerFamily::collect(carriers, end)))
}

fn listen_port(conf: &Wireguard, carrier: Family) -> u16 {
    match (conf.mode, carrier) {
        (WireguardMode::Separate, Family::V6) => conf.listen_port_v6,
        _ => conf.listen_port,
    }
}

/// The overhead that flannel assumes for both underlay families.
const OVERHEAD: u32 = 80;

/// Returns the name of the device for an underlay family. A single tunnel has the IPv4 name.
pub fn device_name(carrier: Family) -> IfName {
    let name = match carrier {
        Family::V4 => "flannel-wg",
        Family::V6 => "flannel-wg-v6",
    };
    name.parse().expect("a valid interface name")
}

pub(crate) fn devices(node: &Node<'_>, conf: &Wireguard) -> Result<DesiredState, Error> {
    let own = own_data(node)?;
    let mtu = tunnel_mtu(node, conf.mtu, OVERHEAD)?;
    let mut desired = DesiredState::default();
    for (carrier, end) in own.iter() {
        let name = device_of(conf, carrier);
        let listen_port = listen_port(conf, carrier);
        let kind = DeviceKind::Wireguard { public_key: end.key, listen_port };
        desired.devices.insert(name, DesiredDevice { name, mtu, kind });
    }
    for subnet in node.subnets() {
        let family = cidr::of(subnet);
        let network = node.conf.networks.get(family).unwrap_or(subnet);
        let carrier = own.preferred(family).ok_or(Error::NoTunnel(subnet))?;
        let device = device_of(conf, carrier);
        desired.addresses.insert(DeviceAddress { device, prefix: cidr::host(subnet.network()) });
        desired.routes.insert(network, DesiredRoute::into_device(network, device, true));
    }
    Ok(desired)
}

pub(crate) fn add_subnet(
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
    let Ok(own) = own_data(node) else { return Err(RejectReason::NoCommonUnderlay) };
    let family = cidr::of(subnet);
    let public = &peer.lease.attributes.public;
    let tunnel = match conf.mode {
        WireguardMode::Separate => separate_tunnel(conf, own, theirs, public, family),
        _ => single_tunnel(node, conf, theirs, public),
    };
    let Tunnel { carrier, key, endpoint } = tunnel.ok_or(RejectReason::NoCommonUnderlay)?;
    if own.iter().any(|(_, end)| end.key == key) {
        return Err(RejectReason::OwnKey);
    }
    let device = device_of(conf, carrier);
    let new = DesiredWireguardPeer {
        endpoint,
        allowed: BTreeSet::new(),
        psk: conf.psk.clone(),
        keepalive: conf.keepalive,
    };
    let entry = desired.wireguard.entry((device, key)).or_insert(new);
    if entry.endpoint != endpoint {
        return Err(RejectReason::KeyTaken);
    }
    entry.allowed.insert(subnet);
    // The route to the whole network leads into the preferred tunnel of the family. A peer that uses
    // the other tunnel needs a route of its own.
    let preferred = own.preferred(family).map(|carrier| device_of(conf, carrier));
    if preferred != Some(device) {
        desired.routes.insert(subnet, DesiredRoute::into_device(subnet, device, true));
    }
    Ok(())
}

struct Tunnel {
    carrier: Family,
    key: PublicKey,
    endpoint: SocketAddr,
}

/// Returns the tunnel over the subnet's own family, or else the one over the other family.
fn separate_tunnel(
    conf: &Wireguard,
    own: &PerFamily<WireguardData>,
    theirs: &PerFamily<WireguardData>,
    public: &Addresses,
    family: Family,
) -> Option<Tunnel> {
    let over = |carrier: Family| {
        own.get(carrier)?;
        let end = theirs.get(carrier)?;
        let port = end.port.unwrap_or(listen_port(conf, carrier));
        let endpoint = SocketAddr::new(public.get(carrier)?, port);
        Some(Tunnel { carrier, key: end.key, endpoint })
    };
    over(family).or_else(|| over(cidr::other(family)))
}

/// Returns the only tunnel, which uses the IPv4 device.
fn single_tunnel(
    node: &Node<'_>,
    conf: &Wireguard,
    theirs: &PerFamily<WireguardData>,
    public: &Addresses,
) -> Option<Tunnel> {
    let end = theirs.v4.or(theirs.v6)?;
    let family = match conf.mode {
        WireguardMode::Ipv4 => Family::V4,
        WireguardMode::Ipv6 => Family::V6,
        _ => likelier_family(&node.underlay.addresses, public)?,
    };
    // With one tunnel flannel listens on the IPv4 port for both families, but publishes the IPv6 port.
    let port = match (theirs.v4, end.port) {
        (None, Some(port)) if port == conf.listen_port_v6 => conf.listen_port,
        (_, port) => port.unwrap_or(conf.listen_port),
    };
    let endpoint = SocketAddr::new(public.get(family)?, port);
    Some(Tunnel { carrier: Family::V4, key: end.key, endpoint })
}

/// Returns the family over which a peer is more likely to be reached, as flannel guesses.
fn likelier_family(own: &Addresses, theirs: &Addresses) -> Option<Family> {
    let is_private_v6 = |address: Ipv6Addr| address.segments()[0] & 0xfe00 == 0xfc00;
    let is_public_v4 = |address: &Ipv4Addr| !address.is_private();
    match (theirs.v4, theirs.v6) {
        (None, None) => None,
        (None, Some(_)) => Some(Family::V6),
        (Some(_), None) => Some(Family::V4),
        (Some(v4), Some(_)) if is_public_v4(&v4) && own.v4.is_some() => Some(Family::V4),
        (Some(_), Some(v6)) => {
            let is_public =
                |address: Option<Ipv6Addr>| address.is_some_and(|one| !is_private_v6(one));
            let is_v6 = is_public(Some(v6)) && is_public(own.v6) || own.v4.is_none();
            Some(if is_v6 { Family::V6 } else { Family::V4 })
        }
    }
}

fn own_data<'a>(node: &Node<'a>) -> Result<&'a PerFamily<WireguardData>, Error> {
    match &node.lease.attributes.data {
        BackendData::Wireguard(ends) => Ok(ends),
        other => Err(Error::OwnData { published: other.kind().to_owned(), backend: "wireguard" }),
    }
}

fn device_of(conf: &Wireguard, carrier: Family) -> IfName {
    device_name(if conf.mode == WireguardMode::Separate { carrier } else { Family::V4 })
}
