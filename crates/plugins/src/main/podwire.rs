// SPDX-License-Identifier: Apache-2.0
//! `podwire`: runs a whole list of plugins in one process. It calls the plugins' functions in the
//! order of the list, with the configuration that a runtime would pass to each.

mod before_link_up;
pub mod convert;

use std::sync::Arc;

use cni::delegate;
use cni::{BeforeLinkUp, CniResult, Code, Command, Error, Interface, Plugin, Request, Version};
use serde::Deserialize;
use serde_json::{Map, Value};

use self::before_link_up::EarlyLimits;
use crate::attach::undo::or_undo;

pub const PLUGIN: Plugin = Plugin {
    name: "podwire",
    about: "runs a whole list of plugins in one process",
    versions: Version::ALL,
    add,
    del,
    check,
    status,
    gc,
};

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodwireConf {
    plugins: Vec<Map<String, Value>>,
    args: Option<Value>,
    runtime_config: Map<String, Value>,
}

/// A plugin of the list with its configuration.
struct Step {
    plugin: &'static Plugin,
    config: Map<String, Value>,
    capabilities: Vec<String>,
}

/// The list; each plugin exists and supports the configuration's version.
struct List {
    steps: Vec<Step>,
    args: Option<Value>,
    runtime_config: Map<String, Value>,
    /// The depth of the list's plugins, see [`cni::Delegation::depth`].
    depth: u32,
}

impl List {
    fn parse(request: &Request) -> Result<List, Error> {
        let conf: PodwireConf = request.conf()?;
        let depth = delegate::deeper(request)?;
        if conf.plugins.is_empty() {
            let msg = "key \"plugins\" is empty, a list of plugins is required";
            return Err(Error::invalid_config(msg));
        }
        let numbered = conf.plugins.into_iter().enumerate();
        let steps = numbered.map(|(at, config)| parse_step(request, at, config));
        Ok(List {
            steps: steps.collect::<Result<_, _>>()?,
            args: conf.args,
            runtime_config: conf.runtime_config,
            depth,
        })
    }

    /// The request that a runtime would make to this plugin.
    fn request<'host>(
        &self,
        request: &Request<'host>,
        step: &Step,
        command: Command,
        prev_result: Option<&Value>,
    ) -> Request<'host> {
        let mut config = step.config.clone();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                config.insert(key.to_owned(), value);
            }
        };
        put("name", Some(request.network.as_str().into()));
        put("cniVersion", Some(request.version.as_str().into()));
        put("prevResult", prev_result.cloned());
        put("args", self.args.clone());
        let enabled = self.runtime_config.iter();
        let enabled = enabled.filter(|(name, _)| step.capabilities.contains(name));
        let enabled: Map<String, Value> =
            enabled.map(|(name, value)| (name.clone(), value.clone())).collect();
        put("runtimeConfig", (!enabled.is_empty()).then_some(Value::Object(enabled)));
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            put(key, request.config.get(key).cloned());
        }
        let mut call = Request { command, config: Arc::new(config), ..request.clone() };
        call.delegation.depth = self.depth;
        call
    }
}

fn parse_step(request: &Request, at: usize, config: Map<String, Value>) -> Result<Step, Error> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct StepConf {
        r#type: String,
        capabilities: std::collections::BTreeMap<String, bool>,
    }
    let conf: StepConf = gojson::decode_object(&config).map_err(|problem| {
        Error::because(Code::INVALID_CONFIG, format!("key \"plugins[{at}]\""), &problem)
    })?;
    let kind = conf.r#type;
    let plugin = request.host.plugin(&kind).filter(|plugin| plugin.name != PLUGIN.name);
    let plugin = plugin.ok_or_else(|| {
        let names = request.host.plugins.iter().map(|plugin| plugin.name);
        let names: Vec<&str> = names.filter(|name| *name != PLUGIN.name).collect();
        Error::invalid_config(format!("key \"plugins[{at}].type\" is {kind:?}"))
            .with_details(format!("allowed are {}", names.join(", ")))
    })?;
    if !plugin.versions.contains(&request.version) {
        let msg = format!("plugin {kind:?} does not support version {}", request.version);
        return Err(Error::new(Code::INCOMPATIBLE_VERSION, msg));
    }
    let enabled = conf.capabilities.into_iter().filter(|(_, enabled)| *enabled);
    Ok(Step { plugin, config, capabilities: enabled.map(|(name, _)| name).collect() })
}

fn add(request: &Request) -> Result<CniResult, Error> {
    let list = List::parse(request)?;
    let mut result = request.prev_result()?.map(Arc::new);
    let limits = EarlyLimits::of(&list, request);
    let hook = |interfaces: &[Interface]| limits.run(interfaces);
    or_undo(|undo| {
        undo.push(|| limits.rollback());
        for step in &list.steps {
            if limits.has_run(step) {
                result = result.map(|result| limits.complete(result));
                continue;
            }
            let mut call = list.request(request, step, Command::Add, None);
            call.delegation.prev_result = result;
            call.delegation.before_link_up = limits.is_pending().then_some(BeforeLinkUp(&hook));
            let added = (step.plugin.add)(&call).map_err(|error| failed(step, error))?;
            result = Some(Arc::new(added));
            undo.push(move || {
                // The error that caused the rollback is the one to report.
                let _ = (step.plugin.del)(&Request { command: Command::Del, ..call });
            });
        }
        Ok(result.map(Arc::unwrap_or_clone).unwrap_or_default())
    })
}

/// In reverse order; a failure does not stop the others.
fn del(request: &Request) -> Result<(), Error> {
    let list = List::parse(request)?;
    // An ADD in this process passes its result as a value, see `Delegation::prev_result`.
    let result =
        request.config.get("prevResult").filter(|_| request.delegation.prev_result.is_none());
    each(list.steps.iter().rev(), |step| {
        (step.plugin.del)(&list.request(request, step, Command::Del, result))
    })
}

fn check(request: &Request) -> Result<(), Error> {
    let list = List::parse(request)?;
    let result = request.config.get("prevResult");
    list.steps.iter().try_for_each(|step| {
        let call = list.request(request, step, Command::Check, result);
        (step.plugin.check)(&call).map_err(|error| failed(step, error))
    })
}

fn status(request: &Request) -> Result<(), Error> {
    let list = List::parse(request)?;
    list.steps.iter().try_for_each(|step| {
        let call = list.request(request, step, Command::Status, None);
        (step.plugin.status)(&call).map_err(|error| failed(step, error))
    })
}

fn gc(request: &Request) -> Result<(), Error> {
    let list = List::parse(request)?;
    each(list.steps.iter(), |step| {
        (step.plugin.gc)(&list.request(request, step, Command::Gc, None))
    })
}

fn each<'a>(
    steps: impl Iterator<Item = &'a Step>,
    call: impl Fn(&Step) -> Result<(), Error>,
) -> Result<(), Error> {
    let failures = steps.filter_map(|step| call(step).err().map(|error| failed(step, error)));
    Error::join(failures.collect())
}

/// Adds the name of the plugin to an error.
fn failed(step: &Step, error: Error) -> Error {
    Error { msg: format!("{}: {}", step.plugin.name, error.msg), ..error }
}
