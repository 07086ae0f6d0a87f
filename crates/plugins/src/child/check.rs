// SPDX-License-Identifier: Apache-2.0
//! Is the container's interface still what it was made as?

use cni::{CniResult, Code, Error, Interface, IpConfig, Request};
use kernel::Netlink;
use kernel::link::{Detail, IpvlanMode, Kind, Link, MacvlanMode};

use super::conf::Child;
use super::parent::Parent;
use crate::fault::OrFault;
use crate::{delegated, pod, verify};

/// CHECK of such a plugin.
pub fn check(request: &Request, child: &Child) -> Result<(), Error> {
    delegated::check(request)?;
    let result = request.required_prev_result()?;
    let ns = pod::open(request)?;
    let inside = ns.netlink().or_fault("open a socket in the container's namespace")?;
    let interface = verify::container_interface(&result, request)?;
    let link = verify::interface(&inside, interface, child.kind.name())?;
    if !link.is_up() {
        return Err(Error::internal(format!("Interface {} is down", link.name)));
    }
    check_kind(&link, &child.kind)?;
    verify::mtu(&link, interface, child.mtu, request.version)?;
    check_parent(&link, child, &child.socket(&ns)?)?;
    verify::addresses(&inside, link.index, &on_interface(&result, interface))?;
    verify::routes(&inside, &result.routes)
}

/// A plugin further down the list may have made interfaces of its own.
fn on_interface(result: &CniResult, interface: &Interface) -> Vec<IpConfig> {
    let index = result.interfaces.iter().position(|other| other == interface);
    let is_here = |ip: &&IpConfig| ip.interface.is_none() || ip.interface == index;
    result.ips.iter().filter(is_here).cloned().collect()
}

fn check_kind(link: &Link, kind: &Kind) -> Result<(), Error> {
    let (mode, found, wanted) = match (&link.detail, kind) {
        (Detail::Macvlan(found), Kind::Macvlan { mode, .. }) => {
            ("container macvlan mode", found.map(macvlan_mode), Some(macvlan_mode(*mode)))
        }
        (Detail::Ipvlan(found), Kind::Ipvlan(mode)) => {
            ("Container IPVlan mode", found.map(ipvlan_mode), Some(ipvlan_mode(*mode)))
        }
        (Detail::Vlan(found), Kind::Vlan(id)) if found != id => {
            let msg = format!("interface {} has VLAN {found}, expected {id}", link.name);
            return Err(Error::internal(msg));
        }
        _ => return Ok(()),
    };
    if found == wanted {
        return Ok(());
    }
    let (found, wanted) = (found.unwrap_or("another"), wanted.unwrap_or_default());
    Err(Error::internal(format!("{mode} {found} does not match expected value: {wanted}"))
        .with_details(format!("interface {}", link.name)))
}

/// As the configuration calls it.
fn macvlan_mode(mode: MacvlanMode) -> &'static str {
    match mode {
        MacvlanMode::Private => "private",
        MacvlanMode::Vepa => "vepa",
        MacvlanMode::Bridge => "bridge",
        MacvlanMode::Passthru => "passthru",
    }
}

/// As the configuration calls it.
fn ipvlan_mode(mode: IpvlanMode) -> &'static str {
    match mode {
        IpvlanMode::L2 => "l2",
        IpvlanMode::L3 => "l3",
        IpvlanMode::L3s => "l3s",
    }
}

/// The default route may have moved since the ADD, so only a master that has a name is compared. On a
/// master of its own kind an interface hangs on what that one hangs on.
fn check_parent(link: &Link, child: &Child, nl: &Netlink) -> Result<(), Error> {
    let Parent::Named(name) = child.parent else { return Ok(()) };
    let missing = |error: Error| Error { code: Code::INTERNAL, ..error };
    let Some(parent) = child.parent.find(nl, child.in_container).map_err(missing)? else {
        return Ok(());
    };
    let is_same_kind = parent.is_kind(child.kind.name());
    let of_parent = parent.link.filter(|_| is_same_kind);
    let fits = link.link == Some(parent.index) || (link.link.is_some() && link.link == of_parent);
    if fits && link.link_netnsid.is_none() == child.in_container {
        return Ok(());
    }
    Err(Error::internal(format!("interface {} does not hang on master {name}", link.name)))
}
