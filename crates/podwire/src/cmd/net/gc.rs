// SPDX-License-Identifier: Apache-2.0
//! `podwire net gc`: attachments whose namespace is gone.

mod reservations;

use std::path::Path;

use anyhow::{Context, Result};
use cni::runtime::Container;
use cni::runtime::cache::Entry;
use cni::{Attachment, Command};
use kernel::Netns;
use rustix::io::Errno;
use serde_json::{Value, json};

use self::reservations::Reservation;
use crate::cli::Collect;
use crate::output::{self, Format};
use crate::{config, place, report};

/// Does what the command line asks.
pub fn run(collect: &Collect, format: Format) -> Result<()> {
    let host = place::host(&collect.places);
    let runtime = place::runtime(&host, &collect.places);
    let loaded = config::load(&collect.places.conf_dir, &collect.network);
    let list = loaded.or_else(|error| {
        let entries = runtime.cached_attachments(Some(&collect.network), None);
        super::recall(&collect.network, &collect.places, &entries).ok_or(error)
    })?;
    let reserved = reservations::of(&list);
    let (mut kept, mut stale) = (Vec::new(), Vec::new());
    let choose = |entries: &[Entry]| -> Vec<Attachment> {
        let is_stale = |entry: &Entry| collect.all || is_gone(&entry.container.netns);
        (stale, kept) = entries.iter().cloned().partition(is_stale);
        kept.iter().map(Entry::attachment).collect()
    };
    let collected = match collect.plugins {
        true => runtime.gc_with(&list, choose),
        false => runtime.del_stale(&list, choose),
    };
    if list.disable_gc {
        report::warn(&format!("network {:?} says disableGC: nothing was removed", list.name));
        kept = runtime.cached_attachments(Some(&list.name), None);
    }
    // One whose DEL has failed is still remembered.
    let is_left = |entry: &Entry| runtime.cached(&list.name, &entry.container).is_some();
    let (left, removed): (Vec<Entry>, Vec<Entry>) = stale.into_iter().partition(is_left);
    kept.extend(left);
    let mut removed: Vec<Shown> = removed.iter().map(Shown::from).collect();
    if collect.plugins {
        // Plugins do not say what GC removed; the addresses that are free now do.
        let still_reserved = reservations::of(&list);
        let freed = reserved.difference(&still_reserved).map(Shown::from);
        let freed: Vec<Shown> =
            freed.filter(|one| !removed.iter().any(|known| known.is_same(one))).collect();
        removed.extend(freed);
        removed.dedup();
    }
    if collected.is_ok() || (format == Format::Text && !removed.is_empty()) {
        let asked_plugins = collect.plugins && collected.is_ok() && !list.disable_gc;
        let asked_plugins = asked_plugins.then(|| list.version >= Command::Gc.since());
        show(&list.name, &kept, &removed, asked_plugins, format)?;
    }
    collected.with_context(|| format!("clean up network {:?}", list.name))
}

/// Whether nobody can be in this namespace any more. A path that cannot be looked at may be alive,
/// and older libraries remember none.
fn is_gone(netns: &str) -> bool {
    let is_told = Path::new(netns).is_absolute();
    is_told
        && Netns::open(netns).is_err_and(|error| matches!(error.errno, Errno::NOENT | Errno::INVAL))
}

/// `asked_plugins` is whether they could be, where they were to be.
fn show(
    network: &str,
    kept: &[Entry],
    removed: &[Shown],
    asked_plugins: Option<bool>,
    format: Format,
) -> Result<()> {
    if format == Format::Json {
        let kept: Vec<Value> = kept.iter().map(|entry| Shown::from(entry).json()).collect();
        let removed: Vec<Value> = removed.iter().map(Shown::json).collect();
        let asked = asked_plugins == Some(true);
        let told = json!({"removed": removed, "kept": kept, "pluginsAsked": asked});
        return output::print_json(&told);
    }
    let more = match asked_plugins {
        None => String::new(),
        Some(true) => "; the plugins removed what belongs to none of those kept".to_owned(),
        Some(false) => {
            format!("; its plugins cannot be asked before cniVersion {}", Command::Gc.since())
        }
    };
    let mut text = format!("{network}: {} removed, {} kept{more}\n", removed.len(), kept.len());
    if !removed.is_empty() {
        let rows = removed.iter().map(|Shown { id, ifname, netns }| {
            let netns = if netns.is_empty() { "-" } else { netns };
            [id.clone(), ifname.clone(), netns.to_owned()]
        });
        text += &format!("\n{}", output::table(["REMOVED", "INTERFACE", "NAMESPACE"], rows));
    }
    output::print(&text)
}

/// An attachment as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    id: String,
    ifname: String,
    /// Empty where nothing tells.
    netns: String,
}

impl Shown {
    fn is_same(&self, other: &Shown) -> bool {
        (&self.id, &self.ifname) == (&other.id, &other.ifname)
    }

    fn json(&self) -> Value {
        json!({ "containerID": self.id, "ifname": self.ifname, "netns": self.netns })
    }
}

impl From<&Entry> for Shown {
    fn from(entry: &Entry) -> Shown {
        let Container { id, ifname, netns, .. } = entry.container.clone();
        Shown { id, ifname, netns }
    }
}

impl From<&Reservation> for Shown {
    fn from(Reservation { id, ifname, .. }: &Reservation) -> Shown {
        Shown { id: id.clone(), ifname: ifname.clone(), netns: String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_gone_only_where_that_is_certain() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "left by ip netns after a reboot").unwrap();
        std::os::unix::fs::symlink("loop", path("loop")).unwrap();
        let check = |netns: &Path, expected: bool| {
            assert_eq!(is_gone(netns.to_str().unwrap()), expected, "{}", netns.display());
        };
        check(&path("missing"), true);
        check(&path("file"), true);
        check(Path::new("/proc/self/ns/uts"), true);
        check(Path::new("/proc/self/ns/net"), false);
        check(&path("loop"), false);
        check(&path("file/below"), false);
        check(Path::new(""), false);
        check(Path::new("relative"), false);
    }
}
