// SPDX-License-Identifier: Apache-2.0
//! The runtime side: what kubelet, containerd or cnitool need to attach containers to networks.
//! [`NetworkList`] is a configuration, [`conf_dir`] finds it, [`Runtime`] runs its plugins and
//! keeps [`cache`], in the format and the place of the reference library.

pub mod cache;
pub mod conf_dir;
mod gc;
mod invoke;
mod list;
mod lock;
mod source;
mod validate;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use self::cache::Entry;
use self::invoke::{bare_config, config_for, failed, settle};

pub use self::list::{NetworkList, PluginConf};
use crate::delegate::Target;
use crate::error::{Code, Error};
use crate::plugin::Host;
use crate::request::{Attachment, Command};
use crate::result::CniResult;
use crate::validate;

/// Where the cache lives unless somebody says otherwise.
pub const DEFAULT_CACHE_DIR: &str = "/var/lib/cni";

/// How plugins are found and run, and where their results are kept.
///
/// Runtimes that share a cache wait for each other as the specification asks: operations on one
/// container run one after the other, GC runs alone. So a plugin must not use a runtime with the
/// same cache for the same container.
#[derive(Clone, Debug)]
pub struct Runtime<'h> {
    /// This program; plugins that it holds are called as functions, see [`crate::delegate::find`].
    pub host: &'h Host,
    /// CNI_PATH: directories with `:` between them.
    pub path: String,
    /// Home of results and locks, usually [`DEFAULT_CACHE_DIR`].
    pub cache_dir: PathBuf,
    /// How long one started plugin may take. Functions of this program have no deadline.
    pub timeout: Option<Duration>,
    /// Whether CNI_NETNS_OVERRIDE is set in this process's environment, which plugins inherit: a
    /// container may then be in the caller's own namespace.
    pub allow_own_netns: bool,
}

/// One interface of one container, and what the runtime wants to tell plugins about it.
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
    /// Values for capabilities, such as `portMappings`; a plugin sees those it has enabled.
    pub capability_args: Map<String, Value>,
}

impl Container {
    /// As GC speaks of it.
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
    /// The usual runtime: default cache, no deadline.
    pub fn new(host: &'h Host, path: impl Into<String>) -> Runtime<'h> {
        Runtime {
            host,
            path: path.into(),
            cache_dir: PathBuf::from(DEFAULT_CACHE_DIR),
            timeout: None,
            allow_own_netns: false,
        }
    }

    /// Attaches a container. On failure everything is undone before the error is returned, except
    /// where an earlier ADD of the same attachment is remembered and this one got nowhere: then the
    /// earlier one is left as it is.
    pub fn add(&self, list: &NetworkList, container: &Container) -> Result<CniResult, Error> {
        CniResult::parse(self.add_raw(list, container)?, list.version)
    }

    /// The same, with the result as the last plugin printed it, in the list's version.
    pub fn add_raw(&self, list: &NetworkList, container: &Container) -> Result<Value, Error> {
        check_names(list, container)?;
        // Before anything is done, so that nothing has to be undone for a plugin not installed.
        let targets = self.find_all(list)?;
        let _turn = lock::container(&self.cache_dir, &container.id)
            .map_err(|cause| self.not_locked(&cause))?;
        let was_attached = self.cached(&list.name, container).is_some();
        let mut last = None;
        let added = self.add_each(list, container, &targets, &mut last);
        match added.and_then(|result| self.remember(list, container, result)) {
            Ok(result) => Ok(result),
            // Once a plugin has begun anew, what is remembered is no longer what is there.
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
            let printed = self.call(target, Command::Add, container, config);
            let result =
                printed.and_then(|printed| settle(printed.unwrap_or_default(), list.version));
            *last = Some(result.map_err(|error| failed(plugin, "add", error))?);
        }
        last.clone().ok_or_else(|| Error::invalid_config("network without plugins"))
    }

    fn remember(
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

    /// DEL by every plugin, also those whose turn had not come: what a runtime does after a failed
    /// ADD. They are given the last result there was, for some find what to remove only there.
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
            Err(undoing) if cause(&undoing) == cause(&error) => {
                add_details(error, "undoing it failed for the same reason")
            }
            Err(undoing) => add_details(error, &format!("undoing it failed as well: {undoing}")),
        }
    }

    /// Asks every plugin whether the attachment is as it was made.
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
        let _turn = self.lock_if_possible(container)?;
        let entry = cache::read(&self.cache_dir, &list.name, container)?;
        let result = entry.and_then(|entry| entry.result);
        let result = result.map(|result| settle(result, list.version)).transpose()?;
        for plugin in &list.plugins {
            let config = config_for(list, plugin, container, result.as_ref());
            let checked = self
                .find(plugin)
                .and_then(|target| self.call(&target, Command::Check, container, config));
            checked.map_err(|error| failed(plugin, "check", error))?;
        }
        Ok(())
    }

    /// Detaches a container, in reverse order, through every plugin whatever fails on the way.
    pub fn del(&self, list: &NetworkList, container: &Container) -> Result<(), Error> {
        check_names(list, container)?;
        let _turn = self.lock_if_possible(container)?;
        self.del_locked(list, container)
    }

    fn del_locked(&self, list: &NetworkList, container: &Container) -> Result<(), Error> {
        let entry = self.cached(&list.name, container);
        let result = entry.and_then(|entry| settle(entry.result?, list.version).ok());
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
            self.call(&self.find(plugin)?, Command::Del, container, config)
        };
        let each = list.plugins.iter().rev();
        each.filter_map(|plugin| del(plugin).err().map(|error| failed(plugin, "delete", error)))
            .collect()
    }

    /// Why an ADD could not be served now: the first plugin's own error and code.
    pub fn status(&self, list: &NetworkList) -> Result<(), Error> {
        if list.version < Command::Status.since() {
            return Ok(());
        }
        for plugin in &list.plugins {
            let (target, config) = (self.find(plugin)?, bare_config(list, plugin));
            self.call(&target, Command::Status, &Container::default(), config)
                .map_err(|error| failed(plugin, "status", error))?;
        }
        Ok(())
    }

    /// What is known of an attachment; `None` where nothing (readable) is.
    pub fn cached(&self, network: &str, container: &Container) -> Option<Entry> {
        cache::read(&self.cache_dir, network, container).ok().flatten()
    }

    /// All attachments of this network, of this container, or both; unreadable ones are left out.
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
        let each = list.plugins.iter();
        each.map(|plugin| self.find(plugin).map_err(|error| failed(plugin, "add", error))).collect()
    }

    /// Takes the container's lock. If no lock file can be made, removing is still better than not
    /// removing; a lock that another process holds is an error.
    fn lock_if_possible(&self, container: &Container) -> Result<Option<lock::Turn>, Error> {
        match lock::container(&self.cache_dir, &container.id) {
            Ok(turn) => Ok(Some(turn)),
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

/// The first version in which DEL is given the result of ADD.
const DEL_GETS_RESULT: crate::Version = crate::Version::V0_4_0;

/// What is about to become the name of a file, and the environment of plugins.
fn check_names(list: &NetworkList, container: &Container) -> Result<(), Error> {
    validate::container_id(&container.id)?;
    validate::network_name(&list.name)?;
    validate::interface_name(&container.ifname)?;
    // The file of the cache has all of them in its name, and a dot while it is written.
    let length = list.name.len() + container.id.len() + container.ifname.len() + ".--".len();
    if length <= validate::NAME_MAX {
        return Ok(());
    }
    let msg = format!(
        "network name, container ID and interface name need {length} bytes in the name of a cached \
         result, at most {} are allowed",
        validate::NAME_MAX
    );
    Err(Error::invalid_config(msg).with_details("choose a shorter network name"))
}

/// What a plugin said, without its name and the verb that [`failed`] has put before it.
fn cause(error: &Error) -> &str {
    error.msg.split_once("): ").map_or(&*error.msg, |(_, cause)| cause)
}

fn add_details(mut error: Error, more: &str) -> Error {
    if !error.details.is_empty() {
        error.details.push_str("; ");
    }
    error.details.push_str(more);
    error
}
