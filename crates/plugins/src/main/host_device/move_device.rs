// SPDX-License-Identifier: Apache-2.0
//! Moving a device into the container and back. The alias stores the device's name on the host, as
//! in the Go plugin; the link group identifies the attachment. Both stay with the device if the
//! kernel moves it back because its namespace was removed. Therefore no state file is needed.

use std::os::fd::{AsFd, BorrowedFd};

use cni::{Error, Request};
use kernel::link::{self, Link, Relocation};
use kernel::{IfIndex, IfName, Netlink, Netns};

use super::select::{self, Choice, Selector, home_name};
use crate::attach::{names, netns};
use crate::error::Context;

/// Lower groups are chosen by administrators, higher ones are derived from attachments.
const MIN_DEVICE_GROUP: u32 = 1 << 16;
/// Number of names to try if the device's own name is taken.
const MAX_ATTEMPTS: u32 = 16;

/// A device on the host to move into a container.
#[derive(Debug)]
pub(super) struct Device {
    pub link: Link,
    /// The name on the host. It differs from the current name if the kernel moved the device back.
    pub name: IfName,
}

impl Device {
    pub(super) fn new(link: Link, network: &str) -> Device {
        let name = home_name(&link, network).unwrap_or(link.name);
        Device { link, name }
    }

    /// Moves the device into the container, under the name of the request.
    pub(super) fn move_in(
        &self,
        request: &Request,
        host: &Netlink,
        ns: &Netns,
    ) -> kernel::Result<()> {
        let group = names::device_group(&request.network, &request.attachment());
        // A group that an administrator has chosen is kept.
        let may_set_group = self.link.group == 0 || self.link.group >= MIN_DEVICE_GROUP;
        let relocation = Relocation {
            netns: Some(ns.as_fd()),
            name: request.ifname.parse().ok(),
            alias: Some(self.name.as_str()),
            group: may_set_group.then_some(group),
        };
        host.apply([link::relocate(self.link.index, &relocation)])
    }

    /// Moves the device back after a failure, and returns its index on the host.
    pub(super) fn rollback(
        &self,
        request: &Request,
        host: &Netlink,
        ns: &Netns,
    ) -> Option<IfIndex> {
        let is_here = |link: &Link| link.name == self.link.name && link.mac == self.link.mac;
        let name = match link::by_index(host, self.link.index).ok()? {
            Some(link) if is_here(&link) => link.name,
            _ => {
                let inside = ns.netlink().ok()?;
                let moved = self.find_inside(request, &inside)?;
                move_back(&inside, &moved, self.name).ok()?
            }
        };
        let home = link::by_name(host, name).ok()??;
        host.apply([link::relocate(home.index, &original(self))]).ok()?;
        Some(home.index)
    }

    fn find_inside(&self, request: &Request, inside: &Netlink) -> Option<Link> {
        let is_moved =
            |link: &Link| link.mac == self.link.mac && alias_name(link) == Some(self.name);
        let moved = link::by_name(inside, netns::ifname(request).ok()?).ok()?.filter(is_moved);
        // If the new name was taken meanwhile, the kernel has moved the device under its old name.
        let is_not_renamed =
            |link: &Link| link.mac == self.link.mac && link.alias == self.link.alias;
        moved.or_else(|| link::by_name(inside, self.link.name).ok()?.filter(is_not_renamed))
    }
}

/// The name, alias and group that the device had before.
fn original(device: &Device) -> Relocation<'_> {
    Relocation {
        netns: None,
        name: Some(device.link.name),
        alias: Some(device.link.alias.as_deref().unwrap_or_default()),
        group: Some(device.link.group),
    }
}

/// Whether an interface in the container is a device of this attachment. Devices that the Go plugin
/// moved have an alias and no group.
fn is_moved(link: &Link, request: &Request) -> bool {
    is_own(link, request) || link.group < MIN_DEVICE_GROUP && alias_name(link).is_some()
}

/// Whether a device is in this attachment's group, or in the one that earlier versions used. The
/// network may have been renamed since ADD: then the configuration must select this device, because
/// a network whose ADD failed on the interface's name gets a DEL too.
pub(super) fn is_own(link: &Link, request: &Request) -> bool {
    let (network, attachment) = (&request.network, request.attachment());
    let own =
        [names::device_group(network, &attachment), names::attachment_group(network, &attachment)];
    if own.contains(&link.group) {
        return true;
    }
    let is_selected = || match select::parse(request) {
        Ok(Choice::Interface(selector)) => selector.may_match(link, alias_name(link)),
        _ => false,
    };
    names::is_device_group(&attachment, link.group) && is_selected()
}

/// The name that the alias stores.
pub(super) fn alias_name(link: &Link) -> Option<IfName> {
    link.alias.as_deref()?.parse().ok()
}

/// Finds the device of this attachment in the container. A device in the attachment's group is
/// found under any name: a killed DEL may have renamed it.
pub(super) fn find_moved(inside: &Netlink, request: &Request) -> Result<Option<Link>, Error> {
    let doing = "look for the device in the container";
    let found = link::by_name(inside, netns::ifname(request)?).context(doing)?;
    if let Some(link) = found.filter(|link| is_moved(link, request)) {
        return Ok(Some(link));
    }
    let links = link::list(inside).context(doing)?;
    Ok(links.into_iter().find(|link| link.alias.is_some() && is_own(link, request)))
}

/// Moves a device to the current namespace and sets it down. If the name is taken, uses and returns
/// another one; the device then keeps its alias and group, so that it gets its name when that is
/// free.
///
/// The device is renamed before it is moved, so that device managers on the host see it appear
/// under its final name.
pub(super) fn move_back(inside: &Netlink, link: &Link, name: IfName) -> kernel::Result<IfName> {
    let home = Netns::current()?;
    let netns = Some(home.as_fd());
    let before = inside.apply_each([link::set_down(link.index), link::set_name(link.index, name)]);
    let is_renamed = before.iter().all(Result::is_ok);
    // The kernel sets the group before the name: if the name may be refused, the group must stay.
    let group = (is_renamed && link.group >= MIN_DEVICE_GROUP).then_some(0);
    let relocation = Relocation { netns, name: Some(name), alias: Some(""), group };
    let Err(refused) = inside.apply([link::relocate(link.index, &relocation)]) else {
        return Ok(name);
    };
    if link::by_index(inside, link.index)?.is_none() {
        // The kernel moved the device but did not rename it.
        return Ok(link.name);
    }
    let other = move_back_renamed(inside, link, netns).filter(|_| refused.already_exists());
    other.ok_or_else(|| {
        // Restores the name, so that the next DEL finds the device.
        inside.apply_each([link::set_name(link.index, link.name)]);
        refused
    })
}

/// Tries the names that the kernel uses when it moves devices back.
fn move_back_renamed(
    inside: &Netlink,
    link: &Link,
    netns: Option<BorrowedFd<'_>>,
) -> Option<IfName> {
    let names = (0..MAX_ATTEMPTS).map(|n| format!("dev{}", link.index.0.saturating_add(n)));
    names.filter_map(|name| name.parse().ok()).find(|name| {
        let relocation = Relocation { netns, name: Some(*name), ..Relocation::default() };
        let requests = [link::set_name(link.index, *name), link::relocate(link.index, &relocation)];
        inside.apply_each(requests).pop().is_some_and(|moved| moved.is_ok())
    })
}

/// Restores the names of devices that the kernel moved back, and of those whose name was taken when
/// they came back. This applies to devices of the network and to those that `is_selected` accepts.
/// Only failures of devices that `is_required` accepts are reported.
pub(super) fn restore_names(
    host: &Netlink,
    network: &str,
    is_selected: impl Fn(&Link) -> bool,
    is_required: impl Fn(&Link) -> bool,
) -> Result<(), Error> {
    let links = link::list(host).context("list the host's interfaces")?;
    let down = links.iter().filter(|link| !link.is_up());
    let name = |link: &Link| {
        home_name(link, network).or_else(|| alias_name(link).filter(|_| is_selected(link)))
    };
    let own = down.filter_map(|link| Some((link, name(link)?)));
    Error::all(own.map(|(link, name)| match rename(host, link, name) {
        Err(error) if is_required(link) => {
            Err(error).context(&format!("restore the name {name} of device {}", link.name))
        }
        _ => Ok(()),
    }))
}

/// A device whose name is still taken keeps its alias and group.
fn rename(host: &Netlink, link: &Link, name: IfName) -> kernel::Result<()> {
    let renamed = Relocation { name: Some(name), alias: Some(""), ..Relocation::default() };
    let ungrouped = Relocation { group: Some(0), ..Relocation::default() };
    match host.apply([link::relocate(link.index, &renamed)]) {
        Ok(()) => host.apply([link::relocate(link.index, &ungrouped)]),
        Err(error) if error.already_exists() || error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether the device is in a container of this network. The kernel has a numeric ID for each
/// namespace that a device was moved to, and lists the links in it.
pub(super) fn is_in_container(
    host: &Netlink,
    network: &str,
    selector: &Selector,
) -> Result<bool, Error> {
    let doing = "look for the device in the containers";
    for id in kernel::netns::ids(host).context(doing)? {
        let links = link::list_in(host, id).context(doing)?;
        if links.iter().any(|link| is_moved_device(link, network, selector)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_moved_device(link: &Link, network: &str, selector: &Selector) -> bool {
    let is_moved = names::is_attachment_group(network, link.group) || link.group < MIN_DEVICE_GROUP;
    is_moved
        && match selector {
            Selector::Name(name) => alias_name(link) == Some(*name),
            Selector::Mac(mac) => link.mac == Some(*mac) && alias_name(link).is_some(),
            Selector::Device(_) => false,
        }
}
