// SPDX-License-Identifier: Apache-2.0
//! Addresses and prefixes of both families, and arithmetic on prefixes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use kernel::Family;

/// An optional value for each family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PerFamily<T> {
    pub v4: Option<T>,
    pub v6: Option<T>,
}

impl<T> Default for PerFamily<T> {
    fn default() -> Self {
        Self { v4: None, v6: None }
    }
}

impl<T> PerFamily<T> {
    pub fn get(&self, family: Family) -> Option<&T> {
        match family {
            Family::V4 => self.v4.as_ref(),
            Family::V6 => self.v6.as_ref(),
        }
    }

    /// Sets the value of a family.
    #[must_use]
    pub fn with(mut self, family: Family, value: T) -> Self {
        match family {
            Family::V4 => self.v4 = Some(value),
            Family::V6 => self.v6 = Some(value),
        }
        self
    }

    /// Returns the values that are set, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = (Family, &T)> {
        Family::ALL.into_iter().filter_map(|family| Some((family, self.get(family)?)))
    }

    /// Creates a value for each of these families.
    pub(crate) fn collect(families: &[Family], value: impl Fn(Family) -> T) -> Self {
        families.iter().fold(Self::default(), |all, family| all.with(*family, value(*family)))
    }

    pub(crate) fn map<U>(&self, to: impl Fn(&T) -> U) -> PerFamily<U> {
        PerFamily { v4: self.v4.as_ref().map(&to), v6: self.v6.as_ref().map(&to) }
    }

    /// Returns `family` if it has a value, or else the other family if that has one.
    pub(crate) fn preferred(&self, family: Family) -> Option<Family> {
        [family, other(family)].into_iter().find(|one| self.get(*one).is_some())
    }
}

/// Addresses of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Addresses {
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
}

impl Addresses {
    pub fn get(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.v4.map(IpAddr::V4),
            Family::V6 => self.v6.map(IpAddr::V6),
        }
    }

    /// Returns the addresses that are set, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        Family::ALL.into_iter().filter_map(|family| self.get(family))
    }
}

/// Subnets of a node, or prefixes of the whole network: at most one for each family, at least one in
/// total, without host bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefixes {
    v4: Option<Ipv4Net>,
    v6: Option<Ipv6Net>,
}

impl Prefixes {
    /// Clears the host bits. Returns `None` if there is no prefix.
    pub fn new(v4: Option<Ipv4Net>, v6: Option<Ipv6Net>) -> Option<Self> {
        let prefixes = Self { v4: v4.map(|net| net.trunc()), v6: v6.map(|net| net.trunc()) };
        (v4.is_some() || v6.is_some()).then_some(prefixes)
    }

    /// Takes the first prefix of each family.
    pub fn of(prefixes: impl IntoIterator<Item = IpNet>) -> Option<Self> {
        let (mut v4, mut v6) = (None, None);
        for prefix in prefixes {
            match prefix {
                IpNet::V4(net) => v4 = v4.or(Some(net)),
                IpNet::V6(net) => v6 = v6.or(Some(net)),
            }
        }
        Self::new(v4, v6)
    }

    pub fn v4(&self) -> Option<Ipv4Net> {
        self.v4
    }

    pub fn v6(&self) -> Option<Ipv6Net> {
        self.v6
    }

    pub fn get(&self, family: Family) -> Option<IpNet> {
        match family {
            Family::V4 => self.v4.map(IpNet::V4),
            Family::V6 => self.v6.map(IpNet::V6),
        }
    }

    /// Returns the prefixes that are set, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpNet> {
        Family::ALL.into_iter().filter_map(|family| self.get(family))
    }
}

pub(crate) fn name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

pub(crate) fn other(family: Family) -> Family {
    match family {
        Family::V4 => Family::V6,
        Family::V6 => Family::V4,
    }
}

/// Returns the family of a prefix.
pub(crate) fn of(prefix: IpNet) -> Family {
    Family::of(prefix.addr())
}

/// Returns the prefix that contains only this address.
pub(crate) fn host(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

/// Returns the first and the last address of a prefix as numbers. Numbers of different families must
/// not be compared.
pub(crate) fn span(prefix: IpNet) -> (u128, u128) {
    let number = |address| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    (number(prefix.network()), number(prefix.broadcast()))
}

/// Returns whether two prefixes have an address in common.
pub(crate) fn overlap(one: IpNet, two: IpNet) -> bool {
    one.contains(&two) || two.contains(&one)
}
