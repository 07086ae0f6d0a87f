// SPDX-License-Identifier: Apache-2.0
//! `loopback`: brings the container's `lo` up.

use cni::{CniResult, Error, Interface, IpConfig, Plugin, Request, Version};
use ipnet::IpNet;
use kernel::link::Link;
use kernel::{IfName, Netlink, addr, link};

use crate::attach::{interface, netns};
use crate::error::Context;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "loopback",
    about: "brings the container's loopback interface up",
    versions: Version::ALL,
    add,
    del,
    check,
    status: |_| Ok(()),
    gc: |_| Ok(()),
};

/// The interface is always `lo`; CNI_IFNAME is ignored.
fn lo() -> IfName {
    "lo".parse().expect("lo is a valid name")
}

fn add(request: &Request) -> Result<CniResult, Error> {
    let prev_result = request.prev_result()?;
    let pod = open(request)?;
    let link = interface::find(&pod, lo())?;
    // Checked before the interface is up: the kernel then adds addresses that remain when it is set
    // down.
    let foreign = addresses(&pod, &link)?.into_iter().find(|net| !net.addr().is_loopback());
    if let Some(foreign) = foreign {
        let msg =
            format!("loopback interface found with non-loopback address {:?}", foreign.addr());
        return Err(Error::internal(msg));
    }
    pod.apply([link::set_up(link.index)]).context("bring the loopback interface up")?;
    if let Some(result) = prev_result {
        return Ok(result);
    }
    let addresses = addresses(&pod, &link)?;
    let first = |is_ipv4: bool| addresses.iter().find(move |a| a.addr().is_ipv4() == is_ipv4);
    let ips = [first(true), first(false)].into_iter().flatten().map(|address| {
        let mut ip = IpConfig::new(*address, None);
        ip.interface = Some(0);
        ip
    });
    let interface = Interface {
        name: "lo".to_owned(),
        mac: "00:00:00:00:00:00".to_owned(),
        sandbox: request.netns.clone(),
        ..Interface::default()
    };
    Ok(CniResult { interfaces: vec![interface], ips: ips.collect(), ..CniResult::default() })
}

fn addresses(pod: &Netlink, link: &Link) -> Result<Vec<IpNet>, Error> {
    let found = addr::list(pod, Some(link.index)).context("list the loopback's addresses")?;
    Ok(found.iter().map(|address| address.prefix).collect())
}

fn del(request: &Request) -> Result<(), Error> {
    let Some(ns) = netns::open_if_exists(request) else { return Ok(()) };
    ns.netlink()
        .and_then(|pod| pod.apply([link::set_down(lo())]))
        .context("set the loopback interface down")
}

fn check(request: &Request) -> Result<(), Error> {
    let link = interface::find(&open(request)?, lo())?;
    if link.is_up() { Ok(()) } else { Err(Error::internal("loopback interface is down")) }
}

fn open(request: &Request) -> Result<Netlink, Error> {
    netns::open(request)?.netlink().context("open a socket in the container's namespace")
}
