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
use kernel::{Family, iptables_legacy};

use self::conf::{Backend, Firewall, Ingress};
use self::firewalld::Firewalld;
use self::native::Purpose;
use crate::fault::OrFault;
use crate::iptables::firewall::{self as by_iptables, Policed};
use crate::rules::Ledger;
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
            native::add(request, &firewall, &result, Purpose::RememberZone)?;
            undo.push(|| drop(del(request)));
            addresses.iter().try_for_each(|one| firewalld.add(&firewall.zone, *one))
        })?,
        Chosen::Iptables => or_undo(|undo| {
            remember_rules(request, &firewall, &result)?;
            undo.push(|| drop(del(request)));
            by_iptables::add(&addresses, &firewall.admin_chain, policed(&firewall, &result)?)
        })?,
    }
    Ok(result)
}

/// The older iptables works also on a kernel that has no nf_tables to remember anything in.
fn remember_rules(request: &Request, firewall: &Firewall, result: &CniResult) -> Result<(), Error> {
    let remembered = native::add(request, firewall, result, Purpose::RememberRules);
    remembered.or_else(|error| match rules::status(&elements::FEATURE, "remember") {
        Ok(()) => Err(error),
        Err(_) => Ok(()),
    })
}

fn prev_result(request: &Request) -> Result<CniResult, Error> {
    request.prev_result()?.ok_or_else(|| {
        Error::invalid_config("missing prevResult from earlier plugin")
            .with_details("firewall must come behind it in the list")
    })
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
        if iptables_legacy::drops_forwarded(family).or_fault("look at iptables-legacy")? {
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
        Chosen::Firewalld(mut firewalld) => {
            let zone = &firewall.zone;
            for address in addresses {
                if !firewalld.has(zone, address)? {
                    let msg = format!("failed to find the address {address} in {zone} zone");
                    let details = format!("{address} is no source of firewalld's zone {zone:?}");
                    return Err(Error::internal(msg).with_details(details));
                }
            }
            native::check(request, &firewall, &result, Purpose::RememberZone)
        }
        Chosen::Iptables => {
            let policed = policed(&firewall, &result)?;
            match by_iptables::missing(&addresses, &firewall.admin_chain, policed)? {
                Some(rule) => Err(Error::internal(format!("iptables has no rule {rule:?}"))),
                None => Ok(()),
            }
        }
    }
}

/// Neither the configuration nor the result need to be right: what is ours is found without them.
fn del(request: &Request) -> Result<(), Error> {
    let mut ledger = Ledger::open(&elements::FEATURE).or_fault(REMOVING)?;
    let removed = ledger.remove(&request.network, &request.attachment());
    let places = removed.as_deref().unwrap_or_default();
    let remembered = elements::told_addresses(places);
    let forgotten = native::forget_own_bridge(&ledger, request, places).or_fault(REMOVING);
    let result = request.prev_result().ok().flatten().unwrap_or_default();
    let others = tell_others(ledger.nft(), request, &remembered, &native::addresses(&result));
    Error::all([removed.map(drop).or_fault(REMOVING), forgotten, others])
}

const REMOVING: &str = "remove the container's rules";

/// Takes back what others were told: of the addresses that were remembered, and of those that the result
/// has, as what the Go plugin told is not remembered. Whoever was given one since is remembered for it, or
/// has rules of the Go plugin's.
fn tell_others(
    nft: &Nft,
    request: &Request,
    remembered: &[IpAddr],
    known: &[IpAddr],
) -> Result<(), Error> {
    let is_free = |address: &IpAddr| !native::is_remembered(nft, *address);
    let is_going = |address: IpAddr, is_ours: bool| {
        if is_ours { is_free(&address) } else { known.contains(&address) }
    };
    let mut all = [remembered, known].concat();
    all.sort_unstable();
    all.dedup();
    let by_netlink = go_rules::remove_firewall(nft, &all, is_going).or_fault(REMOVING);
    let Ok(firewall) = Firewall::understand(request) else { return by_netlink };
    let in_zone = match firewall.backend {
        Backend::Firewalld | Backend::Found => &all,
        Backend::Nftables | Backend::Iptables => remembered,
    };
    leave_zone(&firewall, in_zone.iter().copied().filter(is_free).collect());
    Error::all([by_netlink, remove_by_iptables(&firewall, &all, is_going)])
}

/// A bus that is gone has no zones any more; one that does not answer must not hold the container up.
fn leave_zone(firewall: &Firewall, addresses: Vec<IpAddr>) {
    if addresses.is_empty() {
        return;
    }
    let Some(mut firewalld) = Firewalld::find() else { return };
    for address in addresses {
        let _ = firewalld.remove(&firewall.zone, address);
    }
}

/// Rules of the program that is not the older one have gone by netlink.
fn remove_by_iptables(
    firewall: &Firewall,
    addresses: &[IpAddr],
    is_going: impl Fn(IpAddr, bool) -> bool,
) -> Result<(), Error> {
    let families = [Family::V4, Family::V6];
    let is_old = families.into_iter().any(|family| iptables_legacy::is_in_use(family, "filter"));
    if firewall.backend != Backend::Iptables || !is_old {
        return Ok(());
    }
    by_iptables::remove(addresses, is_going)
}

fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let mut ledger = Ledger::open(&elements::FEATURE).or_fault(REMOVING)?;
    let removed = ledger.gc(&request.network, &valid);
    let remembered = elements::told_addresses(removed.as_deref().unwrap_or_default());
    let others = tell_others(ledger.nft(), request, &remembered, &[]);
    let unused = native::forget_unused_bridges(&ledger).or_fault(REMOVING);
    Error::all([removed.map(drop).or_fault(REMOVING), others, unused])
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
            // STATUS does not know the containers' families: IPv6 alone is no reason to refuse all of them.
            let dropped = drops_forwarded([Family::V4].into_iter())?;
            match dropped.filter(|_| firewall.backend == Backend::Found) {
                Some(words) => Err(Error::new(Code::LIMITED, words).with_details(HINT)),
                None => Ok(()),
            }
        }
    }
}
