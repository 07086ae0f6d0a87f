// SPDX-License-Identifier: Apache-2.0
//! `firewall`: lets the packets of containers and their replies pass the host's packet filter.
//! Ingress policies isolate networks.

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
use crate::attach::prev_result;
use crate::attach::undo::or_undo;
use crate::compat::iptables::firewall::{self as by_iptables, BridgePolicy};
use crate::compat::{go_nft, iptables};
use crate::error::Context;
use crate::nftables::{self, ElementStore};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "firewall",
    about: "accepts packets of containers in the host's packet filter",
    versions: &[Version::V0_4_0, Version::V1_0_0, Version::V1_1_0],
    add,
    del,
    check,
    status,
    gc,
};

fn add(request: &Request) -> Result<CniResult, Error> {
    let firewall = Firewall::parse(request)?;
    let result = prev_result::required(request, NO_PREV_RESULT)?;
    let addresses = native::addresses(&result);
    native::bridge(&firewall, &result)?;
    match choose(&firewall)? {
        Chosen::Nftables => {
            refuse_legacy_iptables(&firewall, &addresses)?;
            native::add(request, &firewall, &result, Purpose::Pass)?;
        }
        Chosen::Firewalld(mut firewalld) => or_undo(|undo| {
            native::add(request, &firewall, &result, Purpose::RecordZone)?;
            undo.push(|| drop(del(request)));
            addresses.iter().try_for_each(|one| firewalld.add(&firewall.zone, *one))
        })?,
        Chosen::Iptables => or_undo(|undo| {
            record_rules(request, &firewall, &result)?;
            undo.push(|| drop(del(request)));
            by_iptables::add(&addresses, &firewall.admin_chain, bridge_policy(&firewall, &result)?)
        })?,
    }
    Ok(result)
}

/// iptables-legacy also works with a kernel without nf_tables, where nothing can be recorded.
fn record_rules(request: &Request, firewall: &Firewall, result: &CniResult) -> Result<(), Error> {
    let recorded = native::add(request, firewall, result, Purpose::RecordRules);
    recorded.or_else(|error| match nftables::status(&elements::FEATURE, "record rules") {
        Ok(()) => Err(error),
        Err(_) => Ok(()),
    })
}

const NO_PREV_RESULT: &str = "missing prevResult from earlier plugin";

/// The backend that is used.
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
        Backend::Auto => Firewalld::find().map_or(Chosen::Nftables, Chosen::Firewalld),
    })
}

fn bridge_policy<'a>(
    firewall: &Firewall,
    result: &'a CniResult,
) -> Result<Option<BridgePolicy<'a>>, Error> {
    let isolated = firewall.ingress == Ingress::Isolated;
    Ok(native::bridge(firewall, result)?.map(|bridge| BridgePolicy { bridge, isolated }))
}

/// Packets that iptables-legacy drops are lost, whatever the rules of nf_tables say. A
/// configuration that names nftables as backend accepts that.
fn refuse_legacy_iptables(firewall: &Firewall, addresses: &[IpAddr]) -> Result<(), Error> {
    if firewall.backend == Backend::Nftables {
        return Ok(());
    }
    let is_used = |family| addresses.iter().any(|one| iptables::family_of(*one) == family);
    let families = [Family::V4, Family::V6].into_iter().filter(|family| is_used(*family));
    match drops_forwarded(families)? {
        Some(msg) => Err(Error::internal(msg).with_details(HINT)),
        None => Ok(()),
    }
}

const HINT: &str = "set \"backend\" to \"iptables\" to use that program, or to \"nftables\" if other rules accept \
                    the containers' packets";

fn drops_forwarded(families: impl Iterator<Item = Family>) -> Result<Option<String>, Error> {
    for family in families {
        if iptables_legacy::drops_forwarded(family).context("look at iptables-legacy")? {
            let program = match family {
                Family::V4 => "iptables-legacy",
                Family::V6 => "ip6tables-legacy",
            };
            let msg = format!("the chain FORWARD of {program} drops packets that no rule accepts");
            return Ok(Some(msg));
        }
    }
    Ok(None)
}

fn check(request: &Request) -> Result<(), Error> {
    let firewall = Firewall::parse(request)?;
    let result = prev_result::required(request, NO_PREV_RESULT)?;
    let addresses = native::addresses(&result);
    match choose(&firewall)? {
        Chosen::Nftables => native::check(request, &firewall, &result, Purpose::Pass),
        Chosen::Firewalld(mut firewalld) => {
            let zone = &firewall.zone;
            for address in addresses {
                if !firewalld.has(zone, address)? {
                    let msg = format!("failed to find the address {address} in {zone} zone");
                    let details = format!("{address} is not a source of firewalld's zone {zone:?}");
                    return Err(Error::internal(msg).with_details(details));
                }
            }
            native::check(request, &firewall, &result, Purpose::RecordZone)
        }
        Chosen::Iptables => {
            let policy = bridge_policy(&firewall, &result)?;
            match by_iptables::missing(&addresses, &firewall.admin_chain, policy)? {
                Some(rule) => Err(Error::internal(format!("iptables has no rule {rule:?}"))),
                None => Ok(()),
            }
        }
    }
}

/// DEL does not need a valid configuration or result: the elements are found without them.
fn del(request: &Request) -> Result<(), Error> {
    let mut store = ElementStore::open(&elements::FEATURE).context(REMOVING)?;
    let removed = store.remove(&request.network, &request.attachment());
    let entries = removed.as_deref().unwrap_or_default();
    let recorded = elements::recorded_addresses(entries);
    let own_bridge = native::remove_own_bridge(&store, request, entries).context(REMOVING);
    let result = request.prev_result().ok().flatten().unwrap_or_default();
    let others = remove_elsewhere(store.nft(), request, &recorded, &native::addresses(&result));
    Error::all([removed.map(drop).context(REMOVING), own_bridge, others])
}

const REMOVING: &str = "remove the container's rules";

/// Removes the rules in firewalld and iptables: those of the recorded addresses, and those of the
/// result's addresses, because the Go plugin records nothing. An address that was assigned again
/// since is recorded for its new owner, or has rules of the Go plugin.
fn remove_elsewhere(
    nft: &Nft,
    request: &Request,
    recorded: &[IpAddr],
    known: &[IpAddr],
) -> Result<(), Error> {
    let is_free = |address: &IpAddr| !native::is_recorded(nft, *address);
    let is_removed = |address: IpAddr, is_own: bool| {
        if is_own { is_free(&address) } else { known.contains(&address) }
    };
    let mut all = [recorded, known].concat();
    all.sort_unstable();
    all.dedup();
    let by_netlink = go_nft::remove_firewall(nft, &all, is_removed).context(REMOVING);
    let Ok(firewall) = Firewall::parse(request) else { return by_netlink };
    let in_zone = match firewall.backend {
        Backend::Firewalld | Backend::Auto => &all,
        Backend::Nftables | Backend::Iptables => recorded,
    };
    leave_zone(&firewall, in_zone.iter().copied().filter(is_free).collect());
    Error::all([by_netlink, remove_by_iptables(&firewall, &all, is_removed)])
}

/// Errors are ignored: without a bus there are no zones, and a bus that does not answer must not
/// block DEL.
fn leave_zone(firewall: &Firewall, addresses: Vec<IpAddr>) {
    if addresses.is_empty() {
        return;
    }
    let Some(mut firewalld) = Firewalld::find() else { return };
    for address in addresses {
        let _ = firewalld.remove(&firewall.zone, address);
    }
}

/// Only for iptables-legacy: rules of iptables-nft have been removed by netlink.
fn remove_by_iptables(
    firewall: &Firewall,
    addresses: &[IpAddr],
    is_removed: impl Fn(IpAddr, bool) -> bool,
) -> Result<(), Error> {
    let families = [Family::V4, Family::V6];
    let is_legacy = families.into_iter().any(|family| iptables_legacy::is_in_use(family, "filter"));
    if firewall.backend != Backend::Iptables || !is_legacy {
        return Ok(());
    }
    by_iptables::remove(addresses, is_removed)
}

fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let mut store = ElementStore::open(&elements::FEATURE).context(REMOVING)?;
    let removed = store.gc(&request.network, &valid);
    let recorded = elements::recorded_addresses(removed.as_deref().unwrap_or_default());
    let others = remove_elsewhere(store.nft(), request, &recorded, &[]);
    let unused = native::remove_unused_bridges(&store).context(REMOVING);
    Error::all([removed.map(drop).context(REMOVING), others, unused])
}

fn status(request: &Request) -> Result<(), Error> {
    let firewall = Firewall::parse(request)?;
    let by_nf_tables = || nftables::status(&elements::FEATURE, "let packets pass");
    match firewall.backend {
        Backend::Iptables => iptables::status(),
        Backend::Firewalld => {
            let not_available = |error: Error| Error::new(Code::NOT_AVAILABLE, error.to_string());
            Firewalld::required().map(drop).map_err(not_available)?;
            by_nf_tables()
        }
        Backend::Auto if Firewalld::find().is_some() => by_nf_tables(),
        Backend::Auto | Backend::Nftables => {
            by_nf_tables()?;
            // STATUS does not know the containers' families. A problem of IPv6 alone must not stop
            // all containers.
            let dropped = drops_forwarded([Family::V4].into_iter())?;
            match dropped.filter(|_| firewall.backend == Backend::Auto) {
                Some(msg) => Err(Error::new(Code::LIMITED, msg).with_details(HINT)),
                None => Ok(()),
            }
        }
    }
}
