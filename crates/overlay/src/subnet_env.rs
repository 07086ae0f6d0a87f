// SPDX-License-Identifier: Apache-2.0
//! The text of `/run/flannel/subnet.env`: the subnets of this node, written by the node daemon. Plugins read it, and
//! the daemon reads it after a restart.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubnetEnv {
    /// Networks of the whole cluster, IPv4 before IPv6. Usually one per family.
    pub networks: Vec<IpNet>,
    /// Subnets of this node, at most one per family, IPv4 first.
    pub subnets: Vec<IpNet>,
    pub mtu: u32,
    /// Whether the daemon masquerades. Then plugins must not.
    pub ip_masq: bool,
}

/// The reason why a text is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("{0} is missing")]
    Incomplete(String),
    #[error("line {0:?} has no '='")]
    NoValue(String),
    #[error("{key} is {value:?}, expected {expected}")]
    Value { key: String, value: String, expected: &'static str },
}

impl fmt::Display for SubnetEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (infix, is_v6) in [("", false), ("IPV6_", true)] {
            let is_of_family = |net: &&IpNet| net.addr().is_ipv6() == is_v6;
            let networks = self.networks.iter().filter(is_of_family).map(IpNet::to_string);
            let networks = networks.collect::<Vec<_>>().join(",");
            let subnet = self.subnets.iter().find(is_of_family);
            if let (Some(subnet), false) = (subnet, networks.is_empty()) {
                writeln!(f, "FLANNEL_{infix}NETWORK={networks}")?;
                writeln!(f, "FLANNEL_{infix}SUBNET={}/{}", bridge(*subnet), subnet.prefix_len())?;
            }
        }
        writeln!(f, "FLANNEL_MTU={}\nFLANNEL_IPMASQ={}", self.mtu, self.ip_masq)
    }
}

/// Returns the first host address of a subnet, which is the address of the bridge.
fn bridge(subnet: IpNet) -> IpAddr {
    match subnet.network() {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits().saturating_add(1)).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits().saturating_add(1)).into(),
    }
}

impl SubnetEnv {
    /// Parses lines of `KEY=VALUE`. Unknown lines, quotes and white space are ignored. An empty value counts as missing.
    pub fn parse(text: &str) -> Result<SubnetEnv, Problem> {
        let mut networks: [Vec<IpNet>; 2] = Default::default();
        let mut subnets: [Option<IpNet>; 2] = Default::default();
        let (mut mtu, mut ip_masq) = (None, None);
        for line in text.lines() {
            let Some((key, value)) = pair(line)? else { continue };
            match key {
                "FLANNEL_NETWORK" => networks[0] = prefixes(key, value)?,
                "FLANNEL_IPV6_NETWORK" => networks[1] = prefixes(key, value)?,
                "FLANNEL_SUBNET" => subnets[0] = Some(prefix(key, value)?),
                "FLANNEL_IPV6_SUBNET" => subnets[1] = Some(prefix(key, value)?),
                "FLANNEL_MTU" => mtu = Some(number(key, value)?),
                // As in the Go plugin, every other value means false.
                "FLANNEL_IPMASQ" => ip_masq = Some(value == "true"),
                _ => {}
            }
        }
        let env =
            (networks.concat(), subnets.into_iter().flatten().collect::<Vec<_>>(), mtu, ip_masq);
        match env {
            (networks, subnets, Some(mtu), Some(ip_masq))
                if !networks.is_empty() && !subnets.is_empty() =>
            {
                Ok(SubnetEnv { networks, subnets, mtu, ip_masq })
            }
            (networks, subnets, mtu, ip_masq) => {
                let missing = [
                    ("FLANNEL_NETWORK or FLANNEL_IPV6_NETWORK", networks.is_empty()),
                    ("FLANNEL_SUBNET or FLANNEL_IPV6_SUBNET", subnets.is_empty()),
                    ("FLANNEL_MTU", mtu.is_none()),
                    ("FLANNEL_IPMASQ", ip_masq.is_none()),
                ];
                let missing: Vec<&str> = missing
                    .iter()
                    .filter(|(_, is_missing)| *is_missing)
                    .map(|(key, _)| *key)
                    .collect();
                Err(Problem::Incomplete(missing.join(", ")))
            }
        }
    }
}

/// Returns key and value of a line, or `None` if the line sets nothing.
fn pair(line: &str) -> Result<Option<(&str, &str)>, Problem> {
    let line = line.trim();
    let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
    let Some((key, value)) = line.split_once('=') else {
        let is_known = line.starts_with("FLANNEL_");
        return if is_known { Err(Problem::NoValue(line.to_owned())) } else { Ok(None) };
    };
    let value = value.trim();
    let unquoted = ['"', '\'']
        .iter()
        .find_map(|quote| value.strip_prefix(*quote).and_then(|value| value.strip_suffix(*quote)));
    let value = unquoted.unwrap_or(value);
    Ok(Some((key.trim(), value)).filter(|(_, value)| !value.is_empty()))
}

fn prefixes(key: &str, value: &str) -> Result<Vec<IpNet>, Problem> {
    let mut networks: Vec<IpNet> = Vec::new();
    for part in value.split(',') {
        let network = prefix(key, part.trim())?;
        if !networks.contains(&network) {
            networks.push(network);
        }
    }
    Ok(networks)
}

/// Returns the network of an address with prefix length. The daemon writes its own address in the subnet.
fn prefix(key: &str, value: &str) -> Result<IpNet, Problem> {
    let net = value.parse::<IpNet>().map(|net| net.trunc());
    net.map_err(|_| invalid(key, value, "an address with prefix length, such as 10.244.1.1/24"))
}

fn number(key: &str, value: &str) -> Result<u32, Problem> {
    value.parse().map_err(|_| invalid(key, value, "a number"))
}

fn invalid(key: &str, value: &str, expected: &'static str) -> Problem {
    Problem::Value { key: key.to_owned(), value: value.to_owned(), expected }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DUAL: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
        FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64\n\
        FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

    #[test]
    fn file_of_flanneld_is_parsed() {
        let env = SubnetEnv::parse(DUAL).unwrap();
        let texts = |nets: &[IpNet]| nets.iter().map(IpNet::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&env.networks), ["10.244.0.0/16", "fd00:244::/48"]);
        assert_eq!(texts(&env.subnets), ["10.244.1.0/24", "fd00:244:0:1::/64"]);
        assert_eq!((env.mtu, env.ip_masq), (1450, true));
    }

    #[test]
    fn printed_text_has_flannels_format() {
        let check = |text: &str| assert_eq!(SubnetEnv::parse(text).unwrap().to_string(), text);
        check(DUAL);
        check(&DUAL.replace("10.244.0.0/16", "10.244.0.0/16,10.245.0.0/16"));
        let v6 = DUAL.lines().skip(2).map(|line| format!("{line}\n")).collect::<String>();
        check(&v6.replace("true", "false"));
    }

    #[test]
    fn untidy_file_is_parsed() {
        let untidy = "# made by hand\r\n\n export FLANNEL_NETWORK = \"10.1.0.0/16, 10.2.0.0/16,\
            10.1.0.0/16\"\r\nFLANNEL_SUBNET='10.1.5.1/24'\nFLANNEL_IPV6_NETWORK=\nOTHER\nX=y=z\n\
            FLANNEL_MTU= 1400 \nFLANNEL_IPMASQ=False";
        let env = SubnetEnv::parse(untidy).unwrap();
        assert_eq!((env.networks.len(), env.subnets.len()), (2, 1));
        assert_eq!((env.mtu, env.ip_masq), (1400, false));
    }

    #[test]
    fn invalid_file_error_names_the_key() {
        let check = |text: &str, expected: &str| {
            let problem = SubnetEnv::parse(text).unwrap_err().to_string();
            assert!(problem.contains(expected), "{problem:?} does not contain {expected:?}");
        };
        check("", "FLANNEL_NETWORK or FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET or");
        check(&DUAL.replace("FLANNEL_MTU=1450", ""), "FLANNEL_MTU is missing");
        check(&DUAL.replace("1450", "big"), "FLANNEL_MTU is \"big\", expected a number");
        check(&DUAL.replace("10.244.1.1/24", "10.244.1.1"), "FLANNEL_SUBNET is \"10.244.1.1\"");
        check(&DUAL.replace("FLANNEL_IPMASQ=true", "FLANNEL_IPMASQ"), "has no '='");
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text: String, key in 0_usize..6, value: String) {
            let _ = SubnetEnv::parse(&text);
            let line = DUAL.lines().nth(key).unwrap_or_default();
            let (name, _) = line.split_once('=').unwrap_or_default();
            let _ = SubnetEnv::parse(&format!("{name}={value}"));
        }

        #[test]
        fn printing_and_parsing_keeps_the_content(bits: u32, len in 8u8..=30, mtu: u32, ip_masq: bool) {
            let net = IpNet::new(Ipv4Addr::from_bits(bits).into(), len).unwrap().trunc();
            let env = SubnetEnv { networks: vec![net], subnets: vec![net], mtu, ip_masq };
            prop_assert_eq!(SubnetEnv::parse(&env.to_string()), Ok(env));
        }
    }
}
