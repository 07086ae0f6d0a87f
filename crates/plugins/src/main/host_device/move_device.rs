// SPDX-License-Identifier: Apache-2.0
//! Into the container and home again. The device's alias keeps its name on the host, as the Go plugin
//! does it; its group tells whose it is. Both stay with it if its namespace goes and the kernel
//! moves it home by itself, so there is no file to keep.

use std::os::fd::{AsFd, BorrowedFd};

use cni::{Error, Request};
use kernel::link::{self, Link, Relocation};
use kernel::{IfIndex, IfName, Netlink, Netns};

use super::select::{self, Choice, Selector, home_name};
use crate::attach::{names, netns};
use crate::error::Context;

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
        let mark = names::device_group(&request.network, &request.attachment());
        // A group that somebody has chosen stays.
        let may_mark = self.link.group == 0 || self.link.group >= LOWEST_MARK;
        let place = Relocation {
            netns: Some(ns.as_fd()),
            name: request.ifname.parse().ok(),
            alias: Some(self.name.as_str()),
            group: may_mark.then_some(mark),
        };
        host.apply([link::relocate(self.link.index, &place)])
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
        host.apply([link::relocate(home.index, &own(self))]).ok()?;
        Some(home.index)
    }

    fn find_inside(&self, request: &Request, inside: &Netlink) -> Option<Link> {
        let is_moved =
            |link: &Link| link.mac == self.link.mac && alias_name(link) == Some(self.name);
        let moved = link::by_name(inside, netns::ifname(request).ok()?).ok()?.filter(is_moved);
        // A move under a name that was taken meanwhile leaves it there under its old one.
        let is_half = |link: &Link| link.mac == self.link.mac && link.alias == self.link.alias;
        moved.or_else(|| link::by_name(inside, self.link.name).ok()?.filter(is_half))
    }
}

/// Names and marks that a device had before.
fn own(device: &Device) -> Relocation<'_> {
    Relocation {
        netns: None,
        name: Some(device.link.name),
        alias: Some(device.link.alias.as_deref().unwrap_or_default()),
        group: Some(device.link.group),
    }
}

/// Whether an interface in the container is a device that this attachment brought there. Those that the
/// Go plugin moved have an alias and no mark.
fn is_brought(link: &Link, request: &Request) -> bool {
    is_marked(link, request) || link.group < LOWEST_MARK && alias_name(link).is_some()
}

/// Whether a device bears this attachment's mark, or the one that earlier versions gave. The network may have been
/// renamed since the ADD: then the configuration must name this very device, because a network that failed to
/// get the interface's name is asked to DEL as well.
pub fn is_marked(link: &Link, request: &Request) -> bool {
    let (network, attachment) = (&request.network, request.attachment());
    let own =
        [names::device_group(network, &attachment), names::attachment_group(network, &attachment)];
    if own.contains(&link.group) {
        return true;
    }
    let is_selected = || match select::parse(request) {
        Ok(Choice::Interface(selector)) => selector.may_mean(link, alias_name(link)),
        _ => false,
    };
    names::is_device_group(&attachment, link.group) && is_selected()
}

/// The name in an alias.
pub fn alias_name(link: &Link) -> Option<IfName> {
    link.alias.as_deref()?.parse().ok()
}

/// The device that this attachment brought into the container. One of ours is known under any name: a
/// DEL that was killed may have renamed it already.
pub fn find_brought(inside: &Netlink, request: &Request) -> Result<Option<Link>, Error> {
    let doing = "look for the device in the container";
    let found = link::by_name(inside, netns::ifname(request)?).context(doing)?;
    if let Some(link) = found.filter(|link| is_brought(link, request)) {
        return Ok(Some(link));
    }
    let links = link::list(inside).context(doing)?;
    Ok(links.into_iter().find(|link| link.alias.is_some() && is_marked(link, request)))
}

/// Gives a device back to the namespace that we are in, down, under this name or, if that is taken, under
/// another, which is told; then alias and mark stay with it, so that it gets its name when that is free.
///
/// It is renamed before it moves, so that the host's device managers see it come under its final name.
pub fn give_back(inside: &Netlink, link: &Link, name: IfName) -> kernel::Result<IfName> {
    let home = Netns::current()?;
    let netns = Some(home.as_fd());
    let before = inside.apply_each([link::set_down(link.index), link::set_name(link.index, name)]);
    let is_renamed = before.iter().all(Result::is_ok);
    // The kernel sets the group before the name: with a name that may be refused the mark must stay.
    let group = (is_renamed && link.group >= LOWEST_MARK).then_some(0);
    let place = Relocation { netns, name: Some(name), alias: Some(""), group };
    let Err(refused) = inside.apply([link::relocate(link.index, &place)]) else { return Ok(name) };
    if link::by_index(inside, link.index)?.is_none() {
        // Moved, and then not renamed.
        return Ok(link.name);
    }
    let other = give_back_as_any(inside, link, netns).filter(|_| refused.already_exists());
    other.ok_or_else(|| {
        // So that the next DEL finds it, whoever made it.
        inside.apply_each([link::set_name(link.index, link.name)]);
        refused
    })
}

/// The names that the kernel gives to devices that it moves home.
fn give_back_as_any(
    inside: &Netlink,
    link: &Link,
    netns: Option<BorrowedFd<'_>>,
) -> Option<IfName> {
    let names = (0..ATTEMPTS).map(|n| format!("dev{}", link.index.0.saturating_add(n)));
    names.filter_map(|name| name.parse().ok()).find(|name| {
        let place = Relocation { netns, name: Some(*name), ..Relocation::default() };
        let requests = [link::set_name(link.index, *name), link::relocate(link.index, &place)];
        inside.apply_each(requests).pop().is_some_and(|moved| moved.is_ok())
    })
}

/// Gives their names back to devices that the kernel moved home by itself when their namespaces went,
/// and to those that came home while their name was taken: devices of the network, and others that are meant
/// too. Failures are told of those that `matter`.
pub fn rename_those_at_home(
    host: &Netlink,
    network: &str,
    is_meant: impl Fn(&Link) -> bool,
    matters: impl Fn(&Link) -> bool,
) -> Result<(), Error> {
    let links = link::list(host).context("list the host's interfaces")?;
    let down = links.iter().filter(|link| !link.is_up());
    let name = |link: &Link| {
        home_name(link, network).or_else(|| alias_name(link).filter(|_| is_meant(link)))
    };
    let ours = down.filter_map(|link| Some((link, name(link)?)));
    Error::all(ours.map(|(link, name)| match rename(host, link, name) {
        Err(error) if matters(link) => {
            Err(error).context(&format!("give device {} its name {name} back", link.name))
        }
        _ => Ok(()),
    }))
}

/// One whose name is still taken keeps all.
fn rename(host: &Netlink, link: &Link, name: IfName) -> kernel::Result<()> {
    let place = Relocation { name: Some(name), alias: Some(""), ..Relocation::default() };
    let unmarked = Relocation { group: Some(0), ..Relocation::default() };
    match host.apply([link::relocate(link.index, &place)]) {
        Ok(()) => host.apply([link::relocate(link.index, &unmarked)]),
        Err(error) if error.already_exists() || error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether the device is in a container of this network. The kernel numbers the namespaces that a device
/// was moved to, and tells of the links in each.
pub fn is_in_a_container(
    host: &Netlink,
    network: &str,
    selector: &Selector,
) -> Result<bool, Error> {
    let doing = "look for the device in the containers";
    for id in kernel::netns::ids(host).context(doing)? {
        let links = link::list_in(host, id).context(doing)?;
        if links.iter().any(|link| is_at_work(link, network, selector)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_at_work(link: &Link, network: &str, selector: &Selector) -> bool {
    let is_brought = names::is_attachment_group(network, link.group) || link.group < LOWEST_MARK;
    is_brought
        && match selector {
            Selector::Name(name) => alias_name(link) == Some(*name),
            Selector::Mac(mac) => link.mac == Some(*mac) && alias_name(link).is_some(),
            Selector::Device(_) => false,
        }
}
