// SPDX-License-Identifier: Apache-2.0
//! The backends, one module each: configuration, published data and plan. A backend decides how
//! packets reach other nodes.
//!
//! This module selects the backend by its name in the configuration (`Backend.Type`) or in a lease
//! (`BackendType`).

pub mod extension;
pub(crate) mod host_gw;
pub(crate) mod ipip;
pub(crate) mod udp;
pub(crate) mod vxlan;
pub mod wireguard;

use std::ops::RangeInclusive;

use gojson::DecodeError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::extension::Extension;
pub use self::ipip::Ipip;
pub use self::udp::Udp;
pub use self::vxlan::{Vtep, Vxlan};
pub use self::wireguard::{Wireguard, WireguardData, WireguardMode};
use crate::cidr::PerFamily;

/// The backend of a network, with its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// VXLAN tunnels whose forwarding entries the agent sets.
    Vxlan(Vxlan),
    /// Plain routes to nodes on the same link.
    HostGw,
    /// Tunnels encrypted by WireGuard.
    Wireguard(Wireguard),
    /// UDP tunnels in user space, for nodes on which no other backend works.
    Udp(Udp),
    /// IPv4-in-IPv4 tunnels.
    Ipip(Ipip),
    /// Only leases subnets. Other software connects the nodes.
    Alloc,
    /// Commands of the administrator connect the nodes.
    Extension(Extension),
}

/// Name of each backend in the configuration, with the keys that it reads besides `Type`.
pub(crate) const KEYS: [(&str, &str); 7] = [
    ("vxlan", vxlan::KEYS),
    ("host-gw", ""),
    ("wireguard", wireguard::KEYS),
    ("udp", "Port"),
    ("ipip", "DirectRouting"),
    ("alloc", ""),
    ("extension", extension::KEYS),
];

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct BackendConf {
    r#type: Option<String>,
    port: Option<i64>,
    direct_routing: Option<bool>,
}

impl Backend {
    /// Parses the object `Backend` of the network configuration.
    pub(crate) fn parse(conf: Option<&Map<String, Value>>) -> Result<Self, DecodeError> {
        // flannel's documentation says that vxlan is the default, but its code uses udp. podwire and
        // flannel nodes of one network must agree.
        let Some(conf) = conf else { return Ok(Self::Udp(Udp { port: udp::DEFAULT_PORT })) };
        let common: BackendConf = gojson::decode_object(conf)?;
        let kind = common.r#type.unwrap_or_default();
        Ok(match kind.to_ascii_lowercase().as_str() {
            "vxlan" => Self::Vxlan(Vxlan::parse(conf)?),
            "host-gw" => Self::HostGw,
            "wireguard" => Self::Wireguard(Wireguard::parse(conf)?),
            "udp" => {
                let port = port("Port", common.port)?.unwrap_or(udp::DEFAULT_PORT);
                Self::Udp(Udp { port })
            }
            "ipip" => Self::Ipip(Ipip { direct_routing: common.direct_routing.unwrap_or(false) }),
            "alloc" => Self::Alloc,
            "extension" => Self::Extension(Extension::parse(conf)?),
            other => {
                let known = KEYS.map(|(name, _)| name).join(", ");
                let problem = match other {
                    "ipsec" | "tencent-vpc" => {
                        format!("podwire does not have this backend; it has {known}")
                    }
                    _ => format!("expected one of {known}"),
                };
                return Err(DecodeError::at("Type", format!("{kind:?}"), problem));
            }
        })
    }

    /// Returns the name of the backend in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Vxlan(_) => "vxlan",
            Self::HostGw => "host-gw",
            Self::Wireguard(_) => "wireguard",
            Self::Udp(_) => "udp",
            Self::Ipip(_) => "ipip",
            Self::Alloc => "alloc",
            Self::Extension(_) => "extension",
        }
    }
}

const PORTS: RangeInclusive<i64> = 1..=65_535;
/// The minimum MTU of IPv4 is 68.
const MTUS: RangeInclusive<i64> = 68..=65_535;

fn port(key: &str, value: Option<i64>) -> Result<Option<u16>, DecodeError> {
    let number = in_range(key, value, PORTS)?;
    Ok(number.and_then(|number| u16::try_from(number).ok()))
}

/// Parses an MTU. Zero means that none is set.
fn mtu(value: Option<i64>) -> Result<Option<u32>, DecodeError> {
    in_range("MTU", value.filter(|mtu| *mtu != 0), MTUS)
}

fn in_range(
    key: &str,
    value: Option<i64>,
    allowed: RangeInclusive<i64>,
) -> Result<Option<u32>, DecodeError> {
    let Some(value) = value else { return Ok(None) };
    match u32::try_from(value) {
        Ok(number) if allowed.contains(&value) => Ok(Some(number)),
        _ => {
            let (least, most) = allowed.into_inner();
            let problem = format!("expected a whole number from {least} to {most}");
            Err(DecodeError::at(key, value, problem))
        }
    }
}

/// Data that a node publishes about its backend: `BackendType`, `BackendData` and `BackendV6Data`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendData {
    /// No backend type: udp, alloc, and reservations written by hand.
    Bare,
    /// The tunnel endpoints over IPv4 and IPv6.
    Vxlan(PerFamily<Vtep>),
    HostGw,
    Ipip,
    /// The tunnel endpoints over IPv4 and IPv6.
    Wireguard(PerFamily<WireguardData>),
    /// Output of the pre-startup command.
    Extension(Option<String>),
    /// A backend that podwire does not have.
    Other(String),
}

impl BackendData {
    /// Returns the text of `BackendType`, which is empty for backends that publish none.
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

    /// Returns whether a node with this backend can exchange packets with the publisher of this data.
    pub(crate) fn is_compatible_with(&self, backend: &Backend) -> bool {
        match backend {
            Backend::Udp(_) | Backend::Alloc => *self == Self::Bare,
            _ => self.kind() == backend.name(),
        }
    }

    /// Returns whether the publisher has exactly this backend, as far as a lease shows.
    pub(crate) fn matches(&self, backend: &Backend) -> bool {
        let has_vni = match (self, backend) {
            (Self::Vxlan(vteps), Backend::Vxlan(conf)) => {
                vteps.iter().all(|(_, vtep)| vtep.vni.is_none_or(|vni| vni == conf.vni))
            }
            _ => true,
        };
        self.is_compatible_with(backend) && has_vni
    }

    /// Parses the values of `BackendType`, `BackendData` and `BackendV6Data`.
    pub(crate) fn parse(
        kind: String,
        v4: Option<&Value>,
        v6: Option<&Value>,
    ) -> Result<Self, DecodeError> {
        Ok(match kind.as_str() {
            "" => Self::Bare,
            "vxlan" => Self::Vxlan(parse_both(v4, v6, Vtep::parse)?),
            "host-gw" => Self::HostGw,
            "ipip" => Self::Ipip,
            "wireguard" => Self::Wireguard(parse_both(v4, v6, WireguardData::parse)?),
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

    /// Returns the values of `BackendData` (v4) and `BackendV6Data` (v6) as flannel writes them.
    pub(crate) fn to_json(&self) -> PerFamily<DataJson<'_>> {
        match self {
            Self::Vxlan(vteps) => vteps.map(|vtep| DataJson::Vxlan(vtep.to_json())),
            Self::Wireguard(ends) => ends.map(|end| DataJson::Wireguard(end.to_json())),
            Self::Extension(Some(text)) => PerFamily { v4: Some(DataJson::Text(text)), v6: None },
            _ => PerFamily::default(),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum DataJson<'a> {
    Vxlan(vxlan::VtepJson),
    Wireguard(wireguard::WireguardJson),
    Text(&'a str),
}

fn parse_both<T>(
    v4: Option<&Value>,
    v6: Option<&Value>,
    parse: fn(&Value) -> Result<T, DecodeError>,
) -> Result<PerFamily<T>, DecodeError> {
    let parse_one = |key: &str, value: Option<&Value>| match value.filter(|value| !value.is_null())
    {
        None => Ok(None),
        Some(value) => parse(value).map(Some).map_err(|error| error.within(key)),
    };
    Ok(PerFamily { v4: parse_one("BackendData", v4)?, v6: parse_one("BackendV6Data", v6)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netconf::NetConf;

    fn backend(json: &str) -> Result<Backend, String> {
        let text = format!(r#"{{"Network": "10.5.0.0/16", "Backend": {json}}}"#);
        NetConf::parse(&text).map(|conf| conf.backend).map_err(|error| error.to_string())
    }

    #[test]
    fn missing_keys_get_flannels_defaults() {
        let check =
            |json: &str, expected: Backend| assert_eq!(backend(json), Ok(expected), "{json}");
        let vxlan = Vxlan {
            vni: 1,
            port: 8472,
            gbp: false,
            learning: false,
            direct_routing: false,
            mtu: None,
        };
        check(r#"{"Type": "vxlan"}"#, Backend::Vxlan(vxlan.clone()));
        check(r#"{"Type": "vxlan", "Port": 0, "MTU": 0}"#, Backend::Vxlan(vxlan));
        let wireguard = Wireguard {
            listen_port: 51_820,
            listen_port_v6: 51_821,
            mtu: None,
            psk: None,
            keepalive: None,
            mode: WireguardMode::Separate,
        };
        let text = r#"{"Type": "wireguard", "PSK": "", "PersistentKeepaliveInterval": 0}"#;
        check(text, Backend::Wireguard(wireguard));
        check(r#"{"Type": "udp"}"#, Backend::Udp(Udp { port: 8285 }));
        check(r#"{"Type": "ipip"}"#, Backend::Ipip(Ipip { direct_routing: false }));
        check(r#"{"Type": "Alloc"}"#, Backend::Alloc);
        check(r#"{"Type": "host-gw", "VNI": "whatever"}"#, Backend::HostGw);
        check(r#"{"Type": "extension"}"#, Backend::Extension(Extension::default()));
    }

    #[test]
    fn every_key_is_parsed() {
        let text = r#"{"Type": "vxlan", "VNI": 4096, "Port": 4789, "GBP": true, "Learning": true,
            "DirectRouting": true, "MTU": 1400}"#;
        let Ok(Backend::Vxlan(vxlan)) = backend(text) else { panic!("no vxlan") };
        assert_eq!((vxlan.vni, vxlan.port, vxlan.mtu), (4096, 4789, Some(1400)));
        assert!(vxlan.gbp && vxlan.learning && vxlan.direct_routing);
        let text = r#"{"Type": "wireguard", "ListenPort": 1, "ListenPortV6": 2, "MTU": 1420,
            "PSK": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
            "PersistentKeepaliveInterval": 25, "Mode": "auto"}"#;
        let Ok(Backend::Wireguard(wireguard)) = backend(text) else { panic!("no wireguard") };
        assert_eq!((wireguard.listen_port, wireguard.listen_port_v6), (1, 2));
        assert_eq!((wireguard.mtu, wireguard.keepalive), (Some(1420), Some(25)));
        assert_eq!((wireguard.mode, wireguard.psk.is_some()), (WireguardMode::Auto, true));
        let text = r#"{"Type": "extension", "PreStartupCommand": "", "SubnetAddCommand":
            "ip route add $SUBNET  via $PUBLIC_IP"}"#;
        let Ok(Backend::Extension(extension)) = backend(text) else { panic!("no extension") };
        assert_eq!(extension.subnet_add, ["ip", "route", "add", "$SUBNET", "via", "$PUBLIC_IP"]);
        assert!(extension.pre_startup.is_empty() && extension.post_startup.is_empty());
    }

    #[test]
    fn invalid_values_are_named_in_errors() {
        let check = |json: &str, words: &str| {
            let error = backend(json).unwrap_err();
            assert!(error.contains(words), "{error:?} should say {words:?}");
        };
        check("{}", r#"key "Backend.Type" is "": expected one of vxlan, host-gw, wireguard"#);
        check(r#"{"Type": "vlan"}"#, r#"key "Backend.Type" is "vlan": expected one of"#);
        check(r#"{"Type": "ipsec"}"#, "podwire does not have this backend");
        check(
            r#"{"Type": "vxlan", "VNI": 16777216}"#,
            r#"key "Backend.VNI" is 16777216: expected a whole number from 0 to 16777215"#,
        );
        check(r#"{"Type": "vxlan", "VNI": -1}"#, "from 0 to 16777215");
        check(r#"{"Type": "vxlan", "VNI": "1"}"#, r#"key "Backend.VNI" is "1": expected a whole"#);
        check(r#"{"Type": "vxlan", "Port": 65536}"#, "from 1 to 65535");
        check(r#"{"Type": "vxlan", "MTU": 67}"#, "from 68 to 65535");
        check(r#"{"Type": "udp", "Port": 0}"#, "from 1 to 65535");
        check(r#"{"Type": "wireguard", "Mode": "both"}"#, "expected one of separate, auto, ipv4");
    }

    #[test]
    fn errors_do_not_show_the_preshared_key() {
        let error = backend(r#"{"Type": "wireguard", "PSK": "secret"}"#).unwrap_err();
        assert!(error.contains("Backend.PSK") && !error.contains("secret"), "{error}");
        for psk in [r#"["secret"]"#, r#"{"secret": "secret"}"#, "5318008"] {
            let error = backend(&format!(r#"{{"Type": "wireguard", "psk": {psk}}}"#)).unwrap_err();
            assert!(error.to_ascii_lowercase().contains("backend.psk"), "{error}");
            assert!(!error.contains("secret") && !error.contains("5318008"), "{error}");
        }
        let error = backend(r#"["wireguard", "secret"]"#).unwrap_err();
        assert!(error.contains("Backend") && !error.contains("secret"), "{error}");
    }
}
