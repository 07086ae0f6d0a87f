// SPDX-License-Identifier: Apache-2.0
//! The order in which addresses are tried: round-robin, so that a container that keeps restarting
//! does not meet its old address before the whole set has had its turn.

use std::net::IpAddr;

use crate::range::bits;
use crate::{Range, RangeSet};

/// One loop over the addresses of a set without its gateways. Holds four numbers whatever the size
/// of the set, so an IPv6 subnet costs no more than a handful of addresses.
#[derive(Debug, Clone)]
pub struct Candidates<'a> {
    set: &'a RangeSet,
    /// The range the loop begins and ends in.
    home: usize,
    /// Where in the home range it began: the number of the last reserved address.
    last: Option<u128>,
    /// How many ranges after the home range we are; the range count means back in it.
    step: usize,
    /// What is left of the range in hand, inclusive.
    span: Option<(u128, u128)>,
}

impl<'a> Candidates<'a> {
    pub(crate) fn new(set: &'a RangeSet, last: Option<IpAddr>) -> Self {
        let ranges = set.ranges();
        let found = last.and_then(|ip| {
            let home = ranges.iter().position(|r| r.contains(ip))?;
            Some((home, bits(ip.to_canonical())))
        });
        let Some((home, last)) = found else {
            let span = Some(ranges[0].span());
            return Self { set, home: 0, last: None, step: 0, span };
        };
        let end = ranges[home].span().1;
        // `last < end` also keeps `last + 1` from overflowing
        let span = (last < end).then(|| (last + 1, end));
        Self { set, home, last: Some(last), step: 0, span }
    }

    fn range(&self) -> &'a Range {
        let ranges = self.set.ranges();
        &ranges[(self.home + self.step) % ranges.len()]
    }

    /// Moves on to the next range; `None` after the loop.
    fn advance(&mut self) -> Option<(u128, u128)> {
        let count = self.set.ranges().len();
        if self.step == count {
            return None;
        }
        self.step += 1;
        let (start, end) = self.range().span();
        if self.step < count {
            return Some((start, end));
        }
        self.last.map(|last| (start, last))
    }
}

impl Iterator for Candidates<'_> {
    type Item = IpAddr;

    fn next(&mut self) -> Option<IpAddr> {
        loop {
            let (at, end) = match self.span.take() {
                Some(span) => span,
                None => self.advance()?,
            };
            self.span = (at < end).then(|| (at + 1, end));
            let ip = self.range().address(at);
            if !self.set.is_gateway(ip) {
                return Some(ip);
            }
        }
    }
}

/// The first address in turn that is not taken; `None` if the set is exhausted.
pub fn choose(
    set: &RangeSet,
    last: Option<IpAddr>,
    mut taken: impl FnMut(IpAddr) -> bool,
) -> Option<IpAddr> {
    set.candidates(last).find(|ip| !taken(*ip))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set::tests::set;

    fn check(ranges: &str, last: &str, expected: &str) {
        let set = set(ranges).unwrap();
        let order: Vec<_> = set.candidates(last.parse().ok()).map(|ip| ip.to_string()).collect();
        assert_eq!(order.join(" "), expected, "{ranges} after {last:?}");
    }

    const TWO: &str = "10.1.0.0/29=10.1.0.1-10.1.0.4 10.2.0.0/29=10.2.0.2-10.2.0.3";

    #[test]
    fn one_loop_begins_after_the_last() {
        check(TWO, "", "10.1.0.2 10.1.0.3 10.1.0.4 10.2.0.2 10.2.0.3");
        check(TWO, "10.1.0.3", "10.1.0.4 10.2.0.2 10.2.0.3 10.1.0.2 10.1.0.3");
        check(TWO, "10.1.0.4", "10.2.0.2 10.2.0.3 10.1.0.2 10.1.0.3 10.1.0.4");
        check(TWO, "10.2.0.3", "10.1.0.2 10.1.0.3 10.1.0.4 10.2.0.2 10.2.0.3");
    }

    #[test]
    fn a_last_address_from_elsewhere_is_forgotten() {
        check(TWO, "10.9.0.3", "10.1.0.2 10.1.0.3 10.1.0.4 10.2.0.2 10.2.0.3");
        check(TWO, "fd00::1", "10.1.0.2 10.1.0.3 10.1.0.4 10.2.0.2 10.2.0.3");
        check(TWO, "10.1.0.1", "10.1.0.2 10.1.0.3 10.1.0.4 10.2.0.2 10.2.0.3");
    }

    #[test]
    fn a_set_of_its_gateway_alone_has_no_candidates() {
        check("10.1.0.0/29=10.1.0.1-10.1.0.1", "", "");
        check("10.1.0.0/29=10.1.0.1-10.1.0.1", "10.1.0.1", "");
        check("10.1.0.0/29=10.1.0.2-10.1.0.2", "10.1.0.2", "10.1.0.2");
    }

    #[test]
    fn the_ends_of_the_address_space_do_not_overflow() {
        let top = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc/126";
        let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        check(
            top,
            last,
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        );
        check(
            "255.255.255.252/30=255.255.255.252-255.255.255.255",
            "255.255.255.255",
            "255.255.255.252 255.255.255.254 255.255.255.255",
        );
    }

    #[test]
    fn huge_sets_are_walked_lazily() {
        let set = set("fd00::/8").unwrap();
        let last = "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().ok();
        // fd00::1 is the gateway
        assert_eq!(choose(&set, last, |_| false), "fd00::2".parse().ok());
        assert_eq!(choose(&set, "fd80::7".parse().ok(), |_| false), "fd80::8".parse().ok());
    }
}
