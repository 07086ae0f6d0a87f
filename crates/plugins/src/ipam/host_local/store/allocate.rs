// SPDX-License-Identifier: Apache-2.0
//! Allocation for ADD: one address per range set, either requested or the next free one. All
//! addresses are chosen before the first one is reserved, so that a refusal leaves nothing to undo.

use std::net::IpAddr;

use ::ipam::{Range, RangeSet, choose};

use super::{Error, Pick, Store};

/// Number of addresses to check one by one (about 1 µs each) before the directory is read once to
/// skip a longer run of reserved addresses (about 40 ms for 50 000). A /24 never needs that.
const MAX_PROBES: usize = 512;

/// Reserves one address of each set for an attachment, and returns each with its range.
///
/// A requested address is taken from the set that contains it. An attachment that already has an
/// address in one of the sets gets [`Error::Duplicate`]. After an error nothing is reserved.
pub(crate) fn allocate(
    store: &mut Store,
    sets: &[RangeSet],
    requested: &[IpAddr],
    id: &str,
    ifname: &str,
) -> Result<Vec<(IpAddr, Range)>, Error> {
    let held = store.addresses_of(id, ifname)?;
    let mut requested: Vec<_> = requested.iter().map(IpAddr::to_canonical).collect();
    let mut picks: Vec<Pick> = Vec::with_capacity(sets.len());
    for (index, set) in sets.iter().enumerate() {
        if let Some(ip) = held.iter().copied().find(|ip| set.contains(*ip)) {
            return Err(Error::Duplicate { index, ip, id: id.to_owned() });
        }
        let ip = match requested.iter().copied().find(|ip| set.contains(*ip)) {
            Some(ip) => {
                requested.retain(|other| *other != ip);
                check_requested(store, index, set, ip)?;
                ip
            }
            None => next_free(store, index, set, &picks)?,
        };
        picks.push(Pick { ip, set: index });
    }
    if !requested.is_empty() {
        return Err(Error::NotInAnySet { ips: requested });
    }
    store.reserve(id, ifname, &picks)?;
    let with_range = |(pick, set): (&Pick, &RangeSet)| Some((pick.ip, *set.range_of(pick.ip)?));
    Ok(picks.iter().zip(sets).filter_map(with_range).collect())
}

fn check_requested(store: &Store, index: usize, set: &RangeSet, ip: IpAddr) -> Result<(), Error> {
    if set.is_gateway(ip) {
        return Err(Error::RequestedGateway { index, ip });
    }
    if store.is_taken(ip)? {
        return Err(Error::RequestedTaken { index, ip, set: set.to_string() });
    }
    Ok(())
}

fn next_free(
    store: &mut Store,
    index: usize,
    set: &RangeSet,
    picks: &[Pick],
) -> Result<IpAddr, Error> {
    let last = store.last_reserved(index)?;
    let is_picked = |ip| picks.iter().any(|p| p.ip == ip);
    let mut candidates = set.candidates(last);
    if let Some(ip) = probe(store, candidates.by_ref().take(MAX_PROBES), is_picked)? {
        return Ok(ip);
    }
    if candidates.next().is_some() {
        let taken = store.taken()?;
        if let Some(ip) = choose(set, last, |ip| taken.contains(&ip) || is_picked(ip)) {
            return Ok(ip);
        }
        // File names do not show which files are empty and therefore free.
        if let Some(ip) = probe(store, set.candidates(last), is_picked)? {
            return Ok(ip);
        }
    }
    Err(Error::Exhausted { index, set: set.to_string() })
}

fn probe(
    store: &Store,
    candidates: impl Iterator<Item = IpAddr>,
    is_picked: impl Fn(IpAddr) -> bool,
) -> Result<Option<IpAddr>, Error> {
    for ip in candidates {
        if !is_picked(ip) && !store.is_taken(ip)? {
            return Ok(Some(ip));
        }
    }
    Ok(None)
}
