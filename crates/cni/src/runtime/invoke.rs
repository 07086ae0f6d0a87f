// SPDX-License-Identifier: Apache-2.0
//! One call of one plugin, as a function or as a process: its input, and its result in the list's version.

use serde_json::{Map, Value};

use super::{Container, NetworkList, PluginConf, Runtime};
use crate::delegate::{self, Target};
use crate::error::Error;
use crate::exec;
use crate::plugin::{self, Env};
use crate::request::Command;
use crate::result::CniResult;
use crate::version::Version;

pub(super) fn find(runtime: &Runtime, plugin: &PluginConf) -> Result<Target, Error> {
    delegate::find(runtime.host, &plugin.kind, &runtime.path)
}

/// Runs a command. Returns the result of an ADD, and `None` for other commands.
pub(super) fn invoke(
    runtime: &Runtime,
    target: &Target,
    command: Command,
    container: &Container,
    config: Map<String, Value>,
) -> Result<Option<Value>, Error> {
    match target {
        Target::Function(plugin) => invoke_function(runtime, plugin, command, container, config),
        Target::Program(file) => {
            let variables = exec::Variables {
                command: command.as_str(),
                container_id: &container.id,
                netns: &container.netns,
                ifname: &container.ifname,
                args: &container.joined_args(),
                path: &runtime.path,
                depth: 0,
            };
            let stdin = Value::Object(config).to_string();
            let printed = exec::run(file, &variables, stdin.as_bytes(), runtime.timeout)?;
            (command == Command::Add).then(|| exec::parse_output(&printed)).transpose()
        }
    }
}

fn invoke_function(
    runtime: &Runtime,
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
        path: runtime.path.clone(),
        netns_override: if runtime.allow_own_netns { "1".into() } else { String::new() },
        depth: 0,
    };
    plugin::check_env(&env)?;
    // Only a printed error object needs the version.
    let mut version = Version::LATEST;
    // The runtime itself undoes an ADD whose result it cannot store.
    let mut deliver = |_: &Value| Ok(());
    let config = plugin::Config { object: config, text: Vec::new() };
    plugin::perform(plugin, command, &env, config, runtime.host, &mut deliver, &mut version)
}

/// Returns the input of a plugin for a command on a container.
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
    let enabled = container.capability_args.iter().filter(is_enabled);
    let runtime_config: Map<String, Value> =
        enabled.map(|(name, value)| (name.clone(), value.clone())).collect();
    if !runtime_config.is_empty() {
        config.insert("runtimeConfig".into(), Value::Object(runtime_config));
    }
    config
}

/// Returns the input of a plugin for a command on the whole network.
pub(super) fn bare_config(list: &NetworkList, plugin: &PluginConf) -> Map<String, Value> {
    let mut config = plugin.config.clone();
    config.insert("name".into(), list.name.as_str().into());
    config.insert("cniVersion".into(), list.version.as_str().into());
    config
}

/// Converts a printed result to the list's version. A result that is already in that version stays as printed, so that
/// keys unknown to this library are kept.
pub(super) fn in_list_version(printed: Value, version: Version) -> Result<Value, Error> {
    let parsed = CniResult::parse(printed.clone(), version)?;
    let Value::Object(mut raw) = printed else { return parsed.to_json(version) };
    match gojson::take(&mut raw, "cniVersion") {
        Some(Value::String(stated)) if !stated.is_empty() && stated != version.as_str() => {
            parsed.to_json(version)
        }
        _ => {
            raw.insert("cniVersion".into(), version.as_str().into());
            Ok(Value::Object(raw))
        }
    }
}

/// Adds the plugin's name and the command to its error. The code stays the plugin's.
pub(super) fn named(plugin: &PluginConf, command: &str, error: Error) -> Error {
    let msg = format!("plugin type={:?} failed ({command}): {}", plugin.kind, error.msg);
    Error { msg, ..error }
}
