// SPDX-License-Identifier: Apache-2.0
//! host-local's ADD: one address a range set, requested or next in turn. All are chosen before the
//! first is taken, so that a refusal leaves nothing to undo.

use std::net::IpAddr;

use ::ipam::{Range, RangeSet, choose};

use super::{Error, Pick, Store};

/// How many addresses are looked at one by one, about 1 µs each, before the directory is read once
/// to pass a longer run of taken ones, about 40 ms at 50 000. A /24 never needs that.
const PROBES: usize = 512;

/// Reserves one address of each set for an attachment, and says in which range each lies.
///
/// A requested address goes to the set that holds it. An attachment that already has an address in
/// one of the sets gets [`Error::Duplicate`]; on any error nothing has been reserved.
pub fn allocate(
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
    let mut turn = set.candidates(last);
    if let Some(ip) = probe(store, turn.by_ref().take(PROBES), is_picked)? {
        return Ok(ip);
    }
    if turn.next().is_some() {
        let taken = store.taken()?;
        if let Some(ip) = choose(set, last, |ip| taken.contains(&ip) || is_picked(ip)) {
            return Ok(ip);
        }
        // the names alone do not tell which files are empty, and so free
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
