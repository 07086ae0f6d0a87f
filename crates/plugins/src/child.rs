// SPDX-License-Identifier: Apache-2.0
//! An interface of the container that hangs on another one, or on none: for the plugins whose
//! interface lives in the container's namespace alone. It is born there, by one message and under its
//! final name; nothing of it is on the host, so nothing can be left there.

mod check;
mod conf;
mod parent;

use std::os::fd::AsFd;

use cni::{CniResult, Code, Error, Request};
use kernel::addr::AddrOptions;
use kernel::link::{self, Kind, Link, NewLink};
use kernel::{IfName, MacAddr, Netlink, Netns};

use crate::fault::OrFault;
use crate::pod::{self, Announce, Manner};
use crate::undo::{Undo, or_undo};
use crate::{delegated, identity};

pub use self::check::check;
pub use self::conf::{Child, Mac};
pub use self::parent::Parent;

/// ADD of such a plugin. The interface comes first: dhcp asks through it, and that its name is free
/// tells that this is no second ADD, before anybody is asked for an address.
pub fn add(request: &Request, child: &Child) -> Result<CniResult, Error> {
    let asks_through_it = child.given.is_none() && delegated::needs_interface(request)?;
    if asks_through_it {
        delegated::refuse_early(request)?;
    }
    let ns = pod::open(request)?;
    or_undo(|undo| build(request, child, &ns, asks_through_it, undo))
}

fn build<'a>(
    request: &'a Request,
    child: &Child,
    ns: &'a Netns,
    asks_through_it: bool,
    undo: &mut Undo<'a>,
) -> Result<CniResult, Error> {
    let (name, mac) = create(request, child, ns)?;
    undo.push(move || take_back(ns, name));
    if asks_through_it {
        pod::bring_up(ns, name, child.dad)?;
    }
    let mut result = match &child.given {
        Some(given) => given.clone(),
        None => {
            let given = delegated::add_through_interface(request)?;
            undo.push(move || drop(delegated::del(request)));
            given.unwrap_or_default()
        }
    };
    configure(child, ns, name, &result)?;
    for ip in &mut result.ips {
        ip.interface = Some(0);
    }
    result.interfaces = vec![pod::told(request, Some(mac))];
    child.dns.put_into(&mut result);
    Ok(result)
}

/// Makes the interface and tells its hardware address, which is known without asking: it is the
/// master's, or our choice.
fn create(request: &Request, child: &Child, ns: &Netns) -> Result<(IfName, MacAddr), Error> {
    let name = pod::ifname(request)?;
    let nl = child.socket(ns)?;
    let parent = child.parent.find(&nl, child.in_container)?;
    let mtu = parent.as_ref().map_or(Ok(child.mtu), |parent| child.mtu_on(parent))?;
    let (mac, asked) = hardware_address(child, parent.as_ref())?;
    let attachment = request.attachment();
    let new = NewLink {
        mtu,
        mac: asked,
        parent: parent.map(|parent| parent.index),
        netns: (!child.in_container).then(|| ns.as_fd()),
        group: Some(identity::mark(&request.network, &attachment)),
        ..NewLink::new(name, child.kind)
    };
    let made = match nl.apply([link::create(&new)]) {
        Err(error) if error.already_exists() => {
            pod::refuse_existing(request)?;
            // Then an older kernel has met an interface of the host by this name.
            let index = Some(identity::index(&request.network, &attachment));
            nl.apply([link::create(&NewLink { index, ..new })])
        }
        other => other,
    };
    made.or_fault(&format!("failed to create {}", child.kind.name()))?;
    Ok((name, mac))
}

/// The address that the interface will have, and the one to ask the kernel for. One of our choice is no
/// random one to udev, whose rules would change it under the container.
fn hardware_address(
    child: &Child,
    parent: Option<&Link>,
) -> Result<(MacAddr, Option<MacAddr>), Error> {
    let of_parent = parent.and_then(|parent| parent.mac);
    match (child.mac, of_parent) {
        (Mac::Own(Some(mac)), _) => Ok((mac, Some(mac))),
        (Mac::Own(None), _) => {
            let mac = MacAddr::random().or_fault("choose a hardware address")?;
            Ok((mac, Some(mac)))
        }
        (Mac::OfParent, Some(mac)) => Ok((mac, None)),
        (Mac::OfParent, None) => {
            let name = parent.map(|parent| parent.name.to_string()).unwrap_or_default();
            let msg = format!("master {name:?} has no hardware address of six bytes");
            Err(Error::invalid_config(msg))
        }
    }
}

fn configure(child: &Child, ns: &Netns, name: IfName, result: &CniResult) -> Result<(), Error> {
    let has_neighbours = !matches!(child.parent, Parent::None);
    // Another host may have had the address until now, or another container.
    let announce = match has_neighbours && !result.ips.is_empty() {
        true => Announce::Now,
        false => Announce::Never,
    };
    let manner = Manner { addresses: AddrOptions::default(), dad: child.dad, announce };
    pod::configure(ns, name, &result.ips, manner, |index| {
        pod::routes(index, &result.ips, &result.routes)
    })
}

fn take_back(ns: &Netns, name: IfName) {
    // The failure that led here is the one to tell.
    let _ = ns.netlink().and_then(|inside| {
        let index = link::index_of(&inside, name)?;
        link::remove_in_background(&inside, index)
    });
}

/// DEL of such a plugin. It needs neither master nor default route nor result, and without the
/// namespace there is nothing to remove. An address is given back when the interface that holds it is
/// gone, but by dhcp before.
pub fn del(request: &Request, kind: &str) -> Result<(), Error> {
    delegated::del_with_interface(request, || remove(request, kind))
}

/// Removes the attachment's interface: one of this kind and name that is ours or bears no mark, as the
/// Go plugin's do.
fn remove(request: &Request, kind: &str) -> Result<(), Error> {
    let ifname = pod::ifname(request)?;
    let Some(ns) = pod::open_if_there(request) else { return Ok(()) };
    let group = identity::mark(&request.network, &request.attachment());
    ns.netlink()
        .and_then(|inside| match link::by_name(&inside, ifname)? {
            Some(link) if link.is_kind(kind) && [0, group].contains(&link.group) => {
                link::remove_in_background(&inside, link.index)
            }
            _ => Ok(()),
        })
        .or_fault("remove the container's interface")
}

/// GC of such a plugin: interfaces go with their namespaces, and only addresses can be left.
pub fn gc(request: &Request) -> Result<(), Error> {
    match request.valid_attachments()? {
        Some(_) => delegated::gc(request),
        None => Ok(()),
    }
}

/// STATUS of such a plugin.
pub fn status(request: &Request, child: &Child) -> Result<(), Error> {
    let host = Netlink::open().or_fault("open a netlink socket")?;
    let kind = child.kind.name();
    if !link::is_supported(&host, kind).or_fault("ask the kernel for its features")? {
        let msg = format!("this kernel has no {kind} interfaces");
        return Err(Error::new(Code::NOT_AVAILABLE, msg));
    }
    // Which namespace that would be is known to ADD alone.
    if !child.in_container {
        check_parent(child, &host)?;
    }
    delegated::status(request)
}

fn check_parent(child: &Child, host: &Netlink) -> Result<(), Error> {
    let found = child.parent.find(host, false);
    let parent = found.map_err(|error| Error { code: Code::NOT_AVAILABLE, ..error })?;
    match parent {
        // Interfaces of the other kinds come up on a master that is down.
        Some(parent) if !parent.is_up() && matches!(child.kind, Kind::Vlan(_)) => {
            let msg = format!("master {} is down", parent.name);
            Err(Error::new(Code::LIMITED, msg))
        }
        Some(parent) => child.mtu_on(&parent).map(drop),
        None => Ok(()),
    }
}
