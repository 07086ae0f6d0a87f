// SPDX-License-Identifier: Apache-2.0
//! Addresses that host-local has reserved for a network, with their owners. Reading needs no lock:
//! host-local creates and removes whole files.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni::runtime::NetworkList;
use serde_json::Value;

/// Default data directory of host-local.
const DATA_DIR: &str = "/var/lib/cni/networks";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reservation {
    pub(crate) id: String,
    pub(crate) ifname: String,
    pub(crate) address: IpAddr,
}

pub(crate) fn of(list: &NetworkList) -> BTreeSet<Reservation> {
    let mut directories = BTreeSet::from([PathBuf::from(DATA_DIR)]);
    for plugin in &list.plugins {
        data_dirs(&Value::Object(plugin.config.clone()), &mut directories);
    }
    directories.iter().flat_map(|directory| read(&directory.join(&list.name))).collect()
}

/// Collects `dataDir` of every `ipam` object, including those of delegates.
fn data_dirs(config: &Value, found: &mut BTreeSet<PathBuf>) {
    match config {
        Value::Object(keys) => {
            let data_dir = keys.get("ipam").and_then(|ipam| ipam.get("dataDir")?.as_str());
            found.extend(data_dir.filter(|path| !path.is_empty()).map(PathBuf::from));
            keys.values().for_each(|value| data_dirs(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| data_dirs(item, found)),
        _ => {}
    }
}

fn read(directory: &Path) -> Vec<Reservation> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let reservation = |entry: std::fs::DirEntry| {
        let address = entry.file_name().to_str()?.parse().ok()?;
        // Opening a FIFO or a device that another program created would block.
        let text = entry.file_type().ok()?.is_file().then(|| std::fs::read_to_string(entry.path()));
        let text = text?.ok()?;
        let mut lines = text.lines().map(|line| line.trim().to_owned());
        let id = lines.next().filter(|id| !id.is_empty())?;
        Some(Reservation { id, ifname: lines.next().unwrap_or_default(), address })
    };
    entries.filter_map(reservation).collect()
}
