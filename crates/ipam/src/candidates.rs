// SPDX-License-Identifier: Apache-2.0
//! The order in which addresses are tried: round-robin. A released address is reused only after all other addresses of
//! the set were tried.

use std::net::IpAddr;

use crate::range::bits;
use crate::{Range, RangeSet};

/// Iterates once over the addresses of a set, without its gateways. The memory use does not depend on the size of the
/// set, so an IPv6 subnet is as cheap as a small one.
#[derive(Debug, Clone)]
pub struct Candidates<'a> {
    set: &'a RangeSet,
    /// Index of the range that the iteration starts and ends in.
    first_range: usize,
    /// The last reserved address as a number. The iteration starts after it.
    last: Option<u128>,
    /// Number of ranges after the first one. If it equals the number of ranges, the first range is visited again.
    step: usize,
    /// Addresses of the current range that are left, inclusive.
    span: Option<(u128, u128)>,
}

impl<'a> Candidates<'a> {
    pub(crate) fn new(set: &'a RangeSet, last: Option<IpAddr>) -> Self {
        let ranges = set.ranges();
        let start = last.and_then(|ip| {
            let first_range = ranges.iter().position(|r| r.contains(ip))?;
            Some((first_range, bits(ip.to_canonical())))
        });
        let Some((first_range, last)) = start else {
            let span = Some(ranges[0].span());
            return Self { set, first_range: 0, last: None, step: 0, span };
        };
        let end = ranges[first_range].span().1;
        // `last < end` also prevents an overflow of `last + 1`.
        let span = (last < end).then(|| (last + 1, end));
        Self { set, first_range, last: Some(last), step: 0, span }
    }

    fn range(&self) -> &'a Range {
        let ranges = self.set.ranges();
        &ranges[(self.first_range + self.step) % ranges.len()]
    }

    /// Moves to the next range and returns its addresses. Returns `None` after the last one.
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

/// Returns the next address that is not taken, or `None` if the set is exhausted.
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
    fn candidates_start_after_the_last_address() {
        check(TWO, "", "10.1.0.2 10.1.0.3 10.1.0.4 10.2.0.2 10.2.0.3");
        check(TWO, "10.1.0.3", "10.1.0.4 10.2.0.2 10.2.0.3 10.1.0.2 10.1.0.3");
        check(TWO, "10.1.0.4", "10.2.0.2 10.2.0.3 10.1.0.2 10.1.0.3 10.1.0.4");
        check(TWO, "10.2.0.3", "10.1.0.2 10.1.0.3 10.1.0.4 10.2.0.2 10.2.0.3");
    }

    #[test]
    fn last_address_outside_the_set_is_ignored() {
        check(TWO, "10.9.0.3", "10.1.0.2 10.1.0.3 10.1.0.4 10.2.0.2 10.2.0.3");
        check(TWO, "fd00::1", "10.1.0.2 10.1.0.3 10.1.0.4 10.2.0.2 10.2.0.3");
        check(TWO, "10.1.0.1", "10.1.0.2 10.1.0.3 10.1.0.4 10.2.0.2 10.2.0.3");
    }

    #[test]
    fn set_of_only_a_gateway_has_no_candidates() {
        check("10.1.0.0/29=10.1.0.1-10.1.0.1", "", "");
        check("10.1.0.0/29=10.1.0.1-10.1.0.1", "10.1.0.1", "");
        check("10.1.0.0/29=10.1.0.2-10.1.0.2", "10.1.0.2", "10.1.0.2");
    }

    #[test]
    fn ends_of_the_address_space_do_not_overflow() {
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
    fn huge_set_is_iterated_lazily() {
        let set = set("fd00::/8").unwrap();
        let last = "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().ok();
        // fd00::1 is the gateway.
        assert_eq!(choose(&set, last, |_| false), "fd00::2".parse().ok());
        assert_eq!(choose(&set, "fd80::7".parse().ok(), |_| false), "fd80::8".parse().ok());
    }
}
