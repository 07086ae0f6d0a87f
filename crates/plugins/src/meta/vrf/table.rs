// SPDX-License-Identifier: Apache-2.0
//! A routing table for a new VRF.

use std::collections::HashSet;

use cni::Error;
use kernel::link::{self, Detail};
use kernel::route::{self, RouteFilter};
use kernel::{Family, Netlink, rule};

use crate::error::Context;

/// Returns the smallest table that no VRF, rule or route uses.
pub(super) fn choose(inside: &Netlink) -> Result<u32, Error> {
    let doing = "look for a free routing table";
    let mut used = HashSet::new();
    for link in link::list(inside).context(doing)? {
        if let Detail::Vrf(table) = link.detail {
            used.insert(table);
        }
    }
    let routes = route::list(inside, RouteFilter::default()).context(doing)?;
    used.extend(routes.iter().map(|route| route.table));
    for family in Family::ALL {
        match rule::list(inside, family) {
            Ok(rules) => used.extend(rules.iter().map(|rule| rule.table)),
            Err(error) if error.is_unsupported() => {}
            Err(error) => return Err(error).context(doing),
        }
    }
    free(&used).ok_or_else(|| Error::internal("all routing tables are in use"))
}

fn free(used: &HashSet<u32>) -> Option<u32> {
    let reserved = [route::TABLE_DEFAULT, route::TABLE_MAIN, route::TABLE_LOCAL];
    (1..u32::MAX).find(|table| !used.contains(table) && !reserved.contains(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_returns_the_smallest_unused_table() {
        let check = |used: &[u32], expected| {
            assert_eq!(free(&used.iter().copied().collect()), Some(expected), "{used:?}");
        };
        check(&[], 1);
        check(&[1, 2, 4], 3);
        check(&(1..253).collect::<Vec<_>>(), 256);
    }
}
