// SPDX-License-Identifier: Apache-2.0
//! A range of addresses in a subnet, with the defaults and rules of host-local's `ranges`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::Error;

/// First and last address of ::ffff:0:0/96, the IPv4-mapped addresses. Their text, which is also the name of the
/// reservation file, would equal that of an IPv4 address.
const MAPPED: (u128, u128) = (0xffff_0000_0000, 0xffff_ffff_ffff);

/// A range as written in a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeConf {
    pub subnet: IpNet,
    pub range_start: Option<IpAddr>,
    pub range_end: Option<IpAddr>,
    pub gateway: Option<IpAddr>,
}

/// A valid range: start and end are in the subnet and in this order. Both are inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Range {
    subnet: IpNet,
    start: IpAddr,
    end: IpAddr,
    gateway: Option<IpAddr>,
}

impl RangeConf {
    /// Creates a range of a whole subnet with host-local's defaults.
    pub fn whole(subnet: IpNet) -> Self {
        Self { subnet, range_start: None, range_end: None, gateway: None }
    }
}

impl Range {
    /// Applies host-local's defaults and checks.
    ///
    /// As for host-local, the gateway may be outside of the subnet: that is a valid on-link route.
    pub fn new(conf: RangeConf) -> Result<Self, Error> {
        let subnet = checked_subnet(conf.subnet)?;
        let first = nth(subnet, 1);
        let start = conf.range_start.map_or(first, |ip| ip.to_canonical());
        if !subnet.contains(&start) {
            return Err(Error::StartOutside { start, subnet });
        }
        let end = conf.range_end.map_or_else(|| last(subnet), |ip| ip.to_canonical());
        if !subnet.contains(&end) {
            return Err(Error::EndOutside { end, subnet });
        }
        // rangeStart may be the broadcast address, which is after the default end.
        if start > end {
            return Err(Error::Reversed { start, end, subnet });
        }
        if start.is_ipv6() && bits(start) <= MAPPED.1 && bits(end) >= MAPPED.0 {
            return Err(Error::Mapped { start, end });
        }
        let gateway = Some(conf.gateway.map_or(first, |ip| ip.to_canonical()));
        Ok(Self { subnet, start, end, gateway })
    }

    pub fn subnet(&self) -> IpNet {
        self.subnet
    }

    pub fn start(&self) -> IpAddr {
        self.start
    }

    pub fn end(&self) -> IpAddr {
        self.end
    }

    /// Returns the gateway, which is never assigned. A range built from a [`RangeConf`] has one.
    pub fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    pub fn is_ipv6(&self) -> bool {
        self.start.is_ipv6()
    }

    /// Returns whether an address is between start and end. The gateway counts too.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        // `IpAddr` orders every IPv4 address before every IPv6 address, so families cannot mix.
        self.start <= ip && ip <= self.end
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        self.is_ipv6() == other.is_ipv6() && self.start <= other.end && other.start <= self.end
    }

    /// Returns start and end as numbers.
    pub(crate) fn span(&self) -> (u128, u128) {
        (bits(self.start), bits(self.end))
    }

    /// Converts a number from [`Range::span`] back to an address.
    pub(crate) fn address(&self, bits: u128) -> IpAddr {
        from_bits(self.start, bits)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

fn checked_subnet(subnet: IpNet) -> Result<IpNet, Error> {
    let max = subnet.max_prefix_len() - 2;
    if subnet.prefix_len() > max {
        return Err(Error::TooSmall { subnet, max });
    }
    let network = subnet.trunc();
    if network != subnet {
        return Err(Error::HostBits { subnet, network });
    }
    Ok(subnet)
}

fn nth(subnet: IpNet, n: u128) -> IpAddr {
    from_bits(subnet.addr(), bits(subnet.addr()) + n)
}

/// Returns the last address that is assigned by default. IPv6 has no broadcast address to exclude.
fn last(subnet: IpNet) -> IpAddr {
    match subnet {
        IpNet::V4(net) => Ipv4Addr::from_bits(net.broadcast().to_bits() - 1).into(),
        IpNet::V6(net) => net.broadcast().into(),
    }
}

pub(crate) fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

pub(crate) fn from_bits(family: IpAddr, bits: u128) -> IpAddr {
    match family {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the number comes from an IPv4 address"
        )]
        IpAddr::V4(_) => Ipv4Addr::from_bits(bits as u32).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Result<Range, Error> {
        let mut words = text.split(' ');
        let mut next = || words.next().filter(|w| *w != "_");
        Range::new(RangeConf {
            subnet: next().unwrap().parse().unwrap(),
            range_start: next().map(|w| w.parse().unwrap()),
            range_end: next().map(|w| w.parse().unwrap()),
            gateway: next().map(|w| w.parse().unwrap()),
        })
    }

    fn check(text: &str, expected: &str) {
        let actual = match range(text) {
            Ok(r) => format!("{r} via {}", r.gateway().unwrap()),
            Err(e) => e.to_string(),
        };
        assert_eq!(actual, expected, "{text}");
    }

    #[test]
    fn range_has_host_locals_defaults() {
        check("10.1.0.0/24", "10.1.0.1-10.1.0.254 via 10.1.0.1");
        check("10.1.0.0/30", "10.1.0.1-10.1.0.2 via 10.1.0.1");
        check("0.0.0.0/0", "0.0.0.1-255.255.255.254 via 0.0.0.1");
        check("fd00::/64", "fd00::1-fd00::ffff:ffff:ffff:ffff via fd00::1");
        check("fd00::/126", "fd00::1-fd00::3 via fd00::1");
    }

    #[test]
    fn range_prefers_configured_values() {
        check("10.1.0.0/24 10.1.0.0 10.1.0.255", "10.1.0.0-10.1.0.255 via 10.1.0.1");
        check("10.1.0.0/24 10.1.0.7 10.1.0.7 10.9.9.9", "10.1.0.7-10.1.0.7 via 10.9.9.9");
        check("10.1.0.0/24 ::ffff:10.1.0.7 _ ::ffff:10.1.0.9", "10.1.0.7-10.1.0.254 via 10.1.0.9");
    }

    #[test]
    fn invalid_range_error_names_value_and_rule() {
        check(
            "10.1.0.0/31",
            "Network 10.1.0.0/31 too small to allocate from; its prefix may be at most /30",
        );
        check(
            "fd00::/127",
            "Network fd00::/127 too small to allocate from; its prefix may be at most /126",
        );
        check(
            "10.1.2.3/24",
            "Network has host bits set. For a subnet mask of length 24 the network address is \
             10.1.2.0; subnet is 10.1.2.3/24",
        );
        check("10.2.0.0/24 10.1.0.5", "RangeStart 10.1.0.5 not in network 10.2.0.0/24");
        check("10.2.0.0/24 fd00::1", "RangeStart fd00::1 not in network 10.2.0.0/24");
        check("10.2.0.0/24 _ 10.2.1.5", "RangeEnd 10.2.1.5 not in network 10.2.0.0/24");
        check(
            "10.2.0.0/24 10.2.0.9 10.2.0.5",
            "RangeStart 10.2.0.9 not in network 10.2.0.0/24: it is after rangeEnd 10.2.0.5",
        );
        check(
            "10.2.0.0/24 10.2.0.255",
            "RangeStart 10.2.0.255 not in network 10.2.0.0/24: it is after rangeEnd 10.2.0.254",
        );
        check(
            "10.2.0.0/24 _ 10.2.0.0",
            "RangeStart 10.2.0.1 not in network 10.2.0.0/24: it is after rangeEnd 10.2.0.0",
        );
    }

    #[test]
    fn ipv4_mapped_range_is_rejected() {
        assert!(matches!(range("::ffff:10.0.0.0/120"), Err(Error::Mapped { .. })));
        assert!(matches!(range("::/64"), Err(Error::Mapped { .. })));
        check("::/64 ::1 ::ff", "::1-::ff via ::1");
    }

    #[test]
    fn contains_handles_both_families() {
        let r = range("10.1.0.0/24 10.1.0.10 10.1.0.20").unwrap();
        for (ip, inside) in [
            ("10.1.0.9", false),
            ("10.1.0.10", true),
            ("10.1.0.20", true),
            ("10.1.0.21", false),
            ("::ffff:10.1.0.15", true),
            ("::10.1.0.15", false),
        ] {
            assert_eq!(r.contains(ip.parse().unwrap()), inside, "{ip}");
        }
    }
}
