// SPDX-License-Identifier: Apache-2.0
//! `portmap`: ports of the host that lead to ports of a container. Each is an element of a map in
//! nf_tables, see `tables`; whose it is stands on the element, so that DEL needs nothing but the
//! attachment's name, and never takes away what somebody else has by now.

mod conditions;
mod conf;
mod plan;
mod tables;

use std::net::IpAddr;

use cni::{CniResult, Code, Error, Plugin, Request, Version};
use kernel::{IfName, Netlink, conntrack, link, route, sysctl};

use self::conf::{Backend, HostPort, Portmap};
use self::plan::{Plan, Pod, addresses, host_port, lasting};
use self::tables::{CONDITIONS, FEATURE};
use crate::fault::OrFault;
use crate::rules::{Conflict, Fault, Ledger, Located, Owner};

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    name: "portmap",
    about: "maps ports of the host to ports of a container",
    versions: Version::ALL,
    add,
    del,
    check,
    status,
    gc,
};

fn add(request: &Request) -> Result<CniResult, Error> {
    let portmap = Portmap::understand(request)?;
    let result = request
        .prev_result()?
        .ok_or_else(|| Error::invalid_config("portmap must be called as chained plugin"))?;
    if !portmap.mappings.is_empty() {
        match portmap.backend {
            Backend::Nftables => map(&portmap, request, &result)?,
        }
    }
    Ok(result)
}

fn map(portmap: &Portmap, request: &Request, result: &CniResult) -> Result<(), Error> {
    let pods = pods(portmap, result, &request.ifname)?;
    let plan = Plan::new(portmap, &request.network, &pods);
    if plan.entries.is_empty() {
        return Ok(());
    }
    let mut ledger = open()?;
    let added = ledger.add(&Owner::of(request), &plan.entries, &plan.chains).map_err(taken);
    let added = added.and_then(|()| {
        let let_in = let_localhost_in(portmap, &pods);
        if let_in.is_err() {
            // The error that made this necessary is the one to tell.
            let _ = ledger.remove(&request.network, &request.attachment());
        }
        let_in
    });
    ledger.close();
    added?;
    let places =
        plan.entries.iter().map(|entry| Located { map: entry.map.number, key: entry.key.clone() });
    // Without connection tracking by netlink the ports work, but for a client that has been sending all
    // the time.
    let _ = forget(places);
    Ok(())
}

/// The container's addresses, and how the host reaches them.
fn pods(portmap: &Portmap, result: &CniResult, interface: &str) -> Result<Vec<Pod>, Error> {
    let addresses = addresses(result, interface);
    if !portmap.snat || addresses.is_empty() {
        let pod = |address| Pod { address, reached_by: None };
        return Ok(addresses.into_iter().map(pod).collect());
    }
    let host = Netlink::open().or_fault("look at the host's routes")?;
    let pod = |address| Ok(Pod { address, reached_by: interface_to(&host, address)? });
    addresses.into_iter().map(pod).collect()
}

/// The interface that the host reaches an address by; a look at the route to it costs the same however
/// many routes there are.
fn interface_to(host: &Netlink, address: IpAddr) -> Result<Option<IfName>, Error> {
    let route = route::lookup(host, address).or_fault("look for the way to the container")?;
    let Some(index) = route.and_then(|route| route.oif) else { return Ok(None) };
    let found = link::by_index(host, index).or_fault("look for the way to the container")?;
    Ok(found.map(|link| link.name))
}

/// Packets from 127.0.0.1 may cross the interface to the container, and their answers come back.
fn let_localhost_in(portmap: &Portmap, pods: &[Pod]) -> Result<(), Error> {
    for switch in localhost_switches(portmap, pods) {
        sysctl::ensure(&switch, "1").or_fault("let connections from localhost in")?;
    }
    Ok(())
}

fn localhost_switches(portmap: &Portmap, pods: &[Pod]) -> Vec<String> {
    let v4 = pods.iter().filter(|pod| portmap.snat && pod.address.is_ipv4());
    let names = v4.filter_map(|pod| pod.reached_by);
    names.map(|name| format!("net/ipv4/conf/{name}/route_localnet")).collect()
}

/// Ends what connection tracking remembers of these elements' ports, so that the next packet finds its
/// way anew.
fn forget(places: impl Iterator<Item = Located>) -> Result<(), Error> {
    let sent_to = lasting(places.filter_map(|place| host_port(&place)));
    if sent_to.is_empty() {
        return Ok(());
    }
    conntrack::forget(&sent_to).map(drop).or_fault("forget connections to mapped ports")
}

fn del(request: &Request) -> Result<(), Error> {
    let mut ledger = open()?;
    let removed = ledger.remove(&request.network, &request.attachment());
    ledger.close();
    forget(removed.or_fault("remove mapped ports")?.into_iter())
}

fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let mut ledger = open()?;
    let network = &request.network;
    let removed = ledger.gc(network, &valid);
    let swept = ledger.remove_unused_entered(CONDITIONS, &plan::chain_prefix(network));
    ledger.close();
    forget(removed.or_fault("remove stale mapped ports")?.into_iter())?;
    swept.or_fault("remove conditions of mapped ports")
}

fn check(request: &Request) -> Result<(), Error> {
    let portmap = Portmap::understand(request)?;
    let result = request.required_prev_result()?;
    if portmap.mappings.is_empty() {
        return Ok(());
    }
    let pods = pods(&portmap, &result, &request.ifname)?;
    let plan = Plan::new(&portmap, &request.network, &pods);
    if plan.entries.is_empty() {
        return Ok(());
    }
    let ledger = open()?;
    let found = ledger.check(&Owner::of(request), &plan.entries).and_then(|()| {
        let entered = |chain: &crate::rules::WantedChain| {
            ledger.check_entered(CONDITIONS, &chain.name, chain.entrances.len())
        };
        plan.chains.iter().try_for_each(entered)
    });
    found.map_err(|fault| fault.into_error("mapped ports"))?;
    for switch in localhost_switches(&portmap, &pods) {
        if sysctl::read(&switch).or_fault("mapped ports")? != "1" {
            return Err(Error::internal(format!("mapped ports: {switch} is not 1")));
        }
    }
    Ok(())
}

/// Whether the kernel could do it.
fn status(request: &Request) -> Result<(), Error> {
    Portmap::understand(request)?;
    let ready = Ledger::open(&FEATURE).and_then(|ledger| ledger.rehearse());
    let doing = "nf_tables cannot map ports";
    ready.map_err(|cause| Error::because(Code::NOT_AVAILABLE, doing, &cause))
}

fn open() -> Result<Ledger, Error> {
    Ledger::open(&FEATURE).or_fault("map ports")
}

/// Another container may end, so that a later try finds the port free.
fn taken(fault: Fault) -> Error {
    match fault {
        Fault::Taken(Conflict { entry, holder }) => {
            let place = Located { map: entry.map.number, key: entry.key };
            let port = host_port(&place).as_ref().map(HostPort::to_string).unwrap_or_default();
            let msg = format!("{port} is mapped to {holder} already");
            Error::new(Code::TRY_LATER, msg).with_details("container/interface network")
        }
        other => other.into_error("map ports"),
    }
}
