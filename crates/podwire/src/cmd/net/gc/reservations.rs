// SPDX-License-Identifier: Apache-2.0
//! The addresses that host-local has reserved for a network, with their owners. Reading needs no lock: files appear
//! and disappear as a whole.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni::runtime::NetworkList;
use serde_json::Value;

/// Where host-local keeps reservations unless its configuration says otherwise.
const DATA_DIR: &str = "/var/lib/cni/networks";

/// A reserved address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reservation {
    pub id: String,
    pub ifname: String,
    pub address: IpAddr,
}

/// All reservations of a network.
pub(super) fn of(list: &NetworkList) -> BTreeSet<Reservation> {
    let mut directories = BTreeSet::from([PathBuf::from(DATA_DIR)]);
    for plugin in &list.plugins {
        data_dirs(&Value::Object(plugin.config.clone()), &mut directories);
    }
    directories.iter().flat_map(|directory| read(&directory.join(&list.name))).collect()
}

/// Values of `dataDir` below any `ipam`, also in the configurations of delegates.
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
        // A FIFO or a device of others would hold up whoever opens it.
        let text = entry.file_type().ok()?.is_file().then(|| std::fs::read_to_string(entry.path()));
        let text = text?.ok()?;
        let mut lines = text.lines().map(|line| line.trim().to_owned());
        let id = lines.next().filter(|id| !id.is_empty())?;
        Some(Reservation { id, ifname: lines.next().unwrap_or_default(), address })
    };
    entries.filter_map(reservation).collect()
}
