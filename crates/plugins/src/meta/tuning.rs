// SPDX-License-Identifier: Apache-2.0
//! `tuning`: sets sysctls of the container's namespace and attributes of its interface. DEL
//! restores the attributes.

mod allowlist;
mod backup;
mod conf;
mod sysctls;

use cni::{CniResult, Code, Error, Plugin, Request, Version};
use kernel::link::{self, Link};
use kernel::{Netlink, Netns};

use self::backup::{Backup, BackupFile};
use self::conf::{Tuning, data_dir_of};
use crate::attach::undo::{Undo, or_undo};
use crate::attach::{netns, prev_result};
use crate::error::Context;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "tuning",
    about: "sets sysctls of the container and attributes of its interface",
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
        // CHECK of the plugin that created the interface compares the MTU with the result.
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
    let previous = sysctls::write(ns, &tuning.sysctls)?;
    undo.push(move || sysctls::restore(ns, &previous));
    if tuning.attributes.is_empty() {
        return Ok(());
    }
    let (inside, link) = prev_result::interface(request, ns)?;
    let file = BackupFile::of(request, &tuning.data_dir);
    let namespace = ns.unique_name().context("look at the container's namespace")?;
    // A backup from another namespace belongs to a container that is gone without a DEL.
    let saved = file.read()?.filter(|saved| saved.is_of(&namespace));
    let mut backup = Backup::of(&link, &tuning.attributes).owned_by(&request.network, &namespace);
    if let Some(saved) = &saved {
        // A second ADD: the interface has the new values already, the saved backup has the original
        // ones.
        backup = backup.with_older(saved);
    }
    file.write(&backup)?;
    set(&inside, &link, tuning).inspect_err(|_| match saved {
        // Best effort: the first error is the one to report.
        Some(saved) => drop(file.write(&saved)),
        None => drop(file.remove()),
    })
}

/// Sets all attributes, or none.
fn set(inside: &Netlink, link: &Link, tuning: &Tuning) -> Result<(), Error> {
    let desired = &tuning.attributes;
    inside
        .apply([link::set_attributes(link.name, desired)])
        .context("tune the interface")
        .inspect_err(|_| {
            let previous = Backup::of(link, desired).attributes();
            drop(inside.apply([link::set_attributes(link.index, &previous)]));
        })
}

/// A failure here must not prevent the DEL of earlier plugins, which remove the interface anyway.
fn del(request: &Request) -> Result<(), Error> {
    let data_dir = data_dir_of(request);
    let file = BackupFile::of(request, &data_dir);
    // A backup that cannot be read cannot be restored.
    let Ok(Some(backup)) = file.read() else { return file.remove() };
    let is_restored = match netns::open_if_exists(request) {
        Some(ns) => restore(request, &ns, &backup),
        None => true,
    };
    if is_restored { file.remove() } else { Ok(()) }
}

/// Returns whether the backup is no longer needed.
fn restore(request: &Request, ns: &Netns, backup: &Backup) -> bool {
    if ns.unique_name().is_ok_and(|namespace| backup.is_of_another(&namespace)) {
        return true;
    }
    let Ok((inside, link)) = prev_result::interface(request, ns) else { return true };
    if inside.apply([link::set_attributes(link.index, &backup.attributes())]).is_ok() {
        return true;
    }
    // An attribute that the kernel refuses must not prevent the restoration of the others.
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
    let expected = tuning.attributes;
    let found = Backup::of(&link, &expected).attributes();
    let attributes = [
        ("Ethernet", shown(expected.mac), shown(found.mac)),
        ("MTU", shown(expected.mtu), shown(found.mtu)),
        ("promisc", shown(expected.promisc), shown(found.promisc)),
        ("all-multicast mode", shown(expected.allmulti), shown(found.allmulti)),
        ("Transmit Queue Length", shown(expected.txqlen), shown(found.txqlen)),
    ];
    match attributes.into_iter().find(|(_, expected, found)| expected != found) {
        None => Ok(()),
        Some((key, expected, found)) => {
            let name = link.name;
            let msg = match key {
                "promisc" => format!("Error: Tuning link {name} configured promisc is {expected}"),
                _ => format!("Error: Tuning configured {key} of {name} is {expected}"),
            };
            Err(Error::internal(format!("{msg}, current value is {found}")))
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

/// Removes the backups of this network that belong to no valid attachment. Backups of the Go plugin
/// do not name their network and are kept until their DEL.
fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let data_dir = data_dir_of(request);
    backup::remove_stale(&data_dir, &request.network, &valid)
}

fn io_error(doing: &str, cause: &std::io::Error) -> Error {
    Error::because(Code::IO, doing, cause)
}
