// SPDX-License-Identifier: Apache-2.0
//! flannel's `net-conf.json`: the network, its division into subnets, and the backend.
//!
//! [`RawNetConf`] is the file as written. [`RawNetConf::validate`] checks the keys that every node needs.
//! [`RawNetConf::pools`] checks the keys that matter only if nodes choose their subnets themselves. In
//! Kubernetes they do not: the subnet is the podCIDR of the node.

mod pool;
mod special;
mod unknown;

use gojson::DecodeError;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use kernel::Family;
use serde::Deserialize;
use serde_json::{Map, Value};
use text::Secret;

pub use self::pool::Pool;
pub use self::unknown::unknown_keys;
use crate::backend::Backend;
use crate::cidr::{self, PerFamily, Prefixes};

/// The file as written. As in Go, keys match in any case and [unknown keys](unknown_keys) are ignored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RawNetConf {
    keys: Keys,
    backend: Option<Secret<Map<String, Value>>>,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct Keys {
    #[serde(rename = "EnableIPv4")]
    enable_ipv4: Option<bool>,
    #[serde(rename = "EnableIPv6")]
    enable_ipv6: Option<bool>,
    #[serde(rename = "EnableNFTables")]
    enable_nftables: Option<bool>,
    network: Option<String>,
    subnet_len: Option<i64>,
    subnet_min: Option<String>,
    subnet_max: Option<String>,
    #[serde(rename = "IPv6Network")]
    ipv6_network: Option<String>,
    #[serde(rename = "IPv6SubnetLen")]
    ipv6_subnet_len: Option<i64>,
    #[serde(rename = "IPv6SubnetMin")]
    ipv6_subnet_min: Option<String>,
    #[serde(rename = "IPv6SubnetMax")]
    ipv6_subnet_max: Option<String>,
}

/// The validated configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct NetConf {
    /// Prefixes that contain all pods. A disabled family has none.
    pub networks: Prefixes,
    /// The file asks for nf_tables rules. podwire always uses them.
    pub nftables: bool,
    pub backend: Backend,
}

impl NetConf {
    /// Parses and validates a file.
    pub fn parse(text: &str) -> Result<Self, DecodeError> {
        RawNetConf::parse(text)?.validate()
    }
}

impl RawNetConf {
    /// Parses a file without validating its values.
    pub fn parse(text: &str) -> Result<Self, DecodeError> {
        let whole = |problem: String| DecodeError { path: String::new(), value: None, problem };
        let value: Value = serde_json::from_str(text)
            .map_err(|cause| whole(format!("the network configuration is not JSON: {cause}")))?;
        let Value::Object(object) = value else {
            return Err(whole("the network configuration is not a JSON object".to_owned()));
        };
        let backend = match gojson::get(&object, "Backend") {
            None => None,
            Some(Value::Object(backend)) => Some(Secret::new(backend.clone())),
            // The error does not show the value, which may contain a secret.
            Some(_) => {
                let problem = "expected an object with a Type".to_owned();
                return Err(DecodeError { path: "Backend".to_owned(), value: None, problem });
            }
        };
        Ok(Self { keys: gojson::decode_object(&object)?, backend })
    }

    /// Validates the keys that every node needs.
    pub fn validate(&self) -> Result<NetConf, DecodeError> {
        let (v4, v6) = (self.network(Family::V4)?, self.network(Family::V6)?);
        let networks = Prefixes::of([v4, v6].into_iter().flatten()).ok_or_else(|| {
            let problem =
                "expected true unless EnableIPv6 is true: the network has no address family";
            DecodeError::at("EnableIPv4", false, problem)
        })?;
        let backend = self.backend.as_ref().map(Secret::expose);
        let backend = Backend::parse(backend).map_err(|error| error.within("Backend"))?;
        Ok(NetConf { networks, nftables: self.keys.enable_nftables.unwrap_or(false), backend })
    }

    /// Returns the subnets that nodes may choose.
    pub fn pools(&self) -> Result<PerFamily<Pool>, DecodeError> {
        let mut pools = PerFamily::default();
        for family in Family::ALL {
            if let Some(network) = self.network(family)? {
                pools = pools.with(family, Pool::new(network, &self.division(family)?)?);
            }
        }
        Ok(pools)
    }

    /// Returns the network of a family, or `None` if the family is disabled.
    fn network(&self, family: Family) -> Result<Option<IpNet>, DecodeError> {
        let (key, text, is_enabled) = match family {
            Family::V4 => ("Network", &self.keys.network, self.keys.enable_ipv4.unwrap_or(true)),
            Family::V6 => {
                ("IPv6Network", &self.keys.ipv6_network, self.keys.enable_ipv6.unwrap_or(false))
            }
        };
        if !is_enabled {
            return Ok(None);
        }
        let (expected, net) = match family {
            Family::V4 => (
                "expected an IPv4 network such as \"10.244.0.0/16\"",
                text.as_deref().and_then(|text| text.parse::<Ipv4Net>().ok()).map(IpNet::V4),
            ),
            Family::V6 => (
                "expected an IPv6 network such as \"fd00:244::/48\"",
                text.as_deref().and_then(|text| text.parse::<Ipv6Net>().ok()).map(IpNet::V6),
            ),
        };
        let invalid = |problem: &str| Err(DecodeError::at(key, quoted(text.as_deref()), problem));
        match net.filter(|net| net.prefix_len() > 0) {
            None => invalid(expected),
            Some(net) => match special::overlapping(net) {
                Some((part, purpose)) => {
                    invalid(&format!("{part} is reserved for {purpose}; {expected}"))
                }
                None => Ok(Some(net.trunc())),
            },
        }
    }

    fn division(&self, family: Family) -> Result<pool::Division, DecodeError> {
        let keys = &self.keys;
        let (names, len, min, max) = match family {
            Family::V4 => (&pool::V4, keys.subnet_len, &keys.subnet_min, &keys.subnet_max),
            Family::V6 => {
                (&pool::V6, keys.ipv6_subnet_len, &keys.ipv6_subnet_min, &keys.ipv6_subnet_max)
            }
        };
        let address = |key: &str, text: &Option<String>| match text {
            None => Ok(None),
            Some(text) => match text.parse() {
                Ok(address) if Family::of(address) == family => Ok(Some(address)),
                _ => {
                    let problem = format!("expected an {} address", cidr::name(family));
                    Err(DecodeError::at(key, quoted(Some(text)), problem))
                }
            },
        };
        // Go's zero values count as missing.
        let given = |address: std::net::IpAddr| !address.is_unspecified();
        Ok(pool::Division {
            names,
            len: len.filter(|len| *len != 0),
            min: address(names.min, min)?.filter(|min| given(*min)),
            max: address(names.max, max)?.filter(|max| given(*max)),
        })
    }
}

fn quoted(text: Option<&str>) -> String {
    text.map_or_else(|| "missing".to_owned(), |text| format!("{text:?}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::backend::{Udp, Vxlan};

    #[test]
    fn missing_keys_get_flannels_defaults() {
        let conf = RawNetConf::parse(r#"{"Network": "10.5.3.0/16"}"#).unwrap();
        let valid = conf.validate().unwrap();
        assert_eq!(valid.networks.v4(), Some("10.5.0.0/16".parse().unwrap()));
        assert_eq!(valid.networks.v6(), None);
        // flannel's documentation says vxlan, but its code uses udp.
        assert_eq!(valid.backend, Backend::Udp(Udp { port: 8285 }));
        assert!(!valid.nftables);
        let pools = conf.pools().unwrap();
        let pool = pools.v4.unwrap();
        assert_eq!(pool.min().to_string(), "10.5.1.0");
        assert_eq!(pool.max().to_string(), "10.5.255.0");
        assert_eq!(pool.subnet_len(), 24);
        assert!(pools.v6.is_none());
    }

    #[test]
    fn keys_match_in_any_case() {
        let text = r#"{"network": "10.5.0.0/16", "ENABLEIPV6": true, "ipv6network": "fd00:5::/48",
            "enableNfTables": true, "subnetlen": 26, "backend": {"type": "VXLAN", "vni": 7}, "x": 1}"#;
        let conf = RawNetConf::parse(text).unwrap();
        let valid = conf.validate().unwrap();
        assert_eq!(valid.networks.v6(), Some("fd00:5::/48".parse().unwrap()));
        assert!(valid.nftables);
        assert!(matches!(valid.backend, Backend::Vxlan(Vxlan { vni: 7, .. })));
        let pools = conf.pools().unwrap();
        assert_eq!(pools.v4.unwrap().subnet_len(), 26);
        assert_eq!(pools.v6.unwrap().min().to_string(), "fd00:5:0:1::");
    }

    #[test]
    fn ipv6_only_needs_no_ipv4_network() {
        let text = r#"{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:5::/48",
            "Network": "nonsense", "Backend": {"Type": "host-gw"}}"#;
        let conf = NetConf::parse(text).unwrap();
        assert_eq!((conf.networks.v4(), conf.backend), (None, Backend::HostGw));
    }

    #[test]
    fn invalid_values_are_named_in_errors() {
        let check = |text: &str, words: &str| {
            let conf = RawNetConf::parse(text);
            let error = conf.and_then(|conf| conf.validate()).unwrap_err().to_string();
            assert!(error.contains(words), "{error:?} should say {words:?}");
        };
        check("{", "is not JSON: EOF");
        check("[]", "not a JSON object");
        check("{}", "key \"Network\" is missing: expected an IPv4 network");
        check(r#"{"Network": "10.5.0.0"}"#, r#"key "Network" is "10.5.0.0": expected an IPv4"#);
        check(r#"{"Network": "fd00::/48"}"#, "expected an IPv4 network");
        check(r#"{"Network": "0.0.0.0/0"}"#, "expected an IPv4 network");
        check(
            r#"{"Network": "224.0.0.0/8"}"#,
            r#"key "Network" is "224.0.0.0/8": 224.0.0.0/4 is reserved for multicast; expected an IPv4"#,
        );
        check(
            r#"{"Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fe80::/64"}"#,
            r#"key "IPv6Network" is "fe80::/64": fe80::/10 is reserved for link-local addresses; expected"#,
        );
        check(r#"{"Network": 10}"#, r#"key "Network" is 10: expected a text"#);
        check(r#"{"EnableIPv4": false}"#, "key \"EnableIPv4\" is false: expected true unless");
        check(r#"{"EnableIPv4": "no"}"#, "expected true or false");
        check(
            r#"{"EnableIPv4": false, "EnableIPv6": true}"#,
            "key \"IPv6Network\" is missing: expected an IPv6 network",
        );
        check(
            r#"{"Network": "10.5.0.0/16", "Backend": "vxlan"}"#,
            "expected an object with a Type",
        );
    }

    proptest! {
        #[test]
        fn parsing_any_text_does_not_panic(text: String, network: String, len: i64, min: String) {
            let _ = NetConf::parse(&text);
            let text = serde_json::json!({
                "Network": network, "SubnetLen": len, "SubnetMin": min, "Backend": {"Type": min},
            });
            if let Ok(conf) = RawNetConf::parse(&text.to_string()) {
                let _ = (conf.validate(), conf.pools());
            }
        }
    }
}
