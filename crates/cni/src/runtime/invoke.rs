// SPDX-License-Identifier: Apache-2.0
//! One call of one plugin: what it is sent, whether it is a function or a program, and what its
//! result is once it is in the list's version.

use serde_json::{Map, Value};

use super::{Container, NetworkList, PluginConf, Runtime};
use crate::delegate::{self, Target};
use crate::error::Error;
use crate::exec;
use crate::plugin::{self, Env};
use crate::request::Command;
use crate::result::CniResult;
use crate::version::Version;

impl Runtime<'_> {
    pub(super) fn find(&self, plugin: &PluginConf) -> Result<Target, Error> {
        delegate::find(self.host, &plugin.kind, &self.path)
    }

    /// Runs a verb. What comes back is the result of an ADD, and nothing for other verbs.
    pub(super) fn call(
        &self,
        target: &Target,
        command: Command,
        container: &Container,
        config: Map<String, Value>,
    ) -> Result<Option<Value>, Error> {
        match target {
            Target::Function(plugin) => self.call_function(plugin, command, container, config),
            Target::Program(file) => {
                let variables = exec::Variables {
                    command: command.as_str(),
                    container_id: &container.id,
                    netns: &container.netns,
                    ifname: &container.ifname,
                    args: &container.joined_args(),
                    path: &self.path,
                    depth: 0,
                };
                let stdin = Value::Object(config).to_string();
                let printed = exec::run(file, &variables, stdin.as_bytes(), self.timeout)?;
                (command == Command::Add).then(|| exec::parse_output(&printed)).transpose()
            }
        }
    }

    fn call_function(
        &self,
        plugin: &plugin::Plugin,
        command: Command,
        container: &Container,
        config: Map<String, Value>,
    ) -> Result<Option<Value>, Error> {
        let env = Env {
            command: command.as_str().to_owned(),
            container_id: container.id.clone(),
            netns: container.netns.clone(),
            ifname: container.ifname.clone(),
            args: container.joined_args(),
            path: self.path.clone(),
            netns_override: if self.allow_own_netns { "1".into() } else { String::new() },
            depth: 0,
        };
        plugin::check_env(&env)?;
        // An error object would carry it; the error itself does not.
        let mut version = Version::LATEST;
        // The caller undoes an ADD whose result it cannot keep.
        let mut deliver = |_: &Value| Ok(());
        let config = plugin::Config { object: config, text: Vec::new() };
        plugin::perform(plugin, command, &env, config, self.host, &mut deliver, &mut version)
    }
}

/// What a plugin is sent about a container.
pub(super) fn config_for(
    list: &NetworkList,
    plugin: &PluginConf,
    container: &Container,
    prev_result: Option<&Value>,
) -> Map<String, Value> {
    let mut config = bare_config(list, plugin);
    if let Some(result) = prev_result {
        config.insert("prevResult".into(), result.clone());
    }
    let is_enabled = |(name, _): &(&String, &Value)| plugin.capabilities.contains(*name);
    let told = container.capability_args.iter().filter(is_enabled);
    let told: Map<String, Value> =
        told.map(|(name, value)| (name.clone(), value.clone())).collect();
    if !told.is_empty() {
        config.insert("runtimeConfig".into(), Value::Object(told));
    }
    config
}

/// What a plugin is sent about the network alone.
pub(super) fn bare_config(list: &NetworkList, plugin: &PluginConf) -> Map<String, Value> {
    let mut config = plugin.config.clone();
    config.insert("name".into(), list.name.as_str().into());
    config.insert("cniVersion".into(), list.version.as_str().into());
    config
}

/// A printed result in this version. One that is in it already stays as it was printed, so that
/// nothing in it is lost to plugins that know more than we do.
pub(super) fn settle(printed: Value, version: Version) -> Result<Value, Error> {
    let understood = CniResult::parse(printed.clone(), version)?;
    let Value::Object(mut raw) = printed else { return understood.to_json(version) };
    match gojson::take(&mut raw, "cniVersion") {
        Some(Value::String(stated)) if !stated.is_empty() && stated != version.as_str() => {
            understood.to_json(version)
        }
        _ => {
            raw.insert("cniVersion".into(), version.as_str().into());
            Ok(Value::Object(raw))
        }
    }
}

/// The error of a plugin, with its name; the plugin's code stays.
pub(super) fn failed(plugin: &PluginConf, verb: &str, error: Error) -> Error {
    let msg = format!("plugin type={:?} failed ({verb}): {}", plugin.kind, error.msg);
    Error { msg, ..error }
}
