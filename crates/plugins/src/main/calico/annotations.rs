// SPDX-License-Identifier: Apache-2.0
//! Calico's annotations of a pod and of its namespace.

use std::net::IpAddr;
use std::str::FromStr;

use agent_client::ipam::Texts;
use cni::Error;
use ipnet::IpNet;
use kernel::MacAddr;
use serde_json::{Map, Value, json};

const PREFIX: &str = "cni.projectcalico.org/";
const QOS_PREFIX: &str = "qos.projectcalico.org/";

/// Limits of Calico for bandwidths and bursts, in bits.
const BANDWIDTH: (u64, u64) = (1_000, 1_000_000_000_000_000);
const BURST: (u64, u64) = (1_000, 34_359_738_360);
/// Calico's default for bursts: 4 Gi bits.
const DEFAULT_BURST: u64 = 1 << 32;

/// The parsed annotations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Annotations {
    /// MAC address of the pod.
    pub mac: Option<MacAddr>,
    /// Addresses to request from the IPAM plugin.
    pub addresses: Vec<IpAddr>,
    /// Addresses to use without asking the IPAM plugin.
    pub addresses_without_ipam: Vec<IpAddr>,
    /// Keys of `ipam` that the annotations replace, for calico-ipam.
    pub ipam: Map<String, Value>,
    /// The pod may send packets with other source addresses.
    pub allows_other_sources: bool,
    /// The pod has floating addresses.
    pub has_floating_ips: bool,
    /// Keys for the plugin bandwidth.
    pub bandwidth: Map<String, Value>,
}

impl Annotations {
    /// Parses the annotations of a pod and of its namespace. Those of the pod take precedence.
    pub(super) fn parse(pod: &Texts, namespace: &Texts) -> Result<Annotations, Error> {
        let own = |name: &str| find(pod, &format!("{PREFIX}{name}"));
        let any = |name: &str| own(name).or_else(|| find(namespace, &format!("{PREFIX}{name}")));
        Ok(Annotations {
            mac: own("hwAddr").as_ref().map(mac).transpose()?,
            addresses: own("ipAddrs").as_ref().map(addresses).transpose()?.unwrap_or_default(),
            addresses_without_ipam: own("ipAddrsNoIpam")
                .as_ref()
                .map(addresses)
                .transpose()?
                .unwrap_or_default(),
            ipam: ipam_keys(any)?,
            allows_other_sources: own("allowedSourcePrefixes")
                .as_ref()
                .map(list::<IpNet>)
                .transpose()?
                .is_some_and(|prefixes| !prefixes.is_empty()),
            has_floating_ips: own("floatingIPs").is_some(),
            bandwidth: bandwidth(pod)?,
        })
    }
}

/// An annotation: its name and text.
type Found<'a> = (String, &'a str);

/// An empty text counts as absent, as in Calico.
fn find<'a>(texts: &'a Texts, name: &str) -> Option<Found<'a>> {
    let text = texts.get(name)?.as_str().filter(|text| !text.is_empty())?;
    Some((name.to_owned(), text))
}

fn invalid((name, text): &Found, expected: &str) -> Error {
    Error::invalid_config(format!("annotation {name:?} is {text:?}, expected {expected}"))
}

fn list<T: FromStr>(found: &Found) -> Result<Vec<T>, Error> {
    let parsed = serde_json::from_str::<Value>(found.1).ok();
    let items = parsed.as_ref().and_then(Value::as_array);
    let items =
        items.and_then(|items| items.iter().map(|item| item.as_str()?.parse().ok()).collect());
    items.ok_or_else(|| invalid(found, "a JSON list of texts of this kind"))
}

fn mac(found: &Found) -> Result<MacAddr, Error> {
    let mac = found.1.parse().ok().filter(|mac: &MacAddr| mac.is_unicast());
    mac.ok_or_else(|| invalid(found, "a unicast MAC address such as 02:00:00:00:00:01"))
}

fn addresses(found: &Found) -> Result<Vec<IpAddr>, Error> {
    let addresses: Vec<IpAddr> = list(found)?;
    let v4 = addresses.iter().filter(|address| address.is_ipv4()).count();
    if addresses.is_empty() || v4 > 1 || addresses.len() - v4 > 1 {
        return Err(invalid(found, "one IPv4 address, one IPv6 address, or one of each"));
    }
    Ok(addresses)
}

fn ipam_keys<'a>(any: impl Fn(&str) -> Option<Found<'a>>) -> Result<Map<String, Value>, Error> {
    let mut keys = Map::new();
    for (name, key) in [("ipv4pools", "ipv4_pools"), ("ipv6pools", "ipv6_pools")] {
        if let Some(found) = any(name) {
            keys.insert(key.to_owned(), json!(list::<String>(&found)?));
        }
    }
    if let Some(found) = any("ipFamilies") {
        let families: Vec<String> = list(&found)?;
        let known = ["IPv4", "IPv6"];
        if families.is_empty() || families.iter().any(|family| !known.contains(&&**family)) {
            return Err(invalid(&found, "a JSON list of \"IPv4\" and \"IPv6\""));
        }
        for (family, key) in known.iter().zip(["assign_ipv4", "assign_ipv6"]) {
            let assign = families.iter().any(|one| one == family);
            keys.insert(key.to_owned(), json!(assign.to_string()));
        }
    }
    Ok(keys)
}

fn bandwidth(pod: &Texts) -> Result<Map<String, Value>, Error> {
    let mut keys = Map::new();
    for direction in ["ingress", "egress"] {
        let found = |what: &str| find(pod, &format!("{QOS_PREFIX}{direction}{what}"));
        let rate = found("Bandwidth").map(|found| quantity(&found, BANDWIDTH)).transpose()?;
        let burst = found("Burst").map(|found| quantity(&found, BURST)).transpose()?;
        match (rate, burst) {
            (Some(rate), burst) => {
                keys.insert(format!("{direction}Rate"), json!(rate));
                keys.insert(format!("{direction}Burst"), json!(burst.unwrap_or(DEFAULT_BURST)));
            }
            (None, Some(_)) => {
                let (burst, rate) = (format!("{direction}Burst"), format!("{direction}Bandwidth"));
                let msg = format!(
                    "annotation \"{QOS_PREFIX}{burst}\" needs \"{QOS_PREFIX}{rate}\", which is missing"
                );
                return Err(Error::invalid_config(msg));
            }
            (None, None) => {}
        }
    }
    Ok(keys)
}

/// Parses a quantity of Kubernetes, such as `10M`, `1.5Gi` or `1e6`. Fractions of a unit are rounded
/// up, as Kubernetes does.
fn quantity(found: &Found, (min, max): (u64, u64)) -> Result<u64, Error> {
    let value = parse_quantity(found.1).filter(|value| (min..=max).contains(value));
    value.ok_or_else(|| invalid(found, &format!("a quantity such as \"10M\", from {min} to {max}")))
}

fn parse_quantity(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u64 = format!("{whole}{fraction}").parse().ok()?;
    let power = |base: u128, exponent: u32| base.checked_pow(exponent);
    let unit = |base, unit: &str| match unit.len() {
        1 => power(base, u32::try_from("kMGTPE".find(unit)?).ok()? + 1),
        _ => None,
    };
    let (factor, divisor) = match suffix {
        "" => (1, 1),
        "m" => (1, 1000),
        "Ki" => (1024, 1),
        _ => match (unit(1000, suffix), suffix.strip_suffix('i')) {
            (Some(factor), _) => (factor, 1),
            (None, Some(binary)) => (unit(1024, binary)?, 1),
            (None, None) => (power(10, suffix.strip_prefix(['e', 'E'])?.parse().ok()?)?, 1),
        },
    };
    let divisor = power(10, u32::try_from(fraction.len()).ok()?)?.checked_mul(divisor)?;
    let value = u128::from(digits).checked_mul(factor)?.div_ceil(divisor);
    u64::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pod: &[(&str, &str)], namespace: &[(&str, &str)]) -> Result<Annotations, Error> {
        let texts = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, text)| ((*name).to_owned(), json!(text))).collect()
        };
        Annotations::parse(&texts(pod), &texts(namespace))
    }

    #[test]
    fn annotations_of_the_pod_take_precedence() {
        let namespace = [
            ("cni.projectcalico.org/ipv4pools", r#"["a"]"#),
            ("cni.projectcalico.org/ipv6pools", r#"["b"]"#),
            ("cni.projectcalico.org/hwAddr", "02:00:00:00:00:01"),
        ];
        let pod = [
            ("cni.projectcalico.org/ipv4pools", r#"["c", "10.0.0.0/16"]"#),
            ("cni.projectcalico.org/ipFamilies", r#"["IPv6"]"#),
            ("unrelated", "["),
        ];
        let found = parse(&pod, &namespace).unwrap();
        let ipam = json!({"ipv4_pools": ["c", "10.0.0.0/16"], "ipv6_pools": ["b"],
            "assign_ipv4": "false", "assign_ipv6": "true"});
        assert_eq!(Value::Object(found.ipam), ipam);
        assert_eq!(found.mac, None, "only pools and families come from the namespace");
    }

    #[test]
    fn addresses_are_at_most_one_per_family() {
        let name = "cni.projectcalico.org/ipAddrs";
        let both = parse(&[(name, r#"["10.0.0.1", "fd00::1"]"#)], &[]).unwrap();
        assert_eq!(both.addresses.len(), 2);
        for bad in ["[]", r#"["10.0.0.1","10.0.0.2"]"#, r#"["::1","::2"]"#, r#"["x"]"#, "10.0.0.1"]
        {
            let error = parse(&[(name, bad)], &[]).unwrap_err();
            assert!(error.msg.contains(name), "{error}");
        }
    }

    #[test]
    fn quantities_are_those_of_kubernetes() {
        let check = |text: &str, expected: Option<u64>| {
            let found = ("a".to_owned(), text);
            assert_eq!(quantity(&found, (1, 1 << 50)).ok(), expected, "{text}");
        };
        check("1000", Some(1000));
        check("10M", Some(10_000_000));
        check("1.5k", Some(1500));
        check("1Ki", Some(1024));
        check("2Gi", Some(1 << 31));
        check("1e6", Some(1_000_000));
        check("1500m", Some(2));
        for bad in ["", "M", "1X", "-1", "1 M", "0", "1e99", "1.2.3", "1E"] {
            check(bad, None);
        }
    }

    #[test]
    fn bandwidth_gets_calicos_default_burst() {
        let found = parse(&[("qos.projectcalico.org/ingressBandwidth", "1M")], &[]).unwrap();
        let expected = json!({"ingressRate": 1_000_000, "ingressBurst": 4_294_967_296_u64});
        assert_eq!(Value::Object(found.bandwidth), expected);
        let error = parse(&[("qos.projectcalico.org/egressBurst", "1M")], &[]).unwrap_err();
        assert!(error.msg.contains("egressBandwidth"), "{error}");
    }
}
