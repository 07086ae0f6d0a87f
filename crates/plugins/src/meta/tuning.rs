// SPDX-License-Identifier: Apache-2.0
//! `tuning`: sysctls of the container's namespace, and attributes of its interface, which DEL gives
//! back.

mod allowlist;
mod backup;
mod conf;
mod sysctls;

use cni::{CniResult, Code, Error, Plugin, Request, Version};
use kernel::link::{self, Link};
use kernel::{Netlink, Netns};

use self::backup::{Backup, Shelf};
use self::conf::{Tuning, data_dir_of};
use crate::attach::undo::{Undo, or_undo};
use crate::attach::{netns, prev_result};
use crate::error::Context;

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    name: "tuning",
    about: "sets sysctls of the container, and attributes of its interface",
    versions: Version::ALL,
    add,
    del,
    check,
    status,
    gc,
};

fn add(request: &Request) -> Result<CniResult, Error> {
    let tuning = Tuning::parse(request)?;
    allowlist::check(&tuning.sysctls)?;
    let mut result = prev_result::required(request, "Required prevResult missing")?;
    let ns = netns::open(request)?;
    or_undo(|undo| build(request, &tuning, &ns, undo))?;
    for interface in prev_result::interfaces_mut(&mut result, request) {
        if let Some(mac) = tuning.attributes.mac {
            interface.mac = mac.to_string();
        }
        // The plugin that made the interface has another one in its configuration, maybe.
        interface.mtu = tuning.attributes.mtu.unwrap_or(interface.mtu);
    }
    Ok(result)
}

fn build<'a>(
    request: &Request,
    tuning: &Tuning,
    ns: &'a Netns,
    undo: &mut Undo<'a>,
) -> Result<(), Error> {
    let before = sysctls::write(ns, &tuning.sysctls)?;
    undo.push(move || sysctls::put_back(ns, &before));
    if tuning.attributes.is_empty() {
        return Ok(());
    }
    let (inside, link) = prev_result::interface(request, ns)?;
    let shelf = Shelf::of(request, &tuning.data_dir);
    let namespace = ns.unique_name().context("look at the container's namespace")?;
    // A backup of another namespace is of a container that is gone without a DEL.
    let kept = shelf.take_down()?.filter(|kept| kept.is_of(&namespace));
    let mut backup = Backup::of(&link, &tuning.attributes).owned_by(&request.network, &namespace);
    if let Some(kept) = &kept {
        // A second ADD: the interface holds our values now, and the backup the ones from before.
        backup = backup.with_older(kept);
    }
    shelf.put(&backup)?;
    set(&inside, &link, tuning).inspect_err(|_| match kept {
        // Best effort: the first error is the one to tell.
        Some(kept) => drop(shelf.put(&kept)),
        None => drop(shelf.clear()),
    })
}

/// Sets all attributes, or none.
fn set(inside: &Netlink, link: &Link, tuning: &Tuning) -> Result<(), Error> {
    let wanted = &tuning.attributes;
    inside
        .apply([link::set_attributes(link.name, wanted)])
        .context("tune the interface")
        .inspect_err(|_| {
            let before = Backup::of(link, wanted).attributes();
            drop(inside.apply([link::set_attributes(link.index, &before)]));
        })
}

/// Nothing here may keep the plugins before this one from their DEL: an attribute that cannot be
/// given back is of no use to an interface that goes away.
fn del(request: &Request) -> Result<(), Error> {
    let data_dir = data_dir_of(request);
    let shelf = Shelf::of(request, &data_dir);
    // A backup that cannot be read cannot be restored.
    let Ok(Some(backup)) = shelf.take_down() else { return shelf.clear() };
    let is_restored = match netns::open_if_exists(request) {
        Some(ns) => restore(request, &ns, &backup),
        None => true,
    };
    if is_restored { shelf.clear() } else { Ok(()) }
}

/// Whether all is as before, or no more.
fn restore(request: &Request, ns: &Netns, backup: &Backup) -> bool {
    if ns.unique_name().is_ok_and(|namespace| backup.is_of_another(&namespace)) {
        return true;
    }
    let Ok((inside, link)) = prev_result::interface(request, ns) else { return true };
    if inside.apply([link::set_attributes(link.index, &backup.attributes())]).is_ok() {
        return true;
    }
    // One that the kernel refuses must not keep the others.
    let each = backup.each_attribute().map(|one| link::set_attributes(link.index, &one));
    let results = inside.apply_each(each);
    results.iter().all(Result::is_ok)
}

fn check(request: &Request) -> Result<(), Error> {
    let tuning = Tuning::parse(request)?;
    request.required_prev_result()?;
    let ns = netns::open(request)?;
    sysctls::check(&ns, &tuning.sysctls)?;
    let (_, link) = prev_result::interface(request, &ns)?;
    let wanted = tuning.attributes;
    let is = Backup::of(&link, &wanted).attributes();
    let differ = [
        ("Ethernet", shown(wanted.mac), shown(is.mac)),
        ("MTU", shown(wanted.mtu), shown(is.mtu)),
        ("promisc", shown(wanted.promisc), shown(is.promisc)),
        ("all-multicast mode", shown(wanted.allmulti), shown(is.allmulti)),
        ("Transmit Queue Length", shown(wanted.txqlen), shown(is.txqlen)),
    ];
    match differ.into_iter().find(|(_, wanted, is)| wanted != is) {
        None => Ok(()),
        Some((key, wanted, is)) => {
            let name = link.name;
            let msg = match key {
                "promisc" => format!("Error: Tuning link {name} configured promisc is {wanted}"),
                _ => format!("Error: Tuning configured {key} of {name} is {wanted}"),
            };
            Err(Error::internal(format!("{msg}, current value is {is}")))
        }
    }
}

fn shown(value: Option<impl ToString>) -> String {
    value.map_or("none".to_owned(), |value| value.to_string())
}

fn status(request: &Request) -> Result<(), Error> {
    let tuning = Tuning::parse(request)?;
    allowlist::check(&tuning.sysctls)
}

/// Removes the backups of this network that belong to no valid attachment. Those of the Go plugin
/// do not name their network, and may be another's: they stay for their DEL.
fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let data_dir = data_dir_of(request);
    backup::remove_unlisted(&data_dir, &request.network, &valid)
}

/// An error of a file of ours.
fn io_error(doing: &str, cause: &std::io::Error) -> Error {
    Error::because(Code::IO, doing, cause)
}
