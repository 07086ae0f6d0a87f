// SPDX-License-Identifier: Apache-2.0
//! The firewall in nf_tables: the container's elements, the administrator's chain, the rule in
//! FORWARD of iptables, and the isolation of the bridge port.

use std::net::IpAddr;

use cni::{CniResult, Error, Request};
use kernel::link::{self, Link, PortOptions};
use kernel::nft::{Batch, Chain, Element, Expr, Nft, Place, Rule, Verdict};
use kernel::{Family, IfName, Netlink};

use super::conf::{Firewall, Ingress};
use super::elements::{self, ADMIN, BRIDGES, FEATURE, ON_BRIDGES};
use super::forward;
use crate::attach::names;
use crate::compat::go_nft;
use crate::error::Context;
use crate::nftables::match_expr::ifname_key;
use crate::nftables::{self, DesiredChain, ElementStore, Entry, IndexEntry, Owner, TABLE};

const DOING: &str = "let the container's packets pass";

/// The purpose of the container's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// They accept the container's packets.
    Pass,
    /// firewalld accepts the packets and the elements record that. The ingress policy is still
    /// ours.
    RecordZone,
    /// iptables does everything and the elements record that.
    RecordRules,
}

/// Adds the container's elements and the objects that they need.
pub(super) fn add(
    request: &Request,
    firewall: &Firewall,
    result: &CniResult,
    purpose: Purpose,
) -> Result<(), Error> {
    let bridge = bridge(firewall, result)?.filter(|_| purpose != Purpose::RecordRules);
    let (entries, chains) = plan(firewall, result, bridge, purpose);
    if entries.is_empty() {
        return Ok(());
    }
    let mut store = ElementStore::open(&FEATURE).context(DOING)?;
    let added = store.add(&Owner::of(request), &entries, &chains);
    let added = added.map_err(|error| error.into_error(DOING));
    let added = added.and_then(|()| add_shared(store.nft(), firewall, result, bridge, purpose));
    if added.is_err() {
        // The first error is the one to report.
        let _ = store.remove(&request.network, &request.attachment());
    }
    added
}

/// Adds the objects that containers share.
fn add_shared(
    nft: &Nft,
    firewall: &Firewall,
    result: &CniResult,
    bridge: Option<&str>,
    purpose: Purpose,
) -> Result<(), Error> {
    if purpose == Purpose::Pass {
        ensure_admin_chain(nft, &firewall.admin_chain)
            .context("create the administrator's chain")?;
        for family in families(result) {
            let doing = "let marked packets pass the chain FORWARD of iptables";
            forward::ensure(nft, family, firewall.mark_bit).context(doing)?;
        }
    }
    let Some(bridge) = bridge else { return Ok(()) };
    let mut batch = Batch::new();
    let key = ifname_key(bridge);
    batch.add_elements(TABLE, BRIDGES.name, &[Element { key: &key, data: None, userdata: None }]);
    nft.commit(&batch).context("record the bridge")?;
    if firewall.ingress == Ingress::Isolated {
        let host = Netlink::open().context("open a netlink socket")?;
        for port in ports(&host, result, bridge)? {
            let isolated = PortOptions { isolated: Some(true), ..PortOptions::default() };
            let set = host.apply([link::set_port(port.name, &isolated)]);
            set.context("isolate the port of the bridge")?;
        }
    }
    Ok(())
}

/// CHECK. Records are not checked: the Go plugin makes none.
pub(super) fn check(
    request: &Request,
    firewall: &Firewall,
    result: &CniResult,
    purpose: Purpose,
) -> Result<(), Error> {
    let bridge = bridge(firewall, result)?;
    let (mut entries, chains) = plan(firewall, result, bridge, purpose);
    entries.retain(|entry| !elements::is_record(entry));
    if entries.is_empty() {
        return Ok(());
    }
    let store = ElementStore::open(&FEATURE).context(DOING)?;
    if let Err(error) = store.check(&Owner::of(request), &entries, &chains) {
        return if is_by_go(store.nft(), result, bridge, purpose).context(DOING)? {
            Ok(())
        } else {
            Err(error.into_error("firewall"))
        };
    }
    check_shared(store.nft(), firewall, result, bridge, purpose)
}

fn check_shared(
    nft: &Nft,
    firewall: &Firewall,
    result: &CniResult,
    bridge: Option<&str>,
    purpose: Purpose,
) -> Result<(), Error> {
    if purpose == Purpose::Pass {
        let chain = &firewall.admin_chain;
        if !has_admin_chain(nft, chain).context(DOING)? {
            let msg = format!("chain {ADMIN:?} of table \"podwire\" does not jump to {chain:?}");
            return Err(Error::internal(msg));
        }
        for family in families(result) {
            if !forward::exists(nft, family, firewall.mark_bit).context(DOING)? {
                let program = if family == Family::V4 { "iptables" } else { "ip6tables" };
                let msg = format!("the chain FORWARD of {program} has no rule for marked packets");
                return Err(Error::internal(msg));
            }
        }
    }
    let Some(bridge) = bridge else { return Ok(()) };
    if nft.element(TABLE, BRIDGES.name, &ifname_key(bridge)).context(DOING)?.is_none() {
        return Err(Error::internal(format!("set {:?} has no {bridge:?}", BRIDGES.name)));
    }
    if firewall.ingress == Ingress::Isolated {
        let host = Netlink::open().context("open a netlink socket")?;
        let is_open = |port: &Link| port.port.as_ref().and_then(|port| port.isolated) != Some(true);
        if let Some(port) = ports(&host, result, bridge)?.into_iter().find(is_open) {
            let msg = format!("port {} of bridge {bridge} is not isolated", port.name);
            return Err(Error::internal(msg));
        }
    }
    Ok(())
}

/// Removes the bridge from the set if the container is alone on it. This is the case with ptp,
/// where the "bridge" is the container's host end. Other bridges are left to GC, which can see
/// whether they have containers.
pub(super) fn remove_own_bridge(
    store: &ElementStore,
    request: &Request,
    removed: &[IndexEntry],
) -> kernel::Result<()> {
    let is_on_bridge = |entry: &IndexEntry| ON_BRIDGES.iter().any(|map| map.number == entry.map);
    let Some(entry) = removed.iter().find(|entry| is_on_bridge(entry)) else { return Ok(()) };
    let attachment = request.attachment();
    let mut own = names::host_ifnames(&request.network, &attachment);
    let Some(name) = own.find(|name| entry.key.ends_with(&ifname_key(name.as_str()))) else {
        return Ok(());
    };
    let mut batch = Batch::new();
    let key = ifname_key(name.as_str());
    let element = Element { key: &key, data: None, userdata: None };
    batch.remove_elements(TABLE, BRIDGES.name, &[element]);
    match store.nft().commit(&batch) {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

/// Removes bridges without containers from the set.
pub(super) fn remove_unused_bridges(store: &ElementStore) -> kernel::Result<()> {
    nftables::remove_unused(store.nft(), || {
        let mut unused = store.nft().elements(TABLE, BRIDGES.name)?;
        for map in ON_BRIDGES {
            for found in store.nft().elements(TABLE, map.name)? {
                unused.retain(|bridge| !found.key.ends_with(&bridge.key));
            }
        }
        let element = |bridge| Element { key: bridge, data: None, userdata: None };
        let unused: Vec<Element<'_>> = unused.iter().map(|one| element(&one.key)).collect();
        let mut batch = Batch::new();
        batch.remove_elements(TABLE, BRIDGES.name, &unused);
        Ok(batch)
    })
}

fn plan(
    firewall: &Firewall,
    result: &CniResult,
    bridge: Option<&str>,
    purpose: Purpose,
) -> (Vec<Entry>, Vec<DesiredChain>) {
    let mut entries = Vec::new();
    for address in addresses(result) {
        entries.push(match purpose {
            Purpose::Pass => elements::pass(firewall, address),
            Purpose::RecordZone | Purpose::RecordRules => elements::recorded(address),
        });
        let policy = |bridge| elements::ingress(firewall.ingress, bridge, address);
        entries.extend(bridge.map(policy).into_iter().flatten());
    }
    let is_passing = purpose == Purpose::Pass;
    (entries, is_passing.then(|| elements::mark_chain(firewall)).into_iter().collect())
}

/// The addresses of the result without duplicates.
pub(super) fn addresses(result: &CniResult) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

fn families(result: &CniResult) -> impl Iterator<Item = Family> {
    let has = |family: Family| addresses(result).into_iter().any(|one| Family::of(one) == family);
    [Family::V4, Family::V6].into_iter().filter(move |family| has(*family))
}

/// The interface that the ingress policy applies to: the first one of the result, as in the Go
/// plugin.
pub(super) fn bridge<'a>(
    firewall: &Firewall,
    result: &'a CniResult,
) -> Result<Option<&'a str>, Error> {
    if firewall.ingress == Ingress::Open {
        return Ok(None);
    }
    let first = result.interfaces.first().map(|interface| interface.name.as_str());
    let first = first.filter(|name| name.parse::<IfName>().is_ok()).ok_or_else(|| {
        let policy = firewall.ingress.as_str();
        let msg = format!(
            "interface needs to be set for ingress policy {policy:?}, make sure to chain \
             \"firewall\" plugin with \"bridge\""
        );
        Error::invalid_config(msg)
            .with_details("key \"ingressPolicy\" needs an interface in prevResult")
    })?;
    Ok(Some(first))
}

/// The interfaces of the result that are ports of the bridge.
fn ports(host: &Netlink, result: &CniResult, bridge: &str) -> Result<Vec<Link>, Error> {
    let find = |name: &str| {
        let Ok(name) = name.parse::<IfName>() else { return Ok(None) };
        link::by_name(host, name).context("look for the container's port")
    };
    let Some(bridge) = find(bridge)? else { return Ok(Vec::new()) };
    let on_host = result.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    let mut found = Vec::new();
    for interface in on_host {
        found.extend(find(&interface.name)?.filter(|link| link.master == Some(bridge.index)));
    }
    Ok(found)
}

/// Creates an empty chain for the administrator and a jump to it. An existing chain keeps its
/// rules.
fn ensure_admin_chain(nft: &Nft, name: &str) -> kernel::Result<()> {
    if has_admin_chain(nft, name)? {
        return Ok(());
    }
    let _lock = nftables::lock()?;
    if has_admin_chain(nft, name)? {
        return Ok(());
    }
    let mut batch = Batch::new();
    let comment = "rules of the administrator, before those of containers";
    batch.add_chain(&Chain { table: TABLE, name, base: None, comment });
    let exprs = vec![Expr::Verdict(Verdict::Jump(name.to_owned()))];
    let place = Place::Last;
    batch.add_rule(&Rule { table: TABLE, chain: ADMIN, place, exprs, comment: "" });
    nft.commit(&batch)
}

fn has_admin_chain(nft: &Nft, name: &str) -> kernel::Result<bool> {
    Ok(nft.rules(TABLE, ADMIN)?.iter().any(|rule| rule.target.as_deref() == Some(name)))
}

/// Whether the Go plugin's rules do the same, because it made the attachment.
fn is_by_go(
    nft: &Nft,
    result: &CniResult,
    bridge: Option<&str>,
    purpose: Purpose,
) -> kernel::Result<bool> {
    for address in addresses(result) {
        let is_isolated = |bridge| go_nft::has_isolation(nft, address, bridge);
        if !bridge.map_or(Ok(true), is_isolated)?
            || (purpose == Purpose::Pass && !go_nft::has_firewall(nft, address)?)
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether an attachment has a record for this address.
pub(super) fn is_recorded(nft: &Nft, address: IpAddr) -> bool {
    let entry = elements::recorded(address);
    matches!(nft.element(TABLE, entry.map.name, &entry.key), Ok(Some(_)))
}
