// SPDX-License-Identifier: Apache-2.0
//! The object `Backend` of the network's configuration, for each backend we have.

pub mod extension;
pub(crate) mod host_gw;
pub mod ipip;
pub mod udp;
pub mod vxlan;
pub mod wireguard;

use std::ops::RangeInclusive;

use gojson::DecodeError;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use text::Secret;

pub use crate::lease::data::{BackendData, Vtep, WireguardData};
use kernel::wireguard::PresharedKey;

/// How packets get to other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// In VXLAN, whose peers the agent knows.
    Vxlan(Vxlan),
    /// By plain routes to nodes on the same link.
    HostGw,
    /// Encrypted by WireGuard.
    Wireguard(Wireguard),
    /// In UDP, by a program; for where nothing else works.
    Udp(Udp),
    /// IPv4 in IPv4.
    Ipip(Ipip),
    /// Not at all: subnets are given out and others do the rest.
    Alloc,
    /// By commands of the administrator.
    Extension(Extension),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vxlan {
    /// The network's number.
    pub vni: u32,
    pub port: u16,
    /// Policy groups in the header.
    pub gbp: bool,
    pub learning: bool,
    /// Peers on the same link are reached without a tunnel.
    pub direct_routing: bool,
    /// Of the underlay; its own where none is given.
    pub mtu: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wireguard {
    pub listen_port: u16,
    pub listen_port_v6: u16,
    /// Of the underlay; its own where none is given.
    pub mtu: Option<u32>,
    pub psk: Option<PresharedKey>,
    /// In seconds.
    pub keepalive: Option<u16>,
    pub mode: WireguardMode,
}

/// Which tunnels WireGuard has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireguardMode {
    /// One for each family.
    Separate,
    /// One, by the family that is likelier to get through.
    Auto,
    /// One over IPv4.
    Ipv4,
    /// One over IPv6.
    Ipv6,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Udp {
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipip {
    /// Peers on the same link are reached without a tunnel.
    pub direct_routing: bool,
}

/// Commands as words; empty where there is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extension {
    pub pre_startup: Vec<String>,
    pub post_startup: Vec<String>,
    pub subnet_add: Vec<String>,
    pub subnet_remove: Vec<String>,
}

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

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct ExtensionConf {
    pre_startup_command: Option<String>,
    post_startup_command: Option<String>,
    subnet_add_command: Option<String>,
    subnet_remove_command: Option<String>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct OtherConf {
    r#type: Option<String>,
    port: Option<i64>,
    direct_routing: Option<bool>,
}

fn secret<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Secret>, D::Error> {
    Option::<String>::deserialize(value).map(|text| text.map(Secret::new))
}

/// The value of a key that is a secret is not shown, whatever it is.
fn without_secrets(error: DecodeError) -> DecodeError {
    let key = error.path.split(['.', '[']).next().unwrap_or_default();
    let value = error.value.filter(|_| !key.eq_ignore_ascii_case("PSK"));
    DecodeError { value, ..error }
}

const KNOWN: &str = "vxlan, host-gw, wireguard, udp, ipip, alloc, extension";
const PORTS: RangeInclusive<i64> = 1..=65_535;
/// Zero is as good as none. 68 is the least that IPv4 works with.
const MTUS: RangeInclusive<i64> = 68..=65_535;

impl Backend {
    pub(crate) fn parse(conf: Option<&Map<String, Value>>) -> Result<Self, DecodeError> {
        // Its documents say vxlan, its code says udp, and nodes of both kinds must agree.
        let Some(conf) = conf else { return Ok(Self::Udp(Udp { port: UDP_PORT })) };
        let other: OtherConf = gojson::decode_object(conf)?;
        let kind = other.r#type.unwrap_or_default();
        Ok(match kind.to_ascii_lowercase().as_str() {
            "vxlan" => Self::Vxlan(vxlan(&gojson::decode_object(conf)?)?),
            "host-gw" => Self::HostGw,
            "wireguard" => {
                let conf = gojson::decode_object(conf).map_err(without_secrets)?;
                Self::Wireguard(wireguard(&conf)?)
            }
            "udp" => Self::Udp(Udp { port: port("Port", other.port)?.unwrap_or(UDP_PORT) }),
            "ipip" => Self::Ipip(Ipip { direct_routing: other.direct_routing.unwrap_or(false) }),
            "alloc" => Self::Alloc,
            "extension" => Self::Extension(extension(&gojson::decode_object(conf)?)),
            "ipsec" | "tencent-vpc" => {
                let problem = format!("podwire does not have this backend; it has {KNOWN}");
                return Err(DecodeError::at("Type", format!("{kind:?}"), problem));
            }
            _ => {
                let problem = format!("expected one of {KNOWN}");
                return Err(DecodeError::at("Type", format!("{kind:?}"), problem));
            }
        })
    }

    /// Its name in the configuration.
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

/// Problem reported for a WireGuard key that cannot be parsed.
pub(crate) const KEY_FORM: &str = "expected base64 of 32 bytes";

const UDP_PORT: u16 = 8285;

fn vxlan(conf: &VxlanConf) -> Result<Vxlan, DecodeError> {
    // 24 bits of the header.
    let vni = within("VNI", conf.vni, 0..=0xff_ffff)?;
    let port = within("Port", conf.port.filter(|port| *port != 0), PORTS)?;
    Ok(Vxlan {
        vni: vni.unwrap_or(1),
        port: port.and_then(|port| u16::try_from(port).ok()).unwrap_or(8472),
        gbp: conf.gbp.unwrap_or(false),
        learning: conf.learning.unwrap_or(false),
        direct_routing: conf.direct_routing.unwrap_or(false),
        mtu: within("MTU", conf.mtu.filter(|mtu| *mtu != 0), MTUS)?,
    })
}

fn wireguard(conf: &WireguardConf) -> Result<Wireguard, DecodeError> {
    let psk = match &conf.psk {
        None => None,
        Some(text) => {
            let key = text.expose().parse().map_err(|_| DecodeError {
                path: "PSK".to_owned(),
                value: None,
                problem: KEY_FORM.to_owned(),
            });
            Some(key?)
        }
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
    let keepalive =
        within("PersistentKeepaliveInterval", conf.persistent_keepalive_interval, 0..=65_535)?;
    Ok(Wireguard {
        listen_port: port("ListenPort", conf.listen_port)?.unwrap_or(51_820),
        listen_port_v6: port("ListenPortV6", conf.listen_port_v6)?.unwrap_or(51_821),
        mtu: within("MTU", conf.mtu.filter(|mtu| *mtu != 0), MTUS)?,
        psk,
        keepalive: keepalive.and_then(|secs| u16::try_from(secs).ok()).filter(|secs| *secs > 0),
        mode,
    })
}

/// No shell reads them: words are what white space separates.
fn extension(conf: &ExtensionConf) -> Extension {
    let words = |text: &Option<String>| {
        text.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect()
    };
    Extension {
        pre_startup: words(&conf.pre_startup_command),
        post_startup: words(&conf.post_startup_command),
        subnet_add: words(&conf.subnet_add_command),
        subnet_remove: words(&conf.subnet_remove_command),
    }
}

fn port(key: &str, value: Option<i64>) -> Result<Option<u16>, DecodeError> {
    let number = within(key, value, PORTS)?;
    Ok(number.and_then(|number| u16::try_from(number).ok()))
}

fn within(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netconf::NetConf;

    fn backend(json: &str) -> Result<Backend, String> {
        let text = format!(r#"{{"Network": "10.5.0.0/16", "Backend": {json}}}"#);
        NetConf::parse(&text).map(|conf| conf.backend).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_flannels() {
        let check = |json: &str, wanted: Backend| assert_eq!(backend(json), Ok(wanted), "{json}");
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
    fn every_key_is_read() {
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
    fn what_is_wrong_is_named() {
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
