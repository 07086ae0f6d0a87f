// SPDX-License-Identifier: Apache-2.0
//! `podwire net gc`: removes attachments whose network namespace is gone.

mod reservations;

use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;
use cni::runtime::Container;
use cni::runtime::cache::Entry;
use cni::{Attachment, Command};
use kernel::Netns;
use rustix::io::Errno;
use serde_json::{Value, json};

use self::reservations::Reservation;
use crate::output::{self, Format};
use crate::runtime::RuntimeArgs;
use crate::{errors, network_lookup};

/// Remove attachments whose network namespace is gone
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  podwire net gc mynet              detach cached attachments whose namespace is gone
  podwire net gc mynet --all        detach all cached attachments, as cnitool does
  podwire net gc mynet --plugins    also let the plugins free addresses and other leftovers that
                                    are not in the cache; only if no other runtime uses the network")]
pub(crate) struct Gc {
    /// Name of the network
    network: String,
    /// Accepted for compatibility with cnitool, without effect
    #[arg(hide = true)]
    netns: Option<String>,
    /// Remove all cached attachments, including those whose namespace exists
    #[arg(long)]
    all: bool,
    /// Also let the plugins remove everything that belongs to no cached attachment; the cache must
    /// contain all containers of the node
    #[arg(long, conflicts_with = "all")]
    plugins: bool,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

pub(crate) fn run(args: &Gc, format: Format) -> Result<()> {
    let host = args.runtime.host();
    let runtime = args.runtime.runtime(&host);
    let loaded = network_lookup::load(&args.runtime.conf_dir, &args.network);
    let list = loaded.or_else(|error| {
        let entries = runtime.cached_attachments(Some(&args.network), None);
        super::from_cache(&args.network, &args.runtime, &entries).ok_or(error)
    })?;
    let reserved = reservations::of(&list);
    let (mut kept, mut stale) = (Vec::new(), Vec::new());
    let choose = |entries: &[Entry]| -> Vec<Attachment> {
        let is_stale = |entry: &Entry| args.all || is_gone(&entry.container.netns);
        (stale, kept) = entries.iter().cloned().partition(is_stale);
        kept.iter().map(Entry::attachment).collect()
    };
    let collected = match args.plugins {
        true => runtime.gc_with(&list, choose),
        false => runtime.del_stale(&list, choose),
    };
    if list.disable_gc {
        errors::warn(&format!("network {:?} sets disableGC: nothing removed", list.name));
        kept = runtime.cached_attachments(Some(&list.name), None);
    }
    // An attachment whose DEL failed is still in the cache.
    let is_left = |entry: &Entry| runtime.cached(&list.name, &entry.container).is_some();
    let (left, removed): (Vec<Entry>, Vec<Entry>) = stale.into_iter().partition(is_left);
    kept.extend(left);
    let mut removed: Vec<Row> = removed.iter().map(Row::from).collect();
    if args.plugins {
        // Plugins do not report what GC removed; compare host-local's reservations instead.
        let still_reserved = reservations::of(&list);
        let freed = reserved.difference(&still_reserved).map(Row::from);
        let freed: Vec<Row> =
            freed.filter(|row| !removed.iter().any(|known| known.is_same(row))).collect();
        removed.extend(freed);
        removed.dedup();
    }
    if collected.is_ok() || (format == Format::Text && !removed.is_empty()) {
        let called_plugins = args.plugins && collected.is_ok() && !list.disable_gc;
        let gc_supported = called_plugins.then(|| list.version >= Command::Gc.since());
        print(&list.name, &kept, &removed, gc_supported, format)?;
    }
    collected.with_context(|| format!("collect garbage of network {:?}", list.name))
}

/// Whether the namespace certainly no longer exists. A path that cannot be read may exist, and old
/// versions of libcni cache no path.
fn is_gone(netns: &str) -> bool {
    let is_known = Path::new(netns).is_absolute();
    is_known
        && Netns::open(netns).is_err_and(|error| matches!(error.errno, Errno::NOENT | Errno::INVAL))
}

/// `gc_supported` is `None` without `--plugins`, and otherwise tells whether the CNI version has GC.
fn print(
    network: &str,
    kept: &[Entry],
    removed: &[Row],
    gc_supported: Option<bool>,
    format: Format,
) -> Result<()> {
    if format == Format::Json {
        let kept: Vec<Value> = kept.iter().map(|entry| Row::from(entry).json()).collect();
        let removed: Vec<Value> = removed.iter().map(Row::json).collect();
        let asked = gc_supported == Some(true);
        let printed = json!({"removed": removed, "kept": kept, "pluginsAsked": asked});
        return output::print_json(&printed);
    }
    let more = match gc_supported {
        None => String::new(),
        Some(true) => "; plugins removed everything else".to_owned(),
        Some(false) => format!("; plugins not called: GC needs cniVersion {}", Command::Gc.since()),
    };
    let mut text = format!("{network}: {} removed, {} kept{more}\n", removed.len(), kept.len());
    if !removed.is_empty() {
        let rows = removed.iter().map(|Row { id, ifname, netns }| {
            let netns = if netns.is_empty() { "-" } else { netns };
            [id.clone(), ifname.clone(), netns.to_owned()]
        });
        text += &format!("\n{}", output::table(["REMOVED", "INTERFACE", "NAMESPACE"], rows));
    }
    output::print(&text)
}

/// An attachment in the output.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    id: String,
    ifname: String,
    /// Empty if unknown.
    netns: String,
}

impl Row {
    fn is_same(&self, other: &Row) -> bool {
        (&self.id, &self.ifname) == (&other.id, &other.ifname)
    }

    fn json(&self) -> Value {
        json!({ "containerID": self.id, "ifname": self.ifname, "netns": self.netns })
    }
}

impl From<&Entry> for Row {
    fn from(entry: &Entry) -> Row {
        let Container { id, ifname, netns, .. } = entry.container.clone();
        Row { id, ifname, netns }
    }
}

impl From<&Reservation> for Row {
    fn from(Reservation { id, ifname, .. }: &Reservation) -> Row {
        Row { id: id.clone(), ifname: ifname.clone(), netns: String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netns_is_gone_only_if_certain() {
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
