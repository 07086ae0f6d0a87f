// SPDX-License-Identifier: Apache-2.0
//! Attachments that nobody needs any more: DEL for those in the cache, and the plugins' own GC for
//! what no cache tells of. That GC takes every container that is not listed off the network, so it
//! is sent only with a list that can be complete.

use std::collections::HashSet;
use std::path::PathBuf;

use serde_json::json;

use super::cache::{self, Entry};
use super::invoke::{bare_config, failed};
use super::{Container, NetworkList, PluginConf, Runtime, lock};
use crate::error::{Code, Error};
use crate::request::{Attachment, Command};
use crate::validate;

/// Whether the plugins are sent GC.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PluginGc {
    /// The valid attachments are known whatever the cache says.
    Sent,
    /// They are known from the cache, so a file that says nothing may be one of them.
    SentIfCacheIsWhole,
    NotSent,
}

/// What the cache says about one network.
#[derive(Default)]
struct Survey {
    entries: Vec<Entry>,
    /// Files that may be about the network, and do not say.
    unreadable: Vec<PathBuf>,
    failure: Option<Error>,
}

impl Runtime<'_> {
    /// Removes every attachment that is not in `valid`, which names all containers of the network,
    /// whoever attached them.
    pub fn gc(&self, list: &NetworkList, valid: &[Attachment]) -> Result<(), Error> {
        self.collect(list, |_| valid.to_vec(), PluginGc::Sent)
    }

    /// The same, where the valid attachments are told once nothing else is under way; given are
    /// the cached ones of this network. What was told before could miss an ADD just finished.
    ///
    /// A file in the cache that cannot be read may be about a living container: then only cached
    /// attachments are removed, the plugins are not sent GC, and the error names the file.
    pub fn gc_with(
        &self,
        list: &NetworkList,
        valid: impl FnOnce(&[Entry]) -> Vec<Attachment>,
    ) -> Result<(), Error> {
        self.collect(list, valid, PluginGc::SentIfCacheIsWhole)
    }

    /// Removes the cached attachments that are not told valid, and nothing else: for callers that
    /// cannot know the containers of other runtimes. Files that cannot be read are an error here
    /// too, once all others are dealt with.
    pub fn del_stale(
        &self,
        list: &NetworkList,
        valid: impl FnOnce(&[Entry]) -> Vec<Attachment>,
    ) -> Result<(), Error> {
        self.collect(list, valid, PluginGc::NotSent)
    }

    fn collect(
        &self,
        list: &NetworkList,
        valid: impl FnOnce(&[Entry]) -> Vec<Attachment>,
        plugin_gc: PluginGc,
    ) -> Result<(), Error> {
        validate::network_name(&list.name)?;
        if list.disable_gc {
            return Ok(());
        }
        let _alone = lock::alone(&self.cache_dir).map_err(|cause| self.not_locked(&cause))?;
        let survey = self.survey(&list.name);
        let valid = valid(&survey.entries);
        let gap = match plugin_gc {
            PluginGc::Sent => survey.failure,
            _ => survey.failure.or_else(|| unreadable(&survey.unreadable)),
        };
        let is_sent = match plugin_gc {
            PluginGc::Sent => true,
            PluginGc::SentIfCacheIsWhole => gap.is_none(),
            PluginGc::NotSent => false,
        };
        let mut errors = Vec::from_iter(gap);
        errors.extend(self.del_all_but(list, &survey.entries, &valid));
        if is_sent && list.version >= Command::Gc.since() {
            errors.extend(self.gc_each(list, &valid));
        }
        Error::join(errors)
    }

    fn survey(&self, network: &str) -> Survey {
        match cache::list(&self.cache_dir, None) {
            Ok((mut entries, mut unreadable)) => {
                entries.retain(|entry| entry.network == network);
                let prefix = format!("{network}-");
                unreadable.retain(|file| {
                    file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
                });
                Survey { entries, unreadable, failure: None }
            }
            Err(cause) => {
                let doing = format!("list the cache {}", cache::results(&self.cache_dir).display());
                let failure = Some(Error::because(Code::IO, doing, &cause));
                Survey { failure, ..Survey::default() }
            }
        }
    }

    fn del_all_but(
        &self,
        list: &NetworkList,
        cached: &[Entry],
        valid: &[Attachment],
    ) -> Vec<Error> {
        let keep: HashSet<&Attachment> = valid.iter().collect();
        let stale = cached.iter().filter(|entry| !keep.contains(&entry.attachment()));
        stale
            .filter_map(|entry| {
                let error = self.del_locked(list, &entry.container).err()?;
                let Container { id, ifname, .. } = &entry.container;
                let msg = format!("failed to delete stale attachment {id} {ifname}: {}", error.msg);
                Some(Error { msg, ..error })
            })
            .collect()
    }

    fn gc_each(&self, list: &NetworkList, valid: &[Attachment]) -> Vec<Error> {
        let gc = |plugin: &PluginConf| {
            let mut config = bare_config(list, plugin);
            config.insert("cni.dev/valid-attachments".into(), json!(valid));
            // The specification once called it so, and plugins may still look there.
            config.insert("cni.dev/attachments".into(), json!(valid));
            self.call(&self.find(plugin)?, Command::Gc, &Container::default(), config)
        };
        let each = list.plugins.iter();
        each.filter_map(|plugin| gc(plugin).err().map(|error| failed(plugin, "gc", error)))
            .collect()
    }
}

fn unreadable(files: &[PathBuf]) -> Option<Error> {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let msg = format!("cannot tell which attachment this is about: {}", names.join(", "));
    (!files.is_empty()).then(|| Error::new(Code::IO, msg))
}
