// SPDX-License-Identifier: Apache-2.0
//! The runtime side: functions that kubelet, containerd or cnitool need to attach containers to networks.
//!
//! [`conf_dir`] finds a [`NetworkList`], [`Runtime`] runs its plugins, and [`cache`] keeps their results in the format
//! and the directory of the reference library, libcni.

pub mod cache;
pub mod conf_dir;
mod gc;
mod invoke;
mod list;
mod lock;
mod source;
mod validate;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use self::cache::Entry;
use self::gc::PluginGc;
use self::invoke::{bare_config, config_for, find, in_list_version, invoke, named};
pub use self::list::{NetworkList, PluginConf};
use crate::Version;
use crate::delegate::Target;
use crate::error::{Code, Error};
use crate::plugin::Host;
use crate::request::{Attachment, Command};
use crate::result::CniResult;

/// Directory of the cache unless the caller chooses another.
pub const DEFAULT_CACHE_DIR: &str = "/var/lib/cni";

/// First version in which DEL gets the result of ADD.
const DEL_GETS_RESULT: Version = Version::V0_4_0;

/// How plugins are found and run, and where their results are kept.
///
/// Runtimes that share a cache wait for each other, as the specification requires: operations on one container run one
/// after the other, and GC runs alone. So a plugin must not use a runtime with the same cache for the same container.
#[derive(Clone, Debug)]
pub struct Runtime<'h> {
    /// This program. Its built-in plugins are called as functions, see [`crate::delegate::find`].
    pub host: &'h Host,
    /// CNI_PATH: directories separated by `:`.
    pub path: String,
    /// Directory of results and locks, usually [`DEFAULT_CACHE_DIR`].
    pub cache_dir: PathBuf,
    /// Time limit for each plugin process. Built-in plugins have no time limit.
    pub timeout: Option<Duration>,
    /// Whether CNI_NETNS_OVERRIDE is set in this process's environment, which plugins inherit. A
    /// container may then be in the caller's own namespace.
    pub allow_own_netns: bool,
}

/// One interface of one container, with the runtime's arguments for plugins.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Container {
    /// CNI_CONTAINERID.
    pub id: String,
    /// CNI_NETNS; may be empty for DEL.
    pub netns: String,
    /// CNI_IFNAME.
    pub ifname: String,
    /// CNI_ARGS in their order.
    pub args: Vec<(String, String)>,
    /// Values for capabilities, such as `portMappings`. A plugin gets those that it has enabled.
    pub capability_args: Map<String, Value>,
}

impl Container {
    /// Returns the attachment as GC lists it.
    pub fn attachment(&self) -> Attachment {
        Attachment { container_id: self.id.clone(), ifname: self.ifname.clone() }
    }

    fn joined_args(&self) -> String {
        let pairs: Vec<String> =
            self.args.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(";")
    }
}

impl<'h> Runtime<'h> {
    /// Creates a runtime with the default cache and without a time limit.
    pub fn new(host: &'h Host, path: impl Into<String>) -> Runtime<'h> {
        Runtime {
            host,
            path: path.into(),
            cache_dir: PathBuf::from(DEFAULT_CACHE_DIR),
            timeout: None,
            allow_own_netns: false,
        }
    }

    /// Attaches a container. On failure everything is undone before the error is returned. There is one exception: if
    /// the cache has an earlier ADD of the same attachment and no plugin of this ADD succeeded, the earlier attachment
    /// is kept.
    pub fn add(&self, list: &NetworkList, container: &Container) -> Result<CniResult, Error> {
        CniResult::parse(self.add_raw(list, container)?, list.version)
    }

    /// Attaches a container like [`Runtime::add`]. Returns the result as the last plugin printed it, in the list's
    /// version.
    pub fn add_raw(&self, list: &NetworkList, container: &Container) -> Result<Value, Error> {
        check_names(list, container)?;
        // Before the first plugin runs, so that a missing plugin leaves nothing to undo.
        let targets = self.find_all(list)?;
        let _lock = lock::container(&self.cache_dir, &container.id)
            .map_err(|cause| self.not_locked(&cause))?;
        let was_attached = self.cached(&list.name, container).is_some();
        let mut last = None;
        let added = self.add_each(list, container, &targets, &mut last);
        match added.and_then(|result| self.store_result(list, container, result)) {
            Ok(result) => Ok(result),
            // Once a plugin has succeeded, the cached result no longer describes the attachment.
            Err(error) if was_attached && last.is_none() => {
                Err(add_details(error, "an attachment made before is left as it is"))
            }
            Err(error) => Err(self.undo(list, container, last.as_ref(), error)),
        }
    }

    fn add_each(
        &self,
        list: &NetworkList,
        container: &Container,
        targets: &[Target],
        last: &mut Option<Value>,
    ) -> Result<Value, Error> {
        for (plugin, target) in list.plugins.iter().zip(targets) {
            let config = config_for(list, plugin, container, last.as_ref());
            let printed = invoke(self, target, Command::Add, container, config);
            let result = printed
                .and_then(|printed| in_list_version(printed.unwrap_or_default(), list.version));
            *last = Some(result.map_err(|error| named(plugin, "add", error))?);
        }
        last.clone().ok_or_else(|| Error::invalid_config("network without plugins"))
    }

    fn store_result(
        &self,
        list: &NetworkList,
        container: &Container,
        result: Value,
    ) -> Result<Value, Error> {
        let entry = Entry {
            network: list.name.clone(),
            container: container.clone(),
            config: list.bytes.clone(),
            result: Some(result.clone()),
            file: cache::path(&self.cache_dir, &list.name, container),
        };
        cache::write(&self.cache_dir, &entry).map(|()| result)
    }

    /// Runs DEL of every plugin after a failed ADD, even of plugins whose ADD did not run. Some plugins find what to
    /// remove only in the last result, so all get it.
    fn undo(
        &self,
        list: &NetworkList,
        container: &Container,
        last: Option<&Value>,
        error: Error,
    ) -> Error {
        let last = last.filter(|_| list.version >= DEL_GETS_RESULT);
        match Error::join(self.del_each(list, container, last)) {
            Ok(()) => {
                cache::remove(&self.cache_dir, &list.name, container);
                error
            }
            Err(undoing) if plugin_message(&undoing) == plugin_message(&error) => {
                add_details(error, "undoing it failed for the same reason")
            }
            Err(undoing) => add_details(error, &format!("undoing it failed as well: {undoing}")),
        }
    }

    /// Asks every plugin whether the attachment is as ADD created it.
    pub fn check(&self, list: &NetworkList, container: &Container) -> Result<(), Error> {
        check_names(list, container)?;
        if list.version < Command::Check.since() {
            let stated = list.version.as_str();
            let msg =
                format!("configuration version {stated:?} does not support the CHECK command");
            return Err(Error::new(Code::INCOMPATIBLE_VERSION, msg));
        }
        if list.disable_check {
            return Ok(());
        }
        let _lock = self.lock_if_possible(container)?;
        let entry = cache::read(&self.cache_dir, &list.name, container)?;
        let result = entry.and_then(|entry| entry.result);
        let result = result.map(|result| in_list_version(result, list.version)).transpose()?;
        for plugin in &list.plugins {
            let config = config_for(list, plugin, container, result.as_ref());
            let checked = find(self, plugin)
                .and_then(|target| invoke(self, &target, Command::Check, container, config));
            checked.map_err(|error| named(plugin, "check", error))?;
        }
        Ok(())
    }

    /// Detaches a container. Runs DEL of every plugin in reverse order, even after failures.
    pub fn del(&self, list: &NetworkList, container: &Container) -> Result<(), Error> {
        check_names(list, container)?;
        let _lock = self.lock_if_possible(container)?;
        self.del_locked(list, container)
    }

    fn del_locked(&self, list: &NetworkList, container: &Container) -> Result<(), Error> {
        let entry = self.cached(&list.name, container);
        let result = entry.and_then(|entry| in_list_version(entry.result?, list.version).ok());
        let result = result.filter(|_| list.version >= DEL_GETS_RESULT);
        Error::join(self.del_each(list, container, result.as_ref()))?;
        cache::remove(&self.cache_dir, &list.name, container);
        Ok(())
    }

    fn del_each(
        &self,
        list: &NetworkList,
        container: &Container,
        result: Option<&Value>,
    ) -> Vec<Error> {
        let del = |plugin: &PluginConf| {
            let config = config_for(list, plugin, container, result);
            invoke(self, &find(self, plugin)?, Command::Del, container, config)
        };
        let plugins = list.plugins.iter().rev();
        plugins
            .filter_map(|plugin| del(plugin).err().map(|error| named(plugin, "delete", error)))
            .collect()
    }

    /// Checks that every plugin can handle an ADD now. Returns the error of the first plugin that cannot.
    pub fn status(&self, list: &NetworkList) -> Result<(), Error> {
        if list.version < Command::Status.since() {
            return Ok(());
        }
        for plugin in &list.plugins {
            let (target, config) = (find(self, plugin)?, bare_config(list, plugin));
            invoke(self, &target, Command::Status, &Container::default(), config)
                .map_err(|error| named(plugin, "status", error))?;
        }
        Ok(())
    }

    /// Removes every attachment that is not in `valid`. The list must name all containers of the network, including
    /// those that other runtimes attached.
    pub fn gc(&self, list: &NetworkList, valid: &[Attachment]) -> Result<(), Error> {
        gc::collect(self, list, |_| valid.to_vec(), PluginGc::Always)
    }

    /// Removes every attachment that is not valid. `valid` is called with the network's cached attachments while the
    /// cache is locked: a list made earlier could miss an ADD that has just finished.
    ///
    /// A cache file that cannot be parsed may belong to a running container. Then only cached attachments are removed,
    /// the plugins' own GC is not run, and the error names the file.
    pub fn gc_with(
        &self,
        list: &NetworkList,
        valid: impl FnOnce(&[Entry]) -> Vec<Attachment>,
    ) -> Result<(), Error> {
        gc::collect(self, list, valid, PluginGc::IfCacheIsComplete)
    }

    /// Removes the cached attachments that are not valid, and nothing else: for callers that cannot know the
    /// containers of other runtimes. Files that cannot be parsed are an error, returned after all others are handled.
    pub fn del_stale(
        &self,
        list: &NetworkList,
        valid: impl FnOnce(&[Entry]) -> Vec<Attachment>,
    ) -> Result<(), Error> {
        gc::collect(self, list, valid, PluginGc::Never)
    }

    /// Checks that every plugin exists and supports the list's version. Returns the enabled capabilities.
    pub fn validate(&self, list: &NetworkList) -> Result<BTreeSet<String>, Error> {
        validate::validate(self, list)
    }

    /// Returns the versions that a plugin reports, including versions that this library does not know.
    pub fn plugin_versions(&self, kind: &str) -> Result<Vec<String>, Error> {
        validate::plugin_versions(self, kind)
    }

    /// Returns the cache entry of an attachment, or `None` if there is none or it cannot be parsed.
    pub fn cached(&self, network: &str, container: &Container) -> Option<Entry> {
        cache::read(&self.cache_dir, network, container).ok().flatten()
    }

    /// Returns all cached attachments of this network, of this container, or both. Leaves out files that cannot be
    /// parsed.
    pub fn cached_attachments(
        &self,
        network: Option<&str>,
        container_id: Option<&str>,
    ) -> Vec<Entry> {
        let (mut entries, _) = cache::list(&self.cache_dir, container_id).unwrap_or_default();
        entries.retain(|entry| network.is_none_or(|network| entry.network == network));
        entries
    }

    fn find_all(&self, list: &NetworkList) -> Result<Vec<Target>, Error> {
        let plugins = list.plugins.iter();
        plugins
            .map(|plugin| find(self, plugin).map_err(|error| named(plugin, "add", error)))
            .collect()
    }

    /// Takes the container's lock. If no lock file can be created, the operation continues without: an unlocked DEL is
    /// better than none. A lock that another process holds is an error.
    fn lock_if_possible(
        &self,
        container: &Container,
    ) -> Result<Option<lock::ContainerLock>, Error> {
        match lock::container(&self.cache_dir, &container.id) {
            Ok(lock) => Ok(Some(lock)),
            Err(cause) if cause.kind() == io::ErrorKind::TimedOut => Err(self.not_locked(&cause)),
            Err(_) => Ok(None),
        }
    }

    fn not_locked(&self, cause: &io::Error) -> Error {
        let is_busy = cause.kind() == io::ErrorKind::TimedOut;
        let code = if is_busy { Code::TRY_LATER } else { Code::IO };
        Error::because(code, format!("lock the cache {}", self.cache_dir.display()), cause)
    }
}

/// Checks names that become a file name and environment variables.
fn check_names(list: &NetworkList, container: &Container) -> Result<(), Error> {
    use crate::validate::{NAME_MAX, container_id, interface_name, network_name};
    container_id(&container.id)?;
    network_name(&list.name)?;
    interface_name(&container.ifname)?;
    // The name of the cache file contains all three, and starts with a dot while the file is written.
    let length = list.name.len() + container.id.len() + container.ifname.len() + ".--".len();
    if length <= NAME_MAX {
        return Ok(());
    }
    let msg = format!(
        "network name, container ID and interface name need {length} bytes in the name of a cached \
         result, at most {NAME_MAX} are allowed"
    );
    Err(Error::invalid_config(msg).with_details("choose a shorter network name"))
}

/// Returns the message of a plugin without the prefix that [`named`] has added.
fn plugin_message(error: &Error) -> &str {
    error.msg.split_once("): ").map_or(&*error.msg, |(_, message)| message)
}

fn add_details(mut error: Error, more: &str) -> Error {
    if !error.details.is_empty() {
        error.details.push_str("; ");
    }
    error.details.push_str(more);
    error
}
