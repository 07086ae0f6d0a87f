// SPDX-License-Identifier: Apache-2.0
//! `podwire`: a whole list of plugins by one process. It calls the functions that the list's plugins
//! are, in the list's order, with what a runtime would send to each.

mod before_link_up;
pub mod convert;

use std::sync::Arc;

use cni::delegate;
use cni::{BeforeLinkUp, CniResult, Code, Command, Error, Interface, Plugin, Request, Version};
use serde::Deserialize;
use serde_json::{Map, Value};

use self::before_link_up::Early;
use crate::attach::undo::or_undo;

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    name: "podwire",
    about: "does the work of a whole list of plugins in one process",
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

/// A plugin of the list with its part of the configuration.
struct Step {
    plugin: &'static Plugin,
    config: Map<String, Value>,
    capabilities: Vec<String>,
}

/// The list, each plugin known and speaking the configuration's version.
struct List {
    steps: Vec<Step>,
    args: Option<Value>,
    runtime_config: Map<String, Value>,
    /// Of the list's plugins, see [`cni::Delegation::depth`].
    depth: u32,
}

impl List {
    fn parse(request: &Request) -> Result<List, Error> {
        let conf: PodwireConf = request.conf()?;
        let depth = delegate::deeper(request)?;
        if conf.plugins.is_empty() {
            let msg = "key \"plugins\" must be a list of the plugins to call, and it is empty";
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

    /// What a runtime would send to this plugin.
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
        let told = self.runtime_config.iter().filter(|(name, _)| step.capabilities.contains(name));
        let told: Map<String, Value> =
            told.map(|(name, value)| (name.clone(), value.clone())).collect();
        put("runtimeConfig", (!told.is_empty()).then_some(Value::Object(told)));
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            put(key, request.config.get(key).cloned());
        }
        let mut asked = Request { command, config: Arc::new(config), ..request.clone() };
        asked.delegation.depth = self.depth;
        asked
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
            .with_details(format!("one process can do {}", names.join(", ")))
    })?;
    if !plugin.versions.contains(&request.version) {
        let msg = format!("plugin {kind:?} does not speak version {}", request.version);
        return Err(Error::new(Code::INCOMPATIBLE_VERSION, msg));
    }
    let enabled = conf.capabilities.into_iter().filter(|(_, enabled)| *enabled);
    Ok(Step { plugin, config, capabilities: enabled.map(|(name, _)| name).collect() })
}

fn add(request: &Request) -> Result<CniResult, Error> {
    let list = List::parse(request)?;
    let mut result = request.prev_result()?.map(Arc::new);
    let early = Early::of(&list, request);
    let shape = |made: &[Interface]| early.shape(made);
    or_undo(|undo| {
        undo.push(|| early.take_back());
        for step in &list.steps {
            if early.has_done(step) {
                result = result.map(|result| early.complete(result));
                continue;
            }
            let mut asked = list.request(request, step, Command::Add, None);
            asked.delegation.prev_result = result;
            asked.delegation.before_link_up = early.is_waiting().then_some(BeforeLinkUp(&shape));
            let made = (step.plugin.add)(&asked).map_err(|error| failed(step, error))?;
            result = Some(Arc::new(made));
            undo.push(move || {
                // The error that led here is the one to tell.
                let _ = (step.plugin.del)(&Request { command: Command::Del, ..asked });
            });
        }
        Ok(result.map(Arc::unwrap_or_clone).unwrap_or_default())
    })
}

/// Backwards, and none is held up by one that fails.
fn del(request: &Request) -> Result<(), Error> {
    let list = List::parse(request)?;
    // An ADD of this process hands its result on as a value, see `Delegation::prev_result`.
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
        let asked = list.request(request, step, Command::Check, result);
        (step.plugin.check)(&asked).map_err(|error| failed(step, error))
    })
}

fn status(request: &Request) -> Result<(), Error> {
    let list = List::parse(request)?;
    list.steps.iter().try_for_each(|step| {
        let asked = list.request(request, step, Command::Status, None);
        (step.plugin.status)(&asked).map_err(|error| failed(step, error))
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

/// Which of them it was.
fn failed(step: &Step, error: Error) -> Error {
    Error { msg: format!("{}: {}", step.plugin.name, error.msg), ..error }
}
