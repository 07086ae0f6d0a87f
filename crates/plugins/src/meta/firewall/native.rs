// SPDX-License-Identifier: Apache-2.0
//! By nf_tables: elements of the container, the chain of the administrator's, the rule in iptables'
//! chain, and the port of the bridge.

use std::net::IpAddr;

use cni::{CniResult, Error, Request};
use kernel::link::{self, Link, PortOptions};
use kernel::nft::{Batch, Chain, Element, Expr, Nft, Place, Rule, Verdict};
use kernel::{Family, IfName, Netlink};

use super::conf::{Firewall, Ingress};
use super::elements::{self, ADMIN, BRIDGES, FEATURE, ON_BRIDGES};
use super::forward;
use crate::fault::OrFault;
use crate::rules::match_expr::ifname_key;
use crate::rules::{self, Entry, Ledger, Located, Owner, TABLE, WantedChain};
use crate::{go_rules, identity};

const DOING: &str = "let the container's packets pass";

/// What the container's elements are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// They let its packets pass.
    Pass,
    /// They remember that firewalld does; who may reach it is for us to see to.
    RememberZone,
    /// They remember that iptables sees to everything.
    RememberRules,
}

/// Adds the container's elements and what they need.
pub fn add(
    request: &Request,
    firewall: &Firewall,
    result: &CniResult,
    purpose: Purpose,
) -> Result<(), Error> {
    let bridge = bridge(firewall, result)?.filter(|_| purpose != Purpose::RememberRules);
    let (entries, chains) = plan(firewall, result, bridge, purpose);
    if entries.is_empty() {
        return Ok(());
    }
    let mut ledger = Ledger::open(&FEATURE).or_fault(DOING)?;
    let added = ledger.add(&Owner::of(request), &entries, &chains);
    let added = added.map_err(|fault| fault.into_error(DOING));
    let rest = added.and_then(|()| finish(ledger.nft(), firewall, result, bridge, purpose));
    if rest.is_err() {
        // The failure is the one to tell.
        let _ = ledger.remove(&request.network, &request.attachment());
    }
    rest
}

/// What is not the container's own.
fn finish(
    nft: &Nft,
    firewall: &Firewall,
    result: &CniResult,
    bridge: Option<&str>,
    purpose: Purpose,
) -> Result<(), Error> {
    if purpose == Purpose::Pass {
        ensure_admin_chain(nft, &firewall.admin_chain)
            .or_fault("make the administrator's chain")?;
        for family in families(result) {
            let doing = "let marked packets pass the chain FORWARD of iptables";
            forward::ensure(nft, family, firewall.mark_bit).or_fault(doing)?;
        }
    }
    let Some(bridge) = bridge else { return Ok(()) };
    let mut batch = Batch::new();
    let key = ifname_key(bridge);
    batch.add_elements(TABLE, BRIDGES.name, &[Element { key: &key, data: None, userdata: None }]);
    nft.commit(&batch).or_fault("remember the bridge")?;
    if firewall.ingress == Ingress::Isolated {
        let host = Netlink::open().or_fault("open a netlink socket")?;
        for port in ports(&host, result, bridge)? {
            let isolated = PortOptions { isolated: Some(true), ..PortOptions::default() };
            let set = host.apply([link::set_port(port.name, &isolated)]);
            set.or_fault("isolate the port of the bridge")?;
        }
    }
    Ok(())
}

/// Whether all of it is there that packets meet. What the Go plugin made is not remembered.
pub fn check(
    request: &Request,
    firewall: &Firewall,
    result: &CniResult,
    purpose: Purpose,
) -> Result<(), Error> {
    let bridge = bridge(firewall, result)?;
    let (mut entries, chains) = plan(firewall, result, bridge, purpose);
    entries.retain(|entry| !elements::is_told(entry));
    if entries.is_empty() {
        return Ok(());
    }
    let ledger = Ledger::open(&FEATURE).or_fault(DOING)?;
    if let Err(fault) = ledger.check(&Owner::of(request), &entries, &chains) {
        return if is_by_go(ledger.nft(), result, bridge, purpose).or_fault(DOING)? {
            Ok(())
        } else {
            Err(fault.into_error("firewall"))
        };
    }
    check_shared(ledger.nft(), firewall, result, bridge, purpose)
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
        if !has_admin_chain(nft, chain).or_fault(DOING)? {
            let msg = format!("chain {ADMIN:?} of table \"podwire\" does not jump to {chain:?}");
            return Err(Error::internal(msg));
        }
        for family in families(result) {
            if !forward::is_there(nft, family, firewall.mark_bit).or_fault(DOING)? {
                let program = if family == Family::V4 { "iptables" } else { "ip6tables" };
                let msg = format!("the chain FORWARD of {program} has no rule for marked packets");
                return Err(Error::internal(msg));
            }
        }
    }
    let Some(bridge) = bridge else { return Ok(()) };
    if nft.element(TABLE, BRIDGES.name, &ifname_key(bridge)).or_fault(DOING)?.is_none() {
        return Err(Error::internal(format!("set {:?} has no {bridge:?}", BRIDGES.name)));
    }
    if firewall.ingress == Ingress::Isolated {
        let host = Netlink::open().or_fault("open a netlink socket")?;
        let is_open = |port: &Link| port.port.as_ref().and_then(|port| port.isolated) != Some(true);
        if let Some(port) = ports(&host, result, bridge)?.into_iter().find(is_open) {
            let msg = format!("port {} of bridge {bridge} is not isolated", port.name);
            return Err(Error::internal(msg));
        }
    }
    Ok(())
}

/// Forgets the bridge of a container that is alone on it, as with ptp, where it is the container's own end
/// on the host. Others are left to GC, which can see that nobody is on them.
pub fn forget_own_bridge(
    ledger: &Ledger,
    request: &Request,
    removed: &[Located],
) -> kernel::Result<()> {
    let is_on_bridge = |place: &Located| ON_BRIDGES.iter().any(|map| map.number == place.map);
    let Some(place) = removed.iter().find(|place| is_on_bridge(place)) else { return Ok(()) };
    let attachment = request.attachment();
    let mut own = identity::host_ifnames(&request.network, &attachment);
    let Some(name) = own.find(|name| place.key.ends_with(&ifname_key(name.as_str()))) else {
        return Ok(());
    };
    let mut batch = Batch::new();
    let key = ifname_key(name.as_str());
    let element = Element { key: &key, data: None, userdata: None };
    batch.remove_elements(TABLE, BRIDGES.name, &[element]);
    match ledger.nft().commit(&batch) {
        Err(error) if error.is_not_found() => Ok(()),
        done => done,
    }
}

/// Forgets bridges whose containers are all gone.
pub fn forget_unused_bridges(ledger: &Ledger) -> kernel::Result<()> {
    ledger.remove_unused(|| {
        let mut unused = ledger.nft().elements(TABLE, BRIDGES.name)?;
        for map in ON_BRIDGES {
            for found in ledger.nft().elements(TABLE, map.name)? {
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
) -> (Vec<Entry>, Vec<WantedChain>) {
    let mut entries = Vec::new();
    for address in addresses(result) {
        entries.push(match purpose {
            Purpose::Pass => elements::pass(firewall, address),
            Purpose::RememberZone | Purpose::RememberRules => elements::told(address),
        });
        let policy = |bridge| elements::ingress(firewall.ingress, bridge, address);
        entries.extend(bridge.map(policy).into_iter().flatten());
    }
    let is_passing = purpose == Purpose::Pass;
    (entries, is_passing.then(|| elements::mark_chain(firewall)).into_iter().collect())
}

/// The result's addresses, each once.
pub fn addresses(result: &CniResult) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

fn families(result: &CniResult) -> impl Iterator<Item = Family> {
    let has = |family: Family| addresses(result).into_iter().any(|one| Family::of(one) == family);
    [Family::V4, Family::V6].into_iter().filter(move |family| has(*family))
}

/// The interface that an ingress policy is about: the result's first, as with the Go plugin.
pub fn bridge<'a>(firewall: &Firewall, result: &'a CniResult) -> Result<Option<&'a str>, Error> {
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

/// The result's interfaces that are ports of the bridge.
fn ports(host: &Netlink, result: &CniResult, bridge: &str) -> Result<Vec<Link>, Error> {
    let look = |name: &str| {
        let Ok(name) = name.parse::<IfName>() else { return Ok(None) };
        link::by_name(host, name).or_fault("look for the container's port")
    };
    let Some(bridge) = look(bridge)? else { return Ok(Vec::new()) };
    let on_host = result.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    let mut found = Vec::new();
    for interface in on_host {
        found.extend(look(&interface.name)?.filter(|link| link.master == Some(bridge.index)));
    }
    Ok(found)
}

/// An empty chain for the administrator, and a jump to it; one that is there keeps its rules.
fn ensure_admin_chain(nft: &Nft, name: &str) -> kernel::Result<()> {
    if has_admin_chain(nft, name)? {
        return Ok(());
    }
    let _lock = rules::lock()?;
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

/// Whether the Go plugin has seen to it, where it made the attachment.
fn is_by_go(
    nft: &Nft,
    result: &CniResult,
    bridge: Option<&str>,
    purpose: Purpose,
) -> kernel::Result<bool> {
    for address in addresses(result) {
        let is_isolated = |bridge| go_rules::has_isolation(nft, address, bridge);
        if !bridge.map_or(Ok(true), is_isolated)?
            || (purpose == Purpose::Pass && !go_rules::has_firewall(nft, address)?)
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether an address has an owner among those that others were told of.
pub fn is_remembered(nft: &Nft, address: IpAddr) -> bool {
    let entry = elements::told(address);
    matches!(nft.element(TABLE, entry.map.name, &entry.key), Ok(Some(_)))
}
