// SPDX-License-Identifier: Apache-2.0
//! One thing for IPv4 and one for IPv6, each there or not.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use kernel::Family;

/// Something that each family may have.
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
    /// That of a family.
    pub fn get(&self, family: Family) -> Option<&T> {
        match family {
            Family::V4 => self.v4.as_ref(),
            Family::V6 => self.v6.as_ref(),
        }
    }

    /// With another one for a family.
    #[must_use]
    pub fn with(mut self, family: Family, value: T) -> Self {
        match family {
            Family::V4 => self.v4 = Some(value),
            Family::V6 => self.v6 = Some(value),
        }
        self
    }

    /// Those that are there, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = (Family, &T)> {
        Family::ALL.into_iter().filter_map(|family| Some((family, self.get(family)?)))
    }
}

/// Addresses of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Addresses {
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
}

impl Addresses {
    /// That of a family.
    pub fn get(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.v4.map(IpAddr::V4),
            Family::V6 => self.v6.map(IpAddr::V6),
        }
    }

    /// Those that are there, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        Family::ALL.into_iter().filter_map(|family| self.get(family))
    }

    /// Whether the two have one in common.
    pub fn meet(&self, other: &Addresses) -> bool {
        self.iter().any(|address| other.iter().any(|one| one == address))
    }
}

/// Prefixes without host bits, one a family and at least one: a node's subnets or the whole
/// network's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefixes {
    v4: Option<Ipv4Net>,
    v6: Option<Ipv6Net>,
}

impl Prefixes {
    /// None where neither is given. Host bits are cut off.
    pub fn new(v4: Option<Ipv4Net>, v6: Option<Ipv6Net>) -> Option<Self> {
        let prefixes = Self { v4: v4.map(|net| net.trunc()), v6: v6.map(|net| net.trunc()) };
        (v4.is_some() || v6.is_some()).then_some(prefixes)
    }

    /// The first of each family wins.
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

    /// The IPv4 prefix.
    pub fn v4(&self) -> Option<Ipv4Net> {
        self.v4
    }

    /// The IPv6 prefix.
    pub fn v6(&self) -> Option<Ipv6Net> {
        self.v6
    }

    /// That of a family.
    pub fn get(&self, family: Family) -> Option<IpNet> {
        match family {
            Family::V4 => self.v4.map(IpNet::V4),
            Family::V6 => self.v6.map(IpNet::V6),
        }
    }

    /// Those that are there, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpNet> {
        Family::ALL.into_iter().filter_map(|family| self.get(family))
    }
}

/// The family's name.
pub(crate) fn name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// The family that this one is not.
pub(crate) fn other(family: Family) -> Family {
    match family {
        Family::V4 => Family::V6,
        Family::V6 => Family::V4,
    }
}

/// The family of a prefix.
pub(crate) fn of(prefix: IpNet) -> Family {
    Family::of(prefix.addr())
}

/// An address alone, as a prefix.
pub(crate) fn host(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

/// First and last address of a prefix as numbers. Only those of one family may be compared.
pub(crate) fn span(prefix: IpNet) -> (u128, u128) {
    let number = |address| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    (number(prefix.network()), number(prefix.broadcast()))
}

/// Whether the two have an address in common.
pub(crate) fn overlap(one: IpNet, two: IpNet) -> bool {
    one.contains(&two) || two.contains(&one)
}
