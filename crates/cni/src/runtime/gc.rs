// SPDX-License-Identifier: Apache-2.0
//! Garbage collection: DEL for stale attachments in the cache, then the plugins' own GC for attachments that no cache
//! has. The plugins' GC removes every container that is not listed, so it is run only with a list that can be complete.

use std::collections::HashSet;
use std::path::PathBuf;

use serde_json::json;

use super::cache::{self, Entry};
use super::invoke::{bare_config, find, invoke, named};
use super::{Container, NetworkList, PluginConf, Runtime, lock};
use crate::error::{Code, Error};
use crate::request::{Attachment, Command};
use crate::validate;

/// Whether the plugins' own GC is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PluginGc {
    /// The list of valid attachments does not depend on the cache.
    Always,
    /// The list comes from the cache. An attachment whose cache file cannot be parsed would be missing.
    IfCacheIsComplete,
    Never,
}

/// Cache entries of one network.
#[derive(Default)]
struct Cached {
    entries: Vec<Entry>,
    /// Files that may belong to the network but cannot be parsed.
    unreadable: Vec<PathBuf>,
    failure: Option<Error>,
}

pub(super) fn collect(
    runtime: &Runtime,
    list: &NetworkList,
    valid: impl FnOnce(&[Entry]) -> Vec<Attachment>,
    plugin_gc: PluginGc,
) -> Result<(), Error> {
    validate::network_name(&list.name)?;
    if list.disable_gc {
        return Ok(());
    }
    let _lock = lock::gc(&runtime.cache_dir).map_err(|cause| runtime.not_locked(&cause))?;
    let cached = read_cache(runtime, &list.name);
    let valid = valid(&cached.entries);
    let cache_error = match plugin_gc {
        PluginGc::Always => cached.failure,
        _ => cached.failure.or_else(|| unreadable_error(&cached.unreadable)),
    };
    let run_plugin_gc = match plugin_gc {
        PluginGc::Always => true,
        PluginGc::IfCacheIsComplete => cache_error.is_none(),
        PluginGc::Never => false,
    };
    let mut errors = Vec::from_iter(cache_error);
    errors.extend(del_stale(runtime, list, &cached.entries, &valid));
    if run_plugin_gc && list.version >= Command::Gc.since() {
        errors.extend(gc_each(runtime, list, &valid));
    }
    Error::join(errors)
}

fn read_cache(runtime: &Runtime, network: &str) -> Cached {
    match cache::list(&runtime.cache_dir, None) {
        Ok((mut entries, mut unreadable)) => {
            entries.retain(|entry| entry.network == network);
            let prefix = format!("{network}-");
            unreadable.retain(|file| {
                file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
            });
            Cached { entries, unreadable, failure: None }
        }
        Err(cause) => {
            let doing = format!("list the cache {}", cache::results(&runtime.cache_dir).display());
            let failure = Some(Error::because(Code::IO, doing, &cause));
            Cached { failure, ..Cached::default() }
        }
    }
}

fn del_stale(
    runtime: &Runtime,
    list: &NetworkList,
    cached: &[Entry],
    valid: &[Attachment],
) -> Vec<Error> {
    let valid: HashSet<&Attachment> = valid.iter().collect();
    let stale = cached.iter().filter(|entry| !valid.contains(&entry.attachment()));
    stale
        .filter_map(|entry| {
            let error = runtime.del_locked(list, &entry.container).err()?;
            let Container { id, ifname, .. } = &entry.container;
            let msg = format!("failed to delete stale attachment {id} {ifname}: {}", error.msg);
            Some(Error { msg, ..error })
        })
        .collect()
}

fn gc_each(runtime: &Runtime, list: &NetworkList, valid: &[Attachment]) -> Vec<Error> {
    let gc = |plugin: &PluginConf| {
        let mut config = bare_config(list, plugin);
        config.insert("cni.dev/valid-attachments".into(), json!(valid));
        // An earlier draft of the specification used this key, and plugins may still read it.
        config.insert("cni.dev/attachments".into(), json!(valid));
        invoke(runtime, &find(runtime, plugin)?, Command::Gc, &Container::default(), config)
    };
    let plugins = list.plugins.iter();
    plugins.filter_map(|plugin| gc(plugin).err().map(|error| named(plugin, "gc", error))).collect()
}

fn unreadable_error(files: &[PathBuf]) -> Option<Error> {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let msg = format!("cannot tell which attachment this is about: {}", names.join(", "));
    (!files.is_empty()).then(|| Error::new(Code::IO, msg))
}
