// SPDX-License-Identifier: Apache-2.0
//! Into the container and home again. The device's alias keeps its name on the host, as the Go plugin
//! does it; its group tells whose it is. Both stay with it if its namespace goes and the kernel
//! moves it home by itself, so there is no file to keep.

use std::os::fd::AsFd;

use cni::{Error, Request};
use kernel::link::{self, Link, Place};
use kernel::{IfIndex, IfName, Netlink, Netns, netns};

use super::select::{Selector, home_name};
use crate::fault::OrFault;
use crate::{identity, pod};

/// Groups below are chosen by people; those above are marks.
const LOWEST_MARK: u32 = 1 << 16;
/// How many names are tried for a device whose own is taken.
const ATTEMPTS: u32 = 16;

/// A device on the host that is to go into a container.
#[derive(Debug)]
pub struct Device {
    /// As it is.
    pub link: Link,
    /// Its name on the host: not the one that it has now, if it came back by itself.
    pub name: IfName,
}

impl Device {
    /// A device as found.
    pub fn new(link: Link, network: &str) -> Device {
        let name = home_name(&link, network).unwrap_or(link.name);
        Device { link, name }
    }

    /// Moves it into the container under the name that the runtime wants.
    pub fn take_in(&self, request: &Request, host: &Netlink, ns: &Netns) -> kernel::Result<()> {
        let mark = identity::mark(&request.network, &request.attachment());
        // A group that somebody has chosen stays.
        let may_mark = self.link.group == 0 || self.link.group >= LOWEST_MARK;
        let place = Place {
            netns: Some(ns.as_fd()),
            name: request.ifname.parse().ok(),
            alias: Some(self.name.as_str()),
            group: may_mark.then_some(mark),
        };
        host.apply([link::put(self.link.index, &place)])
    }

    /// Takes back a move that failed or that something failed after; tells its index on the host.
    pub fn take_back(&self, request: &Request, host: &Netlink, ns: &Netns) -> Option<IfIndex> {
        let is_here = |link: &Link| link.name == self.link.name && link.mac == self.link.mac;
        let name = match link::by_index(host, self.link.index).ok()? {
            Some(link) if is_here(&link) => link.name,
            _ => {
                let inside = ns.netlink().ok()?;
                let there = self.find_inside(request, &inside)?;
                give_back(&inside, &there, self.name).ok()?
            }
        };
        let home = link::by_name(host, name).ok()??;
        host.apply([link::put(home.index, &own(self))]).ok()?;
        Some(home.index)
    }

    fn find_inside(&self, request: &Request, inside: &Netlink) -> Option<Link> {
        let is_moved =
            |link: &Link| link.mac == self.link.mac && alias_name(link) == Some(self.name);
        let moved = link::by_name(inside, pod::ifname(request).ok()?).ok()?.filter(is_moved);
        // A move under a name that was taken meanwhile leaves it there under its old one.
        let is_half = |link: &Link| link.mac == self.link.mac && link.alias == self.link.alias;
        moved.or_else(|| link::by_name(inside, self.link.name).ok()?.filter(is_half))
    }
}

/// Names and marks that a device had before.
fn own(device: &Device) -> Place<'_> {
    Place {
        netns: None,
        name: Some(device.link.name),
        alias: Some(device.link.alias.as_deref().unwrap_or_default()),
        group: Some(device.link.group),
    }
}

/// Whether an interface in the container is a device that this attachment brought there. Those that the
/// Go plugin moved have an alias and no mark.
pub fn is_brought(link: &Link, request: &Request) -> bool {
    if link.group == identity::mark(&request.network, &request.attachment()) {
        return true;
    }
    link.group < LOWEST_MARK && alias_name(link).is_some()
}

/// The name in an alias.
pub fn alias_name(link: &Link) -> Option<IfName> {
    link.alias.as_deref()?.parse().ok()
}

/// Gives a device back to the namespace that we are in, down, under this name or, if that is taken, under
/// another, which is told; then alias and mark stay with it, so that it gets its name when that is free.
///
/// It is renamed before it moves, so that the host's device managers see it come under its final name.
pub fn give_back(inside: &Netlink, link: &Link, name: IfName) -> kernel::Result<IfName> {
    let home = Netns::current()?;
    let netns = Some(home.as_fd());
    let group = (link.group >= LOWEST_MARK).then_some(0);
    let place = Place { netns, name: Some(name), alias: Some(""), group };
    let requests = [
        link::set_down(link.index),
        link::set_name(link.index, name),
        link::put(link.index, &place),
    ];
    let refused = match inside.apply_each(requests).pop() {
        Some(Err(error)) => error,
        _ => return Ok(name),
    };
    if !refused.is_exists() {
        // So that the next DEL finds it.
        inside.apply_each([link::set_name(link.index, link.name)]);
        return Err(refused);
    }
    if link::by_index(inside, link.index)?.is_none() {
        // Moved, and then not renamed.
        return Ok(link.name);
    }
    for attempt in 0..ATTEMPTS {
        let Ok(other) = format!("dev{}", link.index.0 + attempt).parse() else { break };
        let place = Place { netns, name: Some(other), ..Place::default() };
        let requests = [link::set_name(link.index, other), link::put(link.index, &place)];
        if let Some(Ok(())) = inside.apply_each(requests).pop() {
            return Ok(other);
        }
    }
    inside.apply_each([link::set_name(link.index, link.name)]);
    Err(refused)
}

/// Gives their names back to devices that the kernel moved home by itself when their namespaces went,
/// and to those that came home while their name was taken. One whose name is still taken keeps all.
pub fn rename_those_at_home(host: &Netlink, network: &str) -> Result<(), Error> {
    let links = link::list(host).or_fault("list the host's interfaces")?;
    let rename = |link: &Link| {
        let name = Some(home_name(link, network)?);
        let place = Place { netns: None, name, alias: Some(""), group: Some(0) };
        Some(link::put(link.index, &place))
    };
    let results = host.apply_each(links.iter().filter(|link| !link.is_up()).filter_map(rename));
    let failed = results.into_iter().filter_map(Result::err);
    let failed = failed.into_iter().find(|error| !error.is_exists() && !error.is_not_found());
    failed.map_or(Ok(()), Err).or_fault("give a device its name back")
}

/// Whether the device is in a container of this network. The kernel numbers the namespaces that a device
/// was moved to, and tells of the links in each.
pub fn is_in_a_container(
    host: &Netlink,
    network: &str,
    selector: &Selector,
) -> Result<bool, Error> {
    let doing = "look for the device in the containers";
    for id in netns::peers(host).or_fault(doing)? {
        let links = link::list_in(host, id).or_fault(doing)?;
        if links.iter().any(|link| is_at_work(link, network, selector)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_at_work(link: &Link, network: &str, selector: &Selector) -> bool {
    let is_brought = identity::is_marked(network, link.group) || link.group < LOWEST_MARK;
    is_brought
        && match selector {
            Selector::Name(name) => alias_name(link) == Some(*name),
            Selector::Mac(mac) => link.mac == Some(*mac) && alias_name(link).is_some(),
            Selector::Device(_) => false,
        }
}
