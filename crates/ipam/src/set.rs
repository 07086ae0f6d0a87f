// SPDX-License-Identifier: Apache-2.0
//! A range set: the ranges from which one address is chosen.

use std::fmt;
use std::net::IpAddr;

use crate::{Candidates, Error, Range};

/// At least one range, all of one family, without overlaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSet(Vec<Range>);

impl RangeSet {
    pub fn new(ranges: Vec<Range>) -> Result<Self, Error> {
        let Some((first, rest)) = ranges.split_first() else {
            return Err(Error::EmptySet);
        };
        if let Some(second) = rest.iter().find(|r| r.is_ipv6() != first.is_ipv6()) {
            return Err(Error::MixedFamilies {
                first: Box::new(*first),
                second: Box::new(*second),
            });
        }
        for (i, first) in ranges.iter().enumerate() {
            if let Some(second) = ranges[i + 1..].iter().find(|r| r.overlaps(first)) {
                return Err(Error::Overlap { first: Box::new(*first), second: Box::new(*second) });
            }
        }
        Ok(Self(ranges))
    }

    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    pub fn is_ipv6(&self) -> bool {
        self.0[0].is_ipv6()
    }

    pub fn contains(&self, ip: IpAddr) -> bool {
        self.range_of(ip).is_some()
    }

    /// Returns the range that contains an address.
    pub fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|r| r.contains(ip))
    }

    /// Returns whether an address is the gateway of any range of the set.
    ///
    /// host-local checks only the range that contains the address. If two ranges of one subnet have different gateways,
    /// it can assign one gateway to a container.
    pub fn is_gateway(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|r| r.gateway() == Some(ip))
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|a| other.0.iter().any(|b| a.overlaps(b)))
    }

    /// Iterates once over all addresses that may be assigned. Starts after `last` if the set contains it, otherwise at
    /// the first address.
    pub fn candidates(&self, last: Option<IpAddr>) -> Candidates<'_> {
        Candidates::new(self, last)
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{range}")?;
        }
        Ok(())
    }
}

/// Returns an error if two sets share an address.
pub fn check_disjoint(sets: &[RangeSet]) -> Result<(), Error> {
    for (first, a) in sets.iter().enumerate() {
        for (second, b) in sets.iter().enumerate().skip(first + 1) {
            if a.overlaps(b) {
                let (first_set, second_set) = (a.clone(), b.clone());
                return Err(Error::SetsOverlap { first, first_set, second, second_set });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::RangeConf;

    /// Parses a set such as `10.1.0.0/24 10.1.1.0/24=10.1.1.5-10.1.1.9`.
    pub(crate) fn set(text: &str) -> Result<RangeSet, Error> {
        let ranges = text.split_whitespace().map(|word| {
            let Some((subnet, span)) = word.split_once('=') else {
                return Range::new(RangeConf::whole(word.parse().unwrap())).unwrap();
            };
            let (start, end) = span.split_once('-').unwrap();
            let conf = RangeConf::whole(subnet.parse().unwrap());
            let range_start = Some(start.parse().unwrap());
            let range_end = Some(end.parse().unwrap());
            Range::new(RangeConf { range_start, range_end, ..conf }).unwrap()
        });
        RangeSet::new(ranges.collect())
    }

    fn check(text: &str, expected: &str) {
        let actual = set(text).map_or_else(|e| e.to_string(), |s| s.to_string());
        assert_eq!(actual, expected, "{text}");
    }

    #[test]
    fn set_has_one_family_and_no_overlap() {
        check("", "empty range set: it must hold at least one range");
        check("10.1.0.0/30 10.2.0.0/30", "10.1.0.1-10.1.0.2,10.2.0.1-10.2.0.2");
        check(
            "10.1.0.0/30 fd00::/126",
            "mixed address families: 10.1.0.1-10.1.0.2 and fd00::1-fd00::3; a set holds only one",
        );
        check(
            "10.1.0.0/24 10.2.0.0/24 10.1.0.4/30",
            "subnets 10.1.0.1-10.1.0.254 and 10.1.0.5-10.1.0.6 overlap",
        );
        check(
            "10.1.0.0/24=10.1.0.1-10.1.0.9 10.1.0.0/24=10.1.0.10-10.1.0.20",
            "10.1.0.1-10.1.0.9,10.1.0.10-10.1.0.20",
        );
    }

    #[test]
    fn overlapping_sets_are_rejected() {
        let sets = ["10.1.0.0/24", "fd00::/64", "10.1.0.0/16"].map(|s| set(s).unwrap());
        assert_eq!(check_disjoint(&sets[..2]), Ok(()));
        assert_eq!(
            check_disjoint(&sets).unwrap_err().to_string(),
            "range set 0 overlaps with 2: 10.1.0.1-10.1.0.254 and 10.1.0.1-10.1.255.254"
        );
    }

    #[test]
    fn gateway_of_any_range_is_excluded() {
        let s = set("10.1.0.0/24 10.2.0.0/24").unwrap();
        assert!(s.is_gateway("10.2.0.1".parse().unwrap()));
        assert!(!s.is_gateway("10.2.0.2".parse().unwrap()));
        assert!(s.contains("10.2.0.1".parse().unwrap()));
        assert!(!s.contains("10.3.0.1".parse().unwrap()));
    }
}
