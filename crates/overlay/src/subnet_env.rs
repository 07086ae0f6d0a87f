// SPDX-License-Identifier: Apache-2.0
//! `/run/flannel/subnet.env`, by which the agent tells the plugins what it has leased, and itself
//! at its next start what it had.

use std::fmt;

use ipnet::IpNet;
use kernel::Family;

use crate::family::{self, Prefixes};

/// The file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubnetEnv {
    /// Of the whole network. Files of old may have several of a family; we write one.
    pub networks: Vec<IpNet>,
    /// Of this node.
    pub subnets: Prefixes,
    pub mtu: u32,
    /// The agent masquerades, so the plugins must not.
    pub ip_masq: bool,
}

/// Why a text is no such file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{key} is {value:?}: expected {wanted}")]
    Value { key: String, value: String, wanted: &'static str },
}

impl fmt::Display for SubnetEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (family, infix) in [(Family::V4, ""), (Family::V6, "IPV6_")] {
            let networks = self.networks.iter().filter(|net| family::of(**net) == family);
            let networks: Vec<String> = networks.map(IpNet::to_string).collect();
            if let (Some(subnet), false) = (self.subnets.get(family), networks.is_empty()) {
                let first = family::first_host(subnet);
                writeln!(f, "FLANNEL_{infix}NETWORK={}", networks.join(","))?;
                writeln!(f, "FLANNEL_{infix}SUBNET={first}/{}", subnet.prefix_len())?;
            }
        }
        writeln!(f, "FLANNEL_MTU={}\nFLANNEL_IPMASQ={}", self.mtu, self.ip_masq)
    }
}

impl SubnetEnv {
    /// Reads a file; lines that are not ours are passed over.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let (mut networks, mut subnets) = (Vec::new(), Vec::new());
        let (mut mtu, mut ip_masq) = (None, None);
        for line in text.lines() {
            let Some((key, value)) = line.trim().split_once('=') else { continue };
            let value = value.trim().trim_matches(['"', '\'']);
            match key.trim() {
                _ if value.is_empty() => {}
                "FLANNEL_NETWORK" | "FLANNEL_IPV6_NETWORK" => {
                    for part in value.split(',') {
                        networks.push(prefix(key, part.trim())?);
                    }
                }
                "FLANNEL_SUBNET" | "FLANNEL_IPV6_SUBNET" => subnets.push(prefix(key, value)?),
                "FLANNEL_MTU" => {
                    let wrong = |_| wrong(key, value, "a whole number");
                    mtu = Some(value.parse().map_err(wrong)?);
                }
                "FLANNEL_IPMASQ" => ip_masq = Some(value == "true"),
                _ => {}
            }
        }
        Ok(Self {
            networks,
            subnets: Prefixes::of(subnets).ok_or(Error::Missing("FLANNEL_SUBNET"))?,
            mtu: mtu.ok_or(Error::Missing("FLANNEL_MTU"))?,
            ip_masq: ip_masq.ok_or(Error::Missing("FLANNEL_IPMASQ"))?,
        })
    }
}

fn prefix(key: &str, value: &str) -> Result<IpNet, Error> {
    let net = value.parse::<IpNet>().map(|net| net.trunc());
    net.map_err(|_| wrong(key, value, "an address with the length of its network"))
}

fn wrong(key: &str, value: &str, wanted: &'static str) -> Error {
    Error::Value { key: key.to_owned(), value: value.to_owned(), wanted }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DUAL: &str = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.10.1/24\n\
        FLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET=fd00:5:0:19::1/64\n\
        FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

    #[test]
    fn it_is_flannels_to_the_letter() {
        let env = SubnetEnv::parse(DUAL).unwrap();
        assert_eq!(crate::lease::print_key(&env.subnets), "10.5.10.0-24&fd00:5:0:19::-64");
        assert_eq!(env.to_string(), DUAL);
        let v6 = "FLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET=fd00:5:0:19::1/64\n\
            FLANNEL_MTU=1430\nFLANNEL_IPMASQ=false\n";
        assert_eq!(SubnetEnv::parse(v6).unwrap().to_string(), v6);
        let several = DUAL.replace("10.5.0.0/16", "10.5.0.0/16,10.6.0.0/16");
        assert_eq!(SubnetEnv::parse(&several).unwrap().to_string(), several);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |text: &str, words: &str| {
            assert_eq!(SubnetEnv::parse(text).unwrap_err().to_string(), words);
        };
        check("", "FLANNEL_SUBNET is missing");
        check("FLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_IPMASQ=true", "FLANNEL_MTU is missing");
        check("FLANNEL_MTU=x", "FLANNEL_MTU is \"x\": expected a whole number");
        let wanted =
            "FLANNEL_SUBNET is \"10.5.1.1\": expected an address with the length of its network";
        check("FLANNEL_SUBNET=10.5.1.1", wanted);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text: String, value: String) {
            let _ = SubnetEnv::parse(&text);
            let _ = SubnetEnv::parse(&DUAL.replace("10.5.10.1/24", &value));
        }

        #[test]
        fn it_comes_back(bits: u32, len in 8u8..=30, mtu: u32, ip_masq: bool) {
            let net = IpNet::new(std::net::Ipv4Addr::from_bits(bits).into(), len).unwrap().trunc();
            let subnets = Prefixes::of([net]).unwrap();
            let env = SubnetEnv { networks: vec![net], subnets, mtu, ip_masq };
            prop_assert_eq!(SubnetEnv::parse(&env.to_string()), Ok(env));
        }
    }
}
