// SPDX-License-Identifier: Apache-2.0
//! The subnets of one family that nodes may lease, numbered from 0.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use gojson::DecodeError;
use ipnet::IpNet;
use kernel::Family;

use crate::cidr;

/// Consecutive subnets of the same prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    network: IpNet,
    subnet_len: u8,
    /// Base addresses of the first and the last subnet.
    min: u128,
    max: u128,
}

/// Configuration keys and limits of a family.
#[derive(Debug)]
pub(super) struct Names {
    network: &'static str,
    len: &'static str,
    pub(super) min: &'static str,
    pub(super) max: &'static str,
    /// Longest prefix length: such a subnet has room for a bridge and a pod.
    longest: u8,
    /// Default prefix length, if the network has room for four such subnets.
    usual: u8,
}

pub(super) const V4: Names = Names {
    network: "Network",
    len: "SubnetLen",
    min: "SubnetMin",
    max: "SubnetMax",
    longest: 30,
    usual: 24,
};

pub(super) const V6: Names = Names {
    network: "IPv6Network",
    len: "IPv6SubnetLen",
    min: "IPv6SubnetMin",
    max: "IPv6SubnetMax",
    longest: 126,
    usual: 64,
};

/// The division of the network into subnets, as configured.
#[derive(Debug)]
pub(super) struct Division {
    pub(super) names: &'static Names,
    pub(super) len: Option<i64>,
    pub(super) min: Option<IpAddr>,
    pub(super) max: Option<IpAddr>,
}

impl Pool {
    pub(super) fn new(network: IpNet, division: &Division) -> Result<Self, DecodeError> {
        let subnet_len = subnet_len(network, division)?;
        let (first, last) = cidr::span(network);
        let size = 1_u128 << (network.max_prefix_len() - subnet_len);
        let base = |key: &str, given: Option<IpAddr>, default: u128| match given {
            None => Ok(default),
            Some(address) => base(key, address, network, size),
        };
        // The default skips the first subnet, because its base address is that of the whole network.
        let min = base(division.names.min, division.min, first + size)?;
        let max = base(division.names.max, division.max, last - size + 1)?;
        let pool = Self { network, subnet_len, min, max };
        if min > max {
            let problem =
                format!("expected at most {}, which is {}", pool.max(), division.names.max);
            return Err(DecodeError::at(division.names.min, pool.min(), problem));
        }
        Ok(pool)
    }

    /// Returns the network that contains the subnets.
    pub fn network(&self) -> IpNet {
        self.network
    }

    /// Returns the prefix length of the subnets.
    pub fn subnet_len(&self) -> u8 {
        self.subnet_len
    }

    /// Returns the base address of the first subnet.
    pub fn min(&self) -> IpAddr {
        self.address(self.min)
    }

    /// Returns the base address of the last subnet.
    pub fn max(&self) -> IpAddr {
        self.address(self.max)
    }

    /// Returns the number of subnets, at least one.
    pub fn count(&self) -> u128 {
        ((self.max - self.min) >> self.shift()) + 1
    }

    /// Returns the subnet with this number, which must be below [`Pool::count`].
    pub fn subnet(&self, number: u128) -> Option<IpNet> {
        let base = (number < self.count()).then(|| self.min + (number << self.shift()))?;
        IpNet::new(self.address(base), self.subnet_len).ok()
    }

    /// Returns whether the pool contains this subnet.
    pub fn has(&self, subnet: IpNet) -> bool {
        let base = cidr::span(subnet).0;
        cidr::of(subnet) == cidr::of(self.network)
            && subnet.prefix_len() == self.subnet_len
            && (self.min..=self.max).contains(&base)
    }

    /// Returns the numbers of the first and the last subnet that overlap this prefix.
    pub(crate) fn overlapping(&self, prefix: IpNet) -> Option<(u128, u128)> {
        if cidr::of(prefix) != cidr::of(self.network) {
            return None;
        }
        let (first, last) = cidr::span(prefix);
        let end = self.max + ((1 << self.shift()) - 1);
        let (first, last) = (first.max(self.min), last.min(end));
        let number = |address: u128| (address - self.min) >> self.shift();
        (first <= last).then(|| (number(first), number(last)))
    }

    fn shift(&self) -> u8 {
        self.network.max_prefix_len() - self.subnet_len
    }

    fn address(&self, number: u128) -> IpAddr {
        match cidr::of(self.network) {
            Family::V4 => Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)).into(),
            Family::V6 => Ipv6Addr::from_bits(number).into(),
        }
    }
}

/// The network must have room for at least four subnets: the first is not used by default.
fn subnet_len(network: IpNet, division: &Division) -> Result<u8, DecodeError> {
    let Names { longest, usual, .. } = *division.names;
    let shortest = network.prefix_len().saturating_add(2);
    if shortest > longest {
        let problem =
            format!("expected a prefix of at most {}: there must be four subnets", longest - 2);
        return Err(DecodeError::at(division.names.network, network, problem));
    }
    match division.len {
        None => Ok(usual.max(shortest)),
        Some(len) => match u8::try_from(len) {
            Ok(len) if (shortest..=longest).contains(&len) => Ok(len),
            _ => {
                let problem = format!(
                    "expected {shortest} to {longest}: {} {network} must have room for four subnets",
                    division.names.network
                );
                Err(DecodeError::at(division.names.len, len, problem))
            }
        },
    }
}

fn base(key: &str, address: IpAddr, network: IpNet, size: u128) -> Result<u128, DecodeError> {
    let number = cidr::span(cidr::host(address)).0;
    if !network.contains(&address) {
        return Err(DecodeError::at(key, address, format!("expected an address in {network}")));
    }
    if !number.is_multiple_of(size) {
        let len = network.max_prefix_len() - u8::try_from(size.ilog2()).unwrap_or(0);
        return Err(DecodeError::at(
            key,
            address,
            format!("expected the first address of a /{len}"),
        ));
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::RawNetConf;
    use super::*;

    fn pool(text: &str) -> Result<Pool, String> {
        let conf = RawNetConf::parse(text).map_err(|error| error.to_string())?;
        let pools = conf.pools().map_err(|error| error.to_string())?;
        Ok(pools.v4.or(pools.v6).unwrap())
    }

    #[test]
    fn default_subnets_follow_the_ipv4_network() {
        let check = |network: &str, len: u8, min: &str, max: &str| {
            let pool = pool(&format!(r#"{{"Network": "{network}"}}"#)).unwrap();
            let actual = (pool.subnet_len(), pool.min().to_string(), pool.max().to_string());
            assert_eq!(actual, (len, min.to_owned(), max.to_owned()), "{network}");
        };
        check("10.0.0.0/8", 24, "10.0.1.0", "10.255.255.0");
        check("10.5.0.0/22", 24, "10.5.1.0", "10.5.3.0");
        check("10.5.0.0/23", 25, "10.5.0.128", "10.5.1.128");
        check("10.5.0.0/28", 30, "10.5.0.4", "10.5.0.12");
        check("223.255.0.0/16", 24, "223.255.1.0", "223.255.255.0");
    }

    #[test]
    fn default_subnets_follow_the_ipv6_network() {
        let check = |network: &str, len: u8, min: &str, max: &str| {
            let text = format!(
                r#"{{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "{network}"}}"#
            );
            let pool = pool(&text).unwrap();
            let actual = (pool.subnet_len(), pool.min().to_string(), pool.max().to_string());
            assert_eq!(actual, (len, min.to_owned(), max.to_owned()), "{network}");
        };
        check("fd00:5::/48", 64, "fd00:5:0:1::", "fd00:5:0:ffff::");
        check("fd00:5::/63", 65, "fd00:5:0:0:8000::", "fd00:5:0:1:8000::");
        check("fd00:5::/124", 126, "fd00:5::4", "fd00:5::c");
        check("c000::/3", 64, "c000:0:0:1::", "dfff:ffff:ffff:ffff::");
    }

    #[test]
    fn invalid_divisions_are_errors() {
        let check = |keys: &str, words: &str| {
            let error = pool(&format!(r#"{{"Network": "10.5.0.0/16"{keys}}}"#)).unwrap_err();
            assert!(error.contains(words), "{error:?} should say {words:?}");
        };
        check(r#", "SubnetLen": 17"#, "key \"SubnetLen\" is 17: expected 18 to 30");
        check(r#", "SubnetLen": 31"#, "expected 18 to 30");
        check(r#", "SubnetLen": -1"#, "expected 18 to 30");
        check(
            r#", "SubnetMin": "10.6.0.0""#,
            "key \"SubnetMin\" is 10.6.0.0: expected an address in",
        );
        check(r#", "SubnetMin": "10.5.1.4""#, "expected the first address of a /24");
        check(r#", "SubnetMax": "fd00::""#, "key \"SubnetMax\" is \"fd00::\": expected an IPv4");
        check(
            r#", "SubnetMin": "10.5.9.0", "SubnetMax": "10.5.8.0""#,
            "key \"SubnetMin\" is 10.5.9.0: expected at most 10.5.8.0",
        );
        let error = pool(r#"{"Network": "10.5.0.0/29"}"#).unwrap_err();
        assert!(error.contains("at most 28"), "{error}");
        assert_eq!(
            pool(r#"{"Network": "10.5.0.0/16", "SubnetMin": "0.0.0.0"}"#).unwrap().count(),
            255
        );
    }

    proptest! {
        #[test]
        fn numbers_and_subnets_match(
            bits in 0u32..0x7000_0000, net_len in 4u8..=28, extra in 2u8..30, pick: u128,
        ) {
            let len = (net_len + extra).min(30);
            let network = IpNet::new(Ipv4Addr::from_bits(bits).into(), net_len).unwrap().trunc();
            let pool = pool(&format!(r#"{{"Network": "{network}", "SubnetLen": {len}}}"#)).unwrap();
            let number = pick % pool.count();
            let subnet = pool.subnet(number).unwrap();
            prop_assert!(pool.has(subnet) && network.contains(&subnet));
            prop_assert_eq!(pool.overlapping(subnet), Some((number, number)));
            prop_assert_eq!(pool.overlapping(network), Some((0, pool.count() - 1)));
            prop_assert_eq!(pool.subnet(pool.count()), None);
        }
    }
}
