// SPDX-License-Identifier: Apache-2.0
//! What each backend publishes: `BackendType`, `BackendData` and `BackendV6Data`.

use gojson::DecodeError;
use kernel::MacAddr;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backend::{Backend, KEY_FORM};
use crate::cidr::PerFamily;
use kernel::wireguard::PublicKey;

/// What a node publishes of its backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendData {
    /// Nothing: udp and alloc need only the address, as does a reservation by hand.
    Bare,
    /// The tunnels over IPv4 and over IPv6.
    Vxlan(PerFamily<Vtep>),
    HostGw,
    Ipip,
    /// The tunnels over IPv4 and over IPv6.
    Wireguard(PerFamily<WireguardData>),
    /// What the command before the start has printed.
    Extension(Option<String>),
    /// A backend that we do not have.
    Other(String),
}

/// One end of a VXLAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vtep {
    /// Not published by flannel before 0.13.1.
    pub vni: Option<u32>,
    pub mac: MacAddr,
}

/// One end of a WireGuard tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireguardData {
    pub key: PublicKey,
    /// Not published by flannel before 0.21.
    pub port: Option<u16>,
}

impl BackendData {
    /// The text of `BackendType`; empty for those that publish none.
    pub fn kind(&self) -> &str {
        match self {
            Self::Bare => "",
            Self::Vxlan(_) => "vxlan",
            Self::HostGw => "host-gw",
            Self::Ipip => "ipip",
            Self::Wireguard(_) => "wireguard",
            Self::Extension(_) => "extension",
            Self::Other(kind) => kind,
        }
    }

    /// Whether a node with this backend can talk to one that publishes this.
    pub fn is_compatible_with(&self, backend: &Backend) -> bool {
        match backend {
            Backend::Udp(_) | Backend::Alloc => *self == Self::Bare,
            _ => self.kind() == backend.name(),
        }
    }

    /// Whether a node that publishes this has exactly this backend, as far as a lease shows.
    pub fn matches(&self, backend: &Backend) -> bool {
        let is_of_network = match (self, backend) {
            (Self::Vxlan(ends), Backend::Vxlan(conf)) => {
                ends.iter().all(|(_, end)| end.vni.is_none_or(|vni| vni == conf.vni))
            }
            _ => true,
        };
        self.is_compatible_with(backend) && is_of_network
    }

    pub(super) fn parse(
        kind: String,
        v4: Option<&Value>,
        v6: Option<&Value>,
    ) -> Result<Self, DecodeError> {
        Ok(match kind.as_str() {
            "" => Self::Bare,
            "vxlan" => Self::Vxlan(both(v4, v6, vtep)?),
            "host-gw" => Self::HostGw,
            "ipip" => Self::Ipip,
            "wireguard" => Self::Wireguard(both(v4, v6, wireguard)?),
            "extension" => Self::Extension(match v4.filter(|value| !value.is_null()) {
                None => None,
                Some(Value::String(text)) => Some(text.clone()),
                Some(other) => {
                    return Err(DecodeError::at("BackendData", other, "expected a text"));
                }
            }),
            _ => Self::Other(kind),
        })
    }

    /// The data of both families as flannel writes them.
    pub(super) fn print(&self) -> PerFamily<Printed<'_>> {
        match self {
            Self::Vxlan(vteps) => {
                map(vteps, |end| Printed::Vtep { vni: end.vni.unwrap_or(0), mac: end.mac })
            }
            Self::Wireguard(ends) => {
                map(ends, |end| Printed::Wireguard { key: end.key, port: end.port.unwrap_or(0) })
            }
            Self::Extension(Some(text)) => PerFamily { v4: Some(Printed::Text(text)), v6: None },
            _ => PerFamily::default(),
        }
    }
}

fn map<'a, T>(data: &PerFamily<T>, to: impl Fn(&T) -> Printed<'a>) -> PerFamily<Printed<'a>> {
    PerFamily { v4: data.v4.as_ref().map(&to), v6: data.v6.as_ref().map(&to) }
}

/// Data on its way out.
#[derive(Debug, Clone, Copy)]
pub(super) enum Printed<'a> {
    Vtep { vni: u32, mac: MacAddr },
    Wireguard { key: PublicKey, port: u16 },
    Text(&'a str),
}

#[derive(Serialize)]
struct VtepOut {
    #[serde(rename = "VNI")]
    vni: u32,
    #[serde(rename = "VtepMAC")]
    mac: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct WireguardOut {
    public_key: String,
    port: u16,
}

impl Serialize for Printed<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Vtep { vni, mac } => VtepOut { vni, mac: mac.to_string() }.serialize(serializer),
            Self::Wireguard { key, port } => {
                WireguardOut { public_key: key.to_string(), port }.serialize(serializer)
            }
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

fn both<T>(
    v4: Option<&Value>,
    v6: Option<&Value>,
    read: fn(&Value) -> Result<T, DecodeError>,
) -> Result<PerFamily<T>, DecodeError> {
    let one = |key: &str, value: Option<&Value>| match value.filter(|value| !value.is_null()) {
        None => Ok(None),
        Some(value) => read(value).map(Some).map_err(|error| error.within(key)),
    };
    Ok(PerFamily { v4: one("BackendData", v4)?, v6: one("BackendV6Data", v6)? })
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct VtepConf {
    #[serde(rename = "VNI")]
    vni: Option<u32>,
    #[serde(rename = "VtepMAC")]
    mac: Option<String>,
}

fn vtep(value: &Value) -> Result<Vtep, DecodeError> {
    let conf: VtepConf = gojson::decode(value)?;
    let text = conf.mac.unwrap_or_default();
    match text.parse().ok().filter(|mac: &MacAddr| mac.is_unicast()) {
        Some(mac) => Ok(Vtep { vni: conf.vni, mac }),
        None => {
            let problem = "expected the hardware address of one device";
            Err(DecodeError::at("VtepMAC", format!("{text:?}"), problem))
        }
    }
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct WireguardConf {
    public_key: Option<String>,
    port: Option<u16>,
}

fn wireguard(value: &Value) -> Result<WireguardData, DecodeError> {
    let conf: WireguardConf = gojson::decode(value)?;
    let text = conf.public_key.unwrap_or_default();
    let key = text.parse();
    let wrong = |_| DecodeError::at("PublicKey", format!("{text:?}"), KEY_FORM);
    let key = key.map_err(wrong)?;
    Ok(WireguardData { key, port: conf.port.filter(|port| *port != 0) })
}
