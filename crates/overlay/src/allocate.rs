// SPDX-License-Identifier: Apache-2.0
//! Chooses the subnets of a node: those of its current lease, or else the previous ones, or else free
//! ones.
//!
//! Nodes choose at the same time. A node that finds its key taken when it creates the key has lost a race
//! and chooses again from a newer list. The random choice makes races rare. The cost is n log n in the
//! number of leases.

use ipnet::IpNet;
use kernel::Family;

use crate::cidr::{self, Addresses, PerFamily, Prefixes};
use crate::lease::print_key;
use crate::netconf::Pool;

/// A key of the store. A key takes its subnets even if its value cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub subnets: Prefixes,
    pub public: Addresses,
    /// The key never expires. An administrator reserved it for the node with this address.
    pub is_reservation: bool,
}

/// The node that needs subnets.
#[derive(Debug, Clone, Copy)]
pub struct Requester {
    /// Addresses by which peers reach the node.
    pub public: Addresses,
    /// Subnets of the node when the agent last ran.
    pub previous: Option<Prefixes>,
    /// A random number, which selects one of the free subnets.
    pub random: u64,
}

/// Result of [`choose`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// The node already has these subnets. A reservation must stay without an expiry.
    Keep { subnets: Prefixes, is_reservation: bool },
    /// Remove the node's `obsolete` leases, which no longer fit the configuration, then lease these
    /// subnets. `is_random` means that they were picked from the free ones.
    Create { subnets: Prefixes, obsolete: Vec<Prefixes>, is_random: bool },
}

/// Reason why no subnet can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "all {} subnets from {} to {} are taken: widen {} or make subnets smaller{}",
        .pool.count(), .pool.min(), .pool.max(), .pool.network(), name_keys(.large)
    )]
    Full {
        pool: Pool,
        /// Keys that take several subnets each, sorted.
        large: Vec<Prefixes>,
    },
    #[error("the network has no address family")]
    NoPool,
}

/// Number of free subnets among which a node picks, so that nodes that start together pick different ones.
const CANDIDATES: usize = 100;

/// Maximum number of keys in an error message.
const MAX_NAMED: usize = 3;

/// Chooses the subnets of a node.
pub fn choose(
    pools: &PerFamily<Pool>,
    entries: &[Entry],
    requester: &Requester,
) -> Result<Choice, Error> {
    let (own, others): (Vec<&Entry>, Vec<&Entry>) =
        entries.iter().partition(|entry| belongs_to(entry, requester));
    let fitting = own.iter().filter(|entry| fits(pools, &entry.subnets));
    // A reservation has precedence. Otherwise the lowest subnets win, so that repeated calls agree.
    if let Some(kept) = fitting.min_by_key(|entry| (!entry.is_reservation, entry.subnets)) {
        let Entry { subnets, is_reservation, .. } = **kept;
        return Ok(Choice::Keep { subnets, is_reservation });
    }
    let (kept, obsolete): (Vec<&Entry>, Vec<&Entry>) =
        own.into_iter().partition(|entry| entry.is_reservation);
    let taken = || others.iter().chain(&kept).map(|entry| &entry.subnets);
    let candidates = obsolete.iter().map(|entry| entry.subnets).chain(requester.previous);
    let candidates: Vec<Prefixes> = candidates.collect();
    let (mut chosen, mut is_random) = (Vec::new(), false);
    for (family, pool) in pools.iter() {
        let of_family = |prefixes: &Prefixes| prefixes.get(family);
        let is_taken = |prefix: &IpNet| takes(pool, *prefix);
        let taken = Taken::new(pool, taken().filter_map(of_family).filter(is_taken));
        let previous =
            candidates.iter().filter_map(of_family).find(|subnet| taken.is_free(*subnet));
        is_random |= previous.is_none();
        let subnet = previous.or_else(|| taken.pick(mixed(requester.random, family)));
        chosen.push(subnet.ok_or_else(|| full(*pool, others.iter().chain(&kept)))?);
    }
    let obsolete = obsolete.iter().map(|entry| entry.subnets).collect();
    let subnets = Prefixes::of(chosen).ok_or(Error::NoPool)?;
    Ok(Choice::Create { subnets, obsolete, is_random })
}

fn belongs_to(entry: &Entry, requester: &Requester) -> bool {
    // The IPv4 address identifies a node; nodes without one are identified by IPv6.
    match (requester.public.v4, entry.public.v4) {
        (Some(ours), theirs) => theirs == Some(ours),
        (None, _) => requester.public.v6.is_some() && requester.public.v6 == entry.public.v6,
    }
}

/// Returns whether a node may have these subnets: exactly one from the pool of each family.
pub fn fits(pools: &PerFamily<Pool>, subnets: &Prefixes) -> bool {
    Family::ALL.into_iter().all(|family| match (pools.get(family), subnets.get(family)) {
        (Some(pool), Some(subnet)) => pool.has(subnet),
        (None, None) => true,
        _ => false,
    })
}

/// Returns whether a prefix of a key takes subnets. A prefix outside the network or equal to the network
/// does not: every node rejects it (see [`plan`](crate::plan)).
fn takes(pool: &Pool, prefix: IpNet) -> bool {
    let network = pool.network();
    network.contains(&prefix) && prefix.prefix_len() > network.prefix_len()
}

/// Returns whether the subnets of a key overlap these. Prefixes that no node serves are ignored.
pub fn overlap(pools: &PerFamily<Pool>, key: &Prefixes, subnets: &Prefixes) -> bool {
    Family::ALL.into_iter().any(|family| {
        match (pools.get(family), key.get(family), subnets.get(family)) {
            (Some(pool), Some(prefix), Some(subnet)) => {
                takes(pool, prefix) && cidr::overlap(prefix, subnet)
            }
            _ => false,
        }
    })
}

fn full<'a>(pool: Pool, entries: impl Iterator<Item = &'a &'a Entry>) -> Error {
    let is_large = |prefixes: &Prefixes| {
        let prefix = prefixes.get(cidr::of(pool.network()));
        prefix.is_some_and(|prefix| takes(&pool, prefix) && prefix.prefix_len() < pool.subnet_len())
    };
    let mut large: Vec<Prefixes> = entries.map(|entry| entry.subnets).filter(is_large).collect();
    large.sort_unstable();
    Error::Full { pool, large }
}

fn name_keys(keys: &[Prefixes]) -> String {
    if keys.is_empty() {
        return String::new();
    }
    let shown: Vec<String> = keys.iter().take(MAX_NAMED).map(print_key).collect();
    let more = match keys.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more keys"),
    };
    let shown = shown.join(", ");
    format!("; {shown}{more} take several each: delete these keys if no node uses them")
}

/// Derives a number for each family, so that the families are chosen independently.
fn mixed(random: u64, family: Family) -> u64 {
    match family {
        Family::V4 => random,
        Family::V6 => random.rotate_left(32),
    }
}

/// The taken subnets of a pool, as sorted ranges of numbers that may overlap.
struct Taken<'a> {
    pool: &'a Pool,
    runs: Vec<(u128, u128)>,
}

impl<'a> Taken<'a> {
    fn new(pool: &'a Pool, prefixes: impl Iterator<Item = IpNet>) -> Self {
        let mut runs: Vec<(u128, u128)> =
            prefixes.filter_map(|net| pool.overlapping(net)).collect();
        runs.sort_unstable();
        Self { pool, runs }
    }

    fn is_free(&self, subnet: IpNet) -> bool {
        let number = self.pool.overlapping(subnet).filter(|_| self.pool.has(subnet));
        number.is_some_and(|(number, _)| {
            !self.runs.iter().any(|(first, last)| (*first..=*last).contains(&number))
        })
    }

    /// Picks one of the first free subnets.
    fn pick(&self, random: u64) -> Option<IpNet> {
        let mut free: Vec<u128> = Vec::with_capacity(CANDIDATES);
        let mut next = 0;
        let end = (self.pool.count(), self.pool.count());
        for (first, last) in self.runs.iter().copied().chain([end]) {
            let room = CANDIDATES - free.len();
            free.extend((next..first).take(room));
            next = next.max(last.saturating_add(1));
        }
        let at = random.checked_rem(free.len() as u64)?;
        self.pool.subnet(*free.get(usize::try_from(at).ok()?)?)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Instant;

    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::lease::parse_key;
    use crate::netconf::RawNetConf;

    fn pools(text: &str) -> PerFamily<Pool> {
        RawNetConf::parse(text).unwrap().pools().unwrap()
    }

    fn entry(key: &str, public: &str) -> Entry {
        let public = Addresses { v4: public.parse().ok(), v6: public.parse().ok() };
        Entry { subnets: parse_key(key).unwrap(), public, is_reservation: false }
    }

    fn requester(public: &str, previous: Option<&str>, random: u64) -> Requester {
        let public = Addresses { v4: public.parse().ok(), v6: public.parse().ok() };
        Requester { public, previous: previous.map(|key| parse_key(key).unwrap()), random }
    }

    fn check(conf: &str, entries: &[Entry], requester: &Requester, expected: &str) {
        let shown = match choose(&pools(conf), entries, requester) {
            Ok(Choice::Keep { subnets, is_reservation }) => {
                let kind = if is_reservation { "reserved" } else { "keep" };
                format!("{kind} {}", crate::lease::print_key(&subnets))
            }
            Ok(Choice::Create { subnets, obsolete, .. }) => {
                let gone = obsolete.iter().map(|old| format!(" -{}", crate::lease::print_key(old)));
                let gone: String = gone.collect();
                format!("create {}{gone}", crate::lease::print_key(&subnets))
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(shown, expected);
    }

    const NET: &str = r#"{"Network": "10.5.0.0/16"}"#;
    const SMALL: &str = r#"{"Network": "10.5.0.0/22"}"#;
    const DUAL: &str =
        r#"{"Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:5::/48"}"#;

    #[test]
    fn own_previous_and_free_subnets_in_order() {
        let entries = [entry("10.5.37.0-24", "192.0.2.1"), entry("10.5.1.0-24", "192.0.2.2")];
        check(NET, &entries, &requester("192.0.2.1", Some("10.5.9.0-24"), 7), "keep 10.5.37.0-24");
        check(NET, &entries, &requester("192.0.2.3", Some("10.5.9.0-24"), 7), "create 10.5.9.0-24");
        // A previous subnet that is taken, has another length, or is outside the network.
        for previous in ["10.5.37.0-24", "10.5.9.0-25", "10.6.9.0-24", "10.5.0.0-24"] {
            check(NET, &entries, &requester("192.0.2.3", Some(previous), 0), "create 10.5.2.0-24");
        }
        // The first hundred free subnets: 2 to 36, and 38 to 102.
        check(NET, &entries, &requester("192.0.2.3", None, 99), "create 10.5.102.0-24");
        check(NET, &entries, &requester("192.0.2.3", None, 100), "create 10.5.2.0-24");
    }

    #[test]
    fn lease_that_no_longer_fits_is_replaced() {
        let entries = [entry("10.6.37.0-24", "192.0.2.1")];
        let expected = "create 10.5.1.0-24 -10.6.37.0-24";
        check(NET, &entries, &requester("192.0.2.1", None, 0), expected);
        // If the network gets a second family, pods keep their addresses.
        let entries = [entry("10.5.37.0-24", "192.0.2.1")];
        let expected = "create 10.5.37.0-24&fd00:5:0:1::-64 -10.5.37.0-24";
        check(DUAL, &entries, &requester("192.0.2.1", None, 0), expected);
        let entries = [entry("10.5.37.0-24&fd00:5:0:9::-64", "192.0.2.1")];
        let expected = "create 10.5.37.0-24 -10.5.37.0-24&fd00:5:0:9::-64";
        check(NET, &entries, &requester("192.0.2.1", None, 0), expected);
    }

    #[test]
    fn reservations_are_kept() {
        let reserved = Entry { is_reservation: true, ..entry("10.5.8.0-24", "192.0.2.1") };
        let entries = [entry("10.5.1.0-24", "192.0.2.1"), reserved.clone()];
        check(NET, &entries, &requester("192.0.2.1", None, 0), "reserved 10.5.8.0-24");
        check(NET, &entries, &requester("192.0.2.9", Some("10.5.8.0-24"), 0), "create 10.5.2.0-24");
        let wrong = Entry { subnets: parse_key("10.5.0.0-22").unwrap(), ..reserved };
        check(NET, &[wrong], &requester("192.0.2.1", None, 0), "create 10.5.4.0-24");
    }

    #[test]
    fn subnets_of_other_sizes_are_taken() {
        let entries = [entry("10.5.0.0-17", "192.0.2.2"), entry("10.5.128.64-26", "192.0.2.3")];
        check(NET, &entries, &requester("192.0.2.1", None, 0), "create 10.5.129.0-24");
    }

    #[test]
    fn full_network_is_an_error() {
        let entries: Vec<Entry> =
            (1..4).map(|n| entry(&format!("10.5.{n}.0-24"), "192.0.2.2")).collect();
        let full = "all 3 subnets from 10.5.1.0 to 10.5.3.0 are taken: widen 10.5.0.0/22 or make \
            subnets smaller";
        check(SMALL, &entries, &requester("192.0.2.1", Some("10.5.2.0-24"), 5), full);
        check(SMALL, &entries[1..], &requester("192.0.2.1", None, 5), "create 10.5.1.0-24");
    }

    #[test]
    fn key_that_covers_the_network_takes_nothing() {
        for key in ["0.0.0.0-0", "10.0.0.0-8", "10.4.0.0-15", "10.5.0.0-16", "10.6.0.0-16"] {
            let leased = entry(key, "192.0.2.2");
            let reserved = Entry { is_reservation: true, ..entry(key, "192.0.2.1") };
            for entries in [[leased], [reserved]] {
                check(NET, &entries, &requester("192.0.2.1", None, 0), "create 10.5.1.0-24");
            }
        }
        // Each family is checked by itself.
        let entries = [entry("10.5.1.0-24&::-0", "192.0.2.2")];
        let expected = "create 10.5.2.0-24&fd00:5:0:1::-64";
        check(DUAL, &entries, &requester("192.0.2.1", None, 0), expected);
    }

    #[test]
    fn full_network_error_names_large_keys() {
        let halves = [entry("10.5.128.0-17", "192.0.2.2"), entry("10.5.0.0-17", "192.0.2.3")];
        let full = "all 255 subnets from 10.5.1.0 to 10.5.255.0 are taken: widen 10.5.0.0/16 or make \
            subnets smaller; 10.5.0.0-17, 10.5.128.0-17 take several each: delete these keys if no \
            node uses them";
        check(NET, &halves, &requester("192.0.2.1", None, 0), full);
        let parts = (0..8).map(|n| entry(&format!("10.5.{}.0-19", n * 32), "192.0.2.2"));
        let parts: Vec<Entry> = parts.collect();
        let error = choose(&pools(NET), &parts, &requester("192.0.2.1", None, 0)).unwrap_err();
        let listed = "10.5.0.0-19, 10.5.32.0-19, 10.5.64.0-19 and 5 more keys take several each";
        assert!(error.to_string().contains(listed), "{error}");
    }

    #[test]
    fn nodes_without_ipv4_are_identified_by_ipv6() {
        let conf = r#"{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:5::/48"}"#;
        let entries = [entry("fd00:5:0:7::-64", "fd00::1"), entry("fd00:5:0:1::-64", "fd00::2")];
        check(conf, &entries, &requester("fd00::1", None, 0), "keep fd00:5:0:7::-64");
        check(conf, &entries, &requester("fd00::3", None, 0), "create fd00:5:0:2::-64");
    }

    #[test]
    fn last_free_of_65535_subnets_is_found() {
        let pools = pools(r#"{"Network": "10.0.0.0/8"}"#);
        let pool = pools.v4.unwrap();
        assert_eq!(pool.count(), 65_535);
        let all = (0..pool.count()).rev().filter(|number| *number != 40_000);
        let entries: Vec<Entry> = all
            .map(|number| Entry {
                subnets: Prefixes::of(pool.subnet(number)).unwrap(),
                public: Addresses { v4: Some(Ipv4Addr::from_bits(number as u32 + 1)), v6: None },
                is_reservation: false,
            })
            .collect();
        let start = Instant::now();
        let choice = choose(&pools, &entries, &requester("192.0.2.1", None, 3)).unwrap();
        let subnets = Prefixes::of(pool.subnet(40_000)).unwrap();
        let obsolete = Vec::new();
        assert_eq!(choice, Choice::Create { subnets, obsolete, is_random: true });
        // Quadratic cost would take minutes.
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }

    proptest! {
        #[test]
        fn taken_subnets_are_never_chosen(
            taken in vec((0u32..1 << 12, 21u8..=30), 0..80),
            previous in option::of((0u32..1 << 12, 24u8..=26)),
            random: u64,
        ) {
            let pools = pools(r#"{"Network": "10.5.0.0/20", "SubnetLen": 26}"#);
            let key = |(bits, len): (u32, u8)| {
                let address = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 5, 0, 0)) | bits);
                let net = ipnet::Ipv4Net::new(address, len).unwrap();
                Prefixes::new(Some(net), None).unwrap()
            };
            let public = Addresses { v4: Some(Ipv4Addr::new(192, 0, 2, 2)), v6: None };
            let entry = |at| Entry { subnets: key(at), public, is_reservation: false };
            let entries: Vec<Entry> = taken.into_iter().map(entry).collect();
            let requester = Requester { previous: previous.map(key), ..requester("192.0.2.1", None, random) };
            let is_free = |subnet: IpNet| {
                !entries.iter().flat_map(|entry| entry.subnets.iter())
                    .any(|other| crate::cidr::overlap(other, subnet))
            };
            match choose(&pools, &entries, &requester) {
                Ok(Choice::Create { subnets, .. }) => {
                    let subnet = subnets.get(Family::V4).unwrap();
                    prop_assert!(pools.v4.unwrap().has(subnet));
                    prop_assert!(is_free(subnet), "{subnet} is taken");
                }
                Ok(kept) => prop_assert!(false, "{kept:?}"),
                Err(_) => {
                    let pool = pools.v4.unwrap();
                    let mut all = (0..pool.count()).filter_map(|number| pool.subnet(number));
                    prop_assert!(!all.any(is_free), "a free subnet exists");
                }
            }
        }
    }
}
