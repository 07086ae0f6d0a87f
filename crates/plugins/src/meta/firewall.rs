// SPDX-License-Identifier: Apache-2.0
//! `firewall`: what containers send passes the host's packet filter, and so do the answers; ingress
//! policies keep networks apart.

mod conf;
mod elements;
mod firewalld;
mod forward;
mod native;

use std::net::IpAddr;

use cni::{CniResult, Code, Error, Plugin, Request, Version};
use kernel::nft::Nft;
use kernel::{Family, old_iptables};

use self::conf::{Backend, Firewall, Ingress};
use self::firewalld::Firewalld;
use self::native::Purpose;
use crate::fault::OrFault;
use crate::iptables::firewall::{self as by_iptables, Policed};
use crate::rules::{Ledger, TABLE};
use crate::undo::or_undo;
use crate::{go_rules, iptables, rules};

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    name: "firewall",
    about: "lets packets of containers pass the host's packet filter",
    versions: &[Version::V0_4_0, Version::V1_0_0, Version::V1_1_0],
    add,
    del,
    check,
    status,
    gc,
};

fn add(request: &Request) -> Result<CniResult, Error> {
    let firewall = Firewall::understand(request)?;
    let result = prev_result(request)?;
    let addresses = native::addresses(&result);
    native::bridge(&firewall, &result)?;
    match choose(&firewall)? {
        Chosen::Nftables => {
            refuse_old_iptables(&firewall, &addresses)?;
            native::add(request, &firewall, &result, Purpose::Pass)?;
        }
        Chosen::Firewalld(mut firewalld) => or_undo(|undo| {
            native::add(request, &firewall, &result, Purpose::Remember)?;
            undo.push(|| drop(del(request)));
            addresses.iter().try_for_each(|one| firewalld.add(&firewall.zone, *one))
        })?,
        Chosen::Iptables => {
            let policed = policed(&firewall, &result)?;
            let added = by_iptables::add(&addresses, &firewall.admin_chain, policed);
            added.inspect_err(|_| drop(by_iptables::remove(&addresses)))?;
        }
    }
    Ok(result)
}

fn prev_result(request: &Request) -> Result<CniResult, Error> {
    let missing =
        "missing prevResult from earlier plugin: firewall must come behind it in the list";
    request.prev_result()?.ok_or_else(|| Error::invalid_config(missing))
}

/// What it is done by.
enum Chosen {
    Nftables,
    Iptables,
    Firewalld(Firewalld),
}

fn choose(firewall: &Firewall) -> Result<Chosen, Error> {
    Ok(match firewall.backend {
        Backend::Nftables => Chosen::Nftables,
        Backend::Iptables => Chosen::Iptables,
        Backend::Firewalld => Chosen::Firewalld(Firewalld::required()?),
        Backend::Found => Firewalld::find().map_or(Chosen::Nftables, Chosen::Firewalld),
    })
}

fn policed<'a>(firewall: &Firewall, result: &'a CniResult) -> Result<Option<Policed<'a>>, Error> {
    let isolated = firewall.ingress == Ingress::Isolated;
    Ok(native::bridge(firewall, result)?.map(|bridge| Policed { bridge, isolated }))
}

/// The older filter drops what it wants to drop, whatever nf_tables says. Who names nf_tables knows better.
fn refuse_old_iptables(firewall: &Firewall, addresses: &[IpAddr]) -> Result<(), Error> {
    if firewall.backend == Backend::Nftables {
        return Ok(());
    }
    let is_concerned = |family| addresses.iter().any(|one| iptables::family_of(*one) == family);
    let families = [Family::V4, Family::V6].into_iter().filter(|family| is_concerned(*family));
    match drops_forwarded(families)? {
        Some(words) => Err(Error::internal(words).with_details(HINT)),
        None => Ok(()),
    }
}

const HINT: &str = "set \"backend\" to \"iptables\" to have that program used, or to \"nftables\" where other \
                    rules let the containers pass";

fn drops_forwarded(families: impl Iterator<Item = Family>) -> Result<Option<String>, Error> {
    for family in families {
        if old_iptables::drops_forwarded(family).or_fault("look at iptables-legacy")? {
            let program = match family {
                Family::V4 => "iptables-legacy",
                Family::V6 => "ip6tables-legacy",
            };
            let words =
                format!("the chain FORWARD of {program} drops what no rule of its own lets pass");
            return Ok(Some(words));
        }
    }
    Ok(None)
}

fn check(request: &Request) -> Result<(), Error> {
    let firewall = Firewall::understand(request)?;
    let result = prev_result(request)?;
    let addresses = native::addresses(&result);
    match choose(&firewall)? {
        Chosen::Nftables => native::check(request, &firewall, &result, Purpose::Pass),
        Chosen::Firewalld(mut firewalld) => addresses.iter().try_for_each(|address| {
            if firewalld.has(&firewall.zone, *address)? {
                return Ok(());
            }
            let zone = &firewall.zone;
            let msg = format!("{address} is no source of firewalld's zone {zone:?}");
            Err(Error::internal(msg))
        }),
        Chosen::Iptables => match by_iptables::missing(&addresses, &firewall.admin_chain)? {
            Some(rule) => Err(Error::internal(format!("iptables has no rule {rule:?}"))),
            None => Ok(()),
        },
    }
}

/// Neither the configuration nor the result need to be right: what is ours is found without them.
fn del(request: &Request) -> Result<(), Error> {
    let mut ledger = Ledger::open(&elements::FEATURE).or_fault(REMOVING)?;
    let removed = ledger.remove(&request.network, &request.attachment());
    let result = request.prev_result().ok().flatten().unwrap_or_default();
    let addresses = native::addresses(&result);
    let by_go = go_rules::remove_firewall(ledger.nft(), &addresses);
    let mut by_iptables = Ok(());
    let remembered = removed.as_deref().unwrap_or_default();
    let mut zoned: Vec<IpAddr> =
        remembered.iter().filter_map(|one| elements::zoned_address(one.map, &one.key)).collect();
    if let Ok(firewall) = &Firewall::understand(request) {
        // What the Go plugin has told firewalld of is not remembered.
        if matches!(firewall.backend, Backend::Firewalld | Backend::Found) {
            zoned.extend(&addresses);
        }
        leave_zone(ledger.nft(), firewall, zoned);
        by_iptables = remove_by_iptables(firewall, &addresses);
    }
    Error::all([removed.map(drop).or_fault(REMOVING), by_go.or_fault(REMOVING), by_iptables])
}

const REMOVING: &str = "remove the container's rules";

/// A bus that is gone has no zones any more; one that does not answer must not hold the container up.
fn leave_zone(nft: &Nft, firewall: &Firewall, mut addresses: Vec<IpAddr>) {
    addresses.sort_unstable();
    addresses.dedup();
    // Whoever was given an address since is remembered for it.
    addresses.retain(|address| {
        let entry = elements::zoned(*address);
        !matches!(nft.element(TABLE, entry.map.name, &entry.key), Ok(Some(_)))
    });
    if addresses.is_empty() {
        return;
    }
    let Some(mut firewalld) = Firewalld::find() else { return };
    for address in addresses {
        let _ = firewalld.remove(&firewall.zone, address);
    }
}

/// Rules of the program that is not the older one have gone by netlink.
fn remove_by_iptables(firewall: &Firewall, addresses: &[IpAddr]) -> Result<(), Error> {
    let families = [Family::V4, Family::V6];
    let is_old = families.into_iter().any(|family| old_iptables::is_in_use(family, "filter"));
    if firewall.backend != Backend::Iptables || !is_old {
        return Ok(());
    }
    by_iptables::remove(addresses)
}

fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let mut ledger = Ledger::open(&elements::FEATURE).or_fault(REMOVING)?;
    let removed = ledger.gc(&request.network, &valid);
    let places = removed.as_deref().unwrap_or_default();
    let zoned =
        places.iter().filter_map(|one| elements::zoned_address(one.map, &one.key)).collect();
    if let Ok(firewall) = Firewall::understand(request) {
        leave_zone(ledger.nft(), &firewall, zoned);
    }
    let unused = native::remove_unused_bridges(ledger.nft());
    Error::all([removed.map(drop), unused].map(|one| one.or_fault(REMOVING)))
}

fn status(request: &Request) -> Result<(), Error> {
    let firewall = Firewall::understand(request)?;
    let by_nf_tables = || rules::status(&elements::FEATURE, "let packets pass");
    match firewall.backend {
        Backend::Iptables => iptables::status(),
        Backend::Firewalld => {
            let not_available = |error: Error| Error::new(Code::NOT_AVAILABLE, error.to_string());
            Firewalld::required().map(drop).map_err(not_available)?;
            by_nf_tables()
        }
        Backend::Found if Firewalld::find().is_some() => by_nf_tables(),
        Backend::Found | Backend::Nftables => {
            by_nf_tables()?;
            let dropped = drops_forwarded([Family::V4, Family::V6].into_iter())?;
            match dropped.filter(|_| firewall.backend == Backend::Found) {
                Some(words) => Err(Error::new(Code::LIMITED, words).with_details(HINT)),
                None => Ok(()),
            }
        }
    }
}
