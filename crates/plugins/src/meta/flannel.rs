// SPDX-License-Identifier: Apache-2.0
//! `flannel`: builds a configuration from the subnet that flannel's daemon wrote for this node, and
//! delegates to another plugin, by default `bridge`.

mod conf;
pub(crate) mod daemon;
mod scratch;

use std::sync::Arc;

use cni::delegate;
use cni::{CniResult, Code, Command, Error, Plugin, Request, Version};
use serde_json::{Map, Value};

use self::conf::Flannel;
use self::scratch::Scratch;
use crate::attach::netns;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "flannel",
    about: "configures another plugin with the subnet of flannel's daemon",
    versions: Version::ALL,
    add,
    del,
    check,
    status,
    gc,
};

/// Keys that belong to the call and not to the network: they are passed to the delegate and not
/// saved.
const CALL_KEYS: [&str; 4] =
    ["prevResult", "runtimeConfig", "cni.dev/valid-attachments", "cni.dev/attachments"];

fn add(request: &Request) -> Result<CniResult, Error> {
    let flannel = Flannel::parse(request)?;
    let env = daemon::read(&flannel.subnet_file).map_err(|error| {
        // A running agent can say why the file is missing.
        let ready = daemon::require_ready(flannel.agent_socket.as_deref(), Code::TRY_LATER);
        ready.err().unwrap_or_else(|| error.to_cni(Code::TRY_LATER))
    })?;
    let mut config = flannel.delegate_config(request, Some(&env))?;
    let target = delegate::find(request.host, conf::kind_of(&config)?, &request.path)?;
    // A second ADD must not overwrite the saved configuration of the first one.
    netns::refuse_existing(request)?;
    let scratch = Scratch::of(request, &flannel.data_dir);
    // The file of the Go plugin contains the capability arguments too.
    copy_keys(request, &mut config, &["runtimeConfig"]);
    scratch.put(&config)?;
    let delegated = Request { config: Arc::new(config), ..request.clone() };
    delegate::add(&delegated, &target).inspect_err(|_| {
        // Best effort: the first error is the one to report, and DEL removes the file.
        let _ = scratch.clear();
    })
}

/// Copies keys of the call into the delegate's configuration.
fn copy_keys(request: &Request, config: &mut Map<String, Value>, keys: &[&str]) {
    for key in keys {
        if let Some(value) = gojson::get(&request.config, key) {
            config.insert((*key).to_owned(), value.clone());
        }
    }
}

/// Calls a verb of the delegate with this configuration.
fn forward(
    request: &Request,
    mut config: Map<String, Value>,
    command: Command,
) -> Result<(), Error> {
    let kind = conf::kind_of(&config)?.to_owned();
    copy_keys(request, &mut config, &CALL_KEYS);
    let delegated = Request { config: Arc::new(config), ..request.clone() };
    delegate::forward(&delegated, &kind, command)
}

/// Uses the saved configuration of the ADD. If the file is lost, the current configuration also
/// finds everything that must be removed.
fn del(request: &Request) -> Result<(), Error> {
    let scratch = Scratch::of(request, &conf::data_dir_of(request));
    let saved = scratch.read()?.filter(|saved| conf::kind_of(saved).is_ok());
    let Some(config) = saved.or_else(|| current_config(request)) else { return scratch.clear() };
    forward(request, config, Command::Del)?;
    scratch.clear()
}

/// Without a subnet file, the configuration has no ranges. The delegates need none for a removal.
fn current_config(request: &Request) -> Option<Map<String, Value>> {
    let flannel = Flannel::parse(request).ok()?;
    let env = daemon::read(&flannel.subnet_file).ok();
    flannel.delegate_config(request, env.as_ref()).ok()
}

fn check(request: &Request) -> Result<(), Error> {
    let flannel = Flannel::parse(request)?;
    let config = match Scratch::of(request, &flannel.data_dir).read()? {
        Some(saved) => saved,
        None => {
            let env = daemon::read(&flannel.subnet_file)
                .map_err(|error| error.to_cni(Code::TRY_LATER))?;
            flannel.delegate_config(request, Some(&env))?
        }
    };
    forward(request, config, Command::Check)
}

fn status(request: &Request) -> Result<(), Error> {
    let flannel = Flannel::parse(request)?;
    daemon::require_ready(flannel.agent_socket.as_deref(), Code::NOT_AVAILABLE)?;
    let env =
        daemon::read(&flannel.subnet_file).map_err(|error| error.to_cni(Code::NOT_AVAILABLE))?;
    let config = flannel.delegate_config(request, Some(&env))?;
    forward(request, config, Command::Status)
}

/// Runs DEL for attachments of this network that are saved but not valid, then GC of the delegate.
fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let data_dir = conf::data_dir_of(request);
    let mut errors = Vec::new();
    for stale in scratch::stale(&data_dir, &request.network, &valid)? {
        let del = Request {
            command: Command::Del,
            container_id: stale.attachment.container_id.clone(),
            ifname: stale.attachment.ifname.clone(),
            netns: String::new(),
            ..request.clone()
        };
        let kind = conf::kind_of(&stale.config).map(str::to_owned);
        let del = Request { config: Arc::new(stale.config), ..del };
        let removed = kind.and_then(|kind| delegate::forward(&del, &kind, Command::Del));
        errors.extend(removed.and_then(|()| scratch::remove(&data_dir, &stale.file)).err());
    }
    if let Some(config) = current_config(request) {
        errors.extend(forward(request, config, Command::Gc).err());
    }
    Error::join(errors)
}
