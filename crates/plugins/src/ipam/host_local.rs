// SPDX-License-Identifier: Apache-2.0
//! `host-local`: assigns addresses from ranges and records them in files on this node.

mod conf;
mod resolv_conf;
pub(crate) mod store;

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::IpAddr;

use cni::{CniResult, Code, Dns, Error, IpConfig, Plugin, Request, Version};
use ipnet::IpNet;

use self::conf::{HostLocal, data_dir_of};
use self::store::{Store, allocate};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "host-local",
    about: "assigns addresses from ranges and records them on this node",
    versions: Version::ALL,
    add,
    del,
    check,
    status,
    gc,
};

fn add(request: &Request) -> Result<CniResult, Error> {
    let conf = HostLocal::parse(request)?;
    let dns = read_dns(&conf)?;
    let mut store = Store::open(&conf.data_dir, &request.network).map_err(to_cni)?;
    let (id, ifname) = (&request.container_id, &request.ifname);
    let allocated = allocate(&mut store, &conf.sets, &conf.requested, id, ifname);
    let allocated = allocated.map_err(|cause| match cause {
        store::Error::NotInAnySet { .. } => {
            let sets: Vec<String> = conf.sets.iter().map(ToString::to_string).collect();
            let hint = format!("one address is assigned from each of: {}", sets.join("; "));
            to_cni(cause).with_details(hint)
        }
        _ => to_cni(cause),
    })?;
    let ips = allocated.into_iter().map(|(address, range)| {
        let prefix = IpNet::new(address, range.subnet().prefix_len());
        IpConfig::new(prefix.unwrap_or_else(|_| address.into()), range.gateway())
    });
    Ok(CniResult { ips: ips.collect(), routes: conf.routes, dns, ..CniResult::default() })
}

fn read_dns(conf: &HostLocal) -> Result<Dns, Error> {
    let Some(file) = &conf.resolv_conf else { return Ok(Dns::default()) };
    let text = fsutil::read_following(file).map_err(|cause| {
        let doing = format!("key \"ipam.resolvConf\": read {}", file.display());
        Error::because(Code::INVALID_CONFIG, doing, &cause)
    })?;
    Ok(resolv_conf::parse(&String::from_utf8_lossy(&text)))
}

/// Needs no valid ranges: they may have changed since ADD.
fn del(request: &Request) -> Result<(), Error> {
    let store = Store::open_existing(&data_dir_of(request)?, &request.network).map_err(to_cni)?;
    let Some(mut store) = store else { return Ok(()) };
    // A result that cannot be read is ignored: the index knows the addresses.
    let result = request.prev_result().ok().flatten().unwrap_or_default();
    let candidates: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
    store.release(&request.container_id, &request.ifname, &candidates).map_err(to_cni)?;
    Ok(())
}

/// The attachment must have an address, and all addresses of the result that are in the ranges.
fn check(request: &Request) -> Result<(), Error> {
    let conf = HostLocal::parse(request)?;
    let id = &request.container_id;
    let store = Store::open_existing(&conf.data_dir, &request.network).map_err(to_cni)?;
    let held = match store {
        Some(mut store) => {
            let mut held = store.addresses_of(id, &request.ifname).map_err(to_cni)?;
            if held.is_empty() {
                // The index does not notice a file that another program rewrote in place.
                store.rescan();
                held = store.addresses_of(id, &request.ifname).map_err(to_cni)?;
            }
            held
        }
        None => Vec::new(),
    };
    if held.is_empty() {
        let msg = format!("host-local: Failed to find address added by container {id}");
        return Err(Error::internal(msg));
    }
    let result = request.prev_result()?.unwrap_or_default();
    let lost = result.ips.iter().map(|ip| ip.address.addr()).find(|address| {
        conf.sets.iter().any(|set| set.contains(*address)) && !held.contains(address)
    });
    lost.map_or(Ok(()), |address| {
        let msg = format!("host-local: address {address} is no longer reserved for container {id}");
        Err(Error::internal(msg))
    })
}

fn status(request: &Request) -> Result<(), Error> {
    let conf = HostLocal::parse(request)?;
    read_dns(&conf).map_err(|error| Error { code: Code::NOT_AVAILABLE, ..error })?;
    let unusable = |cause| Error { code: Code::NOT_AVAILABLE, ..to_cni(cause) };
    store::require_writable(&conf.data_dir, &request.network).map_err(unusable)?;
    let store = Store::open_existing(&conf.data_dir, &request.network).map_err(unusable)?;
    let Some(store) = store else { return Ok(()) };
    for set in &conf.sets {
        if store.is_exhausted(set).map_err(unusable)? {
            let msg = format!("no IP addresses available in range set: {set}");
            let hint =
                "containers that are gone hold their addresses until DEL or GC releases them";
            return Err(Error::new(Code::NOT_AVAILABLE, msg).with_details(hint));
        }
    }
    Ok(())
}

fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let store = Store::open_existing(&data_dir_of(request)?, &request.network).map_err(to_cni)?;
    let Some(mut store) = store else { return Ok(()) };
    let valid: HashSet<(&str, &str)> =
        valid.iter().map(|one| (one.container_id.as_str(), one.ifname.as_str())).collect();
    // A file without an interface was created by hand to reserve an address, or by a very old
    // version of the Go plugin. GC keeps it.
    let is_valid =
        |id: &str, ifname: Option<&str>| ifname.is_none_or(|ifname| valid.contains(&(id, ifname)));
    store.retain(is_valid).map_err(to_cni)?;
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn to_cni(cause: store::Error) -> Error {
    let code = match &cause {
        store::Error::Exhausted { .. } => Code::TRY_LATER,
        store::Error::Io { cause, .. } if cause.kind() == ErrorKind::TimedOut => Code::TRY_LATER,
        store::Error::Io { .. } | store::Error::Release { .. } => Code::IO,
        _ => Code::INTERNAL,
    };
    match cause.set_index() {
        Some(at) => Error::because(code, format!("failed to allocate for range {at}"), &cause),
        None if matches!(cause, store::Error::NotInAnySet { .. }) => {
            Error::new(code, cause.to_string()).with_details("host-local")
        }
        None => Error::because(code, "host-local", &cause),
    }
}
