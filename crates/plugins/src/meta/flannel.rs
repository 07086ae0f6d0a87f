// SPDX-License-Identifier: Apache-2.0
//! `flannel`: makes a configuration from what flannel's daemon has written for this node, and has
//! another plugin, by default `bridge`, do the work.

mod conf;
mod daemon;
mod scratch;

use std::sync::Arc;

use cni::delegate;
use cni::{CniResult, Code, Command, Error, Plugin, Request, Version};
use serde_json::{Map, Value};

use self::conf::Flannel;
use self::scratch::Scratch;
use crate::attach::netns;

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    name: "flannel",
    about: "configures another plugin by the subnet of flannel's daemon",
    versions: Version::ALL,
    add,
    del,
    check,
    status,
    gc,
};

/// Keys that are of the call and not of the network: they are handed on, and not kept.
const OF_THE_CALL: [&str; 4] =
    ["prevResult", "runtimeConfig", "cni.dev/valid-attachments", "cni.dev/attachments"];

fn add(request: &Request) -> Result<CniResult, Error> {
    let flannel = Flannel::parse(request)?;
    let env = daemon::read(&flannel.subnet_file).map_err(|error| {
        // An agent that is there knows better why there is no file.
        let asked = daemon::require_ready(flannel.agent_socket.as_deref(), Code::TRY_LATER);
        asked.err().unwrap_or_else(|| error.to_cni(Code::TRY_LATER))
    })?;
    let mut config = flannel.delegate_config(request, Some(&env))?;
    let target = delegate::find(request.host, conf::kind_of(&config)?, &request.path)?;
    // Before the first one's configuration is overwritten.
    netns::refuse_existing(request)?;
    let scratch = Scratch::of(request, &flannel.data_dir);
    // A capability's arguments are in Go's file too.
    hand_on(request, &mut config, &["runtimeConfig"]);
    scratch.put(&config)?;
    let asked = Request { config: Arc::new(config), ..request.clone() };
    delegate::add(&asked, &target).inspect_err(|_| {
        // Best effort: the first error is the one to tell, and DEL finds the file.
        let _ = scratch.clear();
    })
}

/// Puts what came with the call into the delegate's configuration.
fn hand_on(request: &Request, config: &mut Map<String, Value>, keys: &[&str]) {
    for key in keys {
        if let Some(value) = gojson::get(&request.config, key) {
            config.insert((*key).to_owned(), value.clone());
        }
    }
}

/// Asks the delegate for a verb with this configuration.
fn forward(
    request: &Request,
    mut config: Map<String, Value>,
    command: Command,
) -> Result<(), Error> {
    let kind = conf::kind_of(&config)?.to_owned();
    hand_on(request, &mut config, &OF_THE_CALL);
    let asked = Request { config: Arc::new(config), ..request.clone() };
    delegate::forward(&asked, &kind, command)
}

/// The configuration of the ADD is kept in a file. Where that is lost, one as it would be made today
/// finds what there is to remove, too.
fn del(request: &Request) -> Result<(), Error> {
    let scratch = Scratch::of(request, &conf::data_dir_of(request));
    let kept = scratch.read()?.filter(|kept| conf::kind_of(kept).is_ok());
    let Some(config) = kept.or_else(|| present_config(request)) else { return scratch.clear() };
    forward(request, config, Command::Del)?;
    scratch.clear()
}

/// Without ranges where the daemon is away; the delegates need none to remove something.
fn present_config(request: &Request) -> Option<Map<String, Value>> {
    let flannel = Flannel::parse(request).ok()?;
    let env = daemon::read(&flannel.subnet_file).ok();
    flannel.delegate_config(request, env.as_ref()).ok()
}

fn check(request: &Request) -> Result<(), Error> {
    let flannel = Flannel::parse(request)?;
    let config = match Scratch::of(request, &flannel.data_dir).read()? {
        Some(kept) => kept,
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

/// Attachments of this network that are kept and not valid get their DEL; then the delegate looks for
/// what it alone knows of.
fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let data_dir = conf::data_dir_of(request);
    let mut errors = Vec::new();
    for stale in scratch::unlisted(&data_dir, &request.network, &valid)? {
        let asked = Request {
            command: Command::Del,
            container_id: stale.attachment.container_id.clone(),
            ifname: stale.attachment.ifname.clone(),
            netns: String::new(),
            ..request.clone()
        };
        let kind = conf::kind_of(&stale.config).map(str::to_owned);
        let asked = Request { config: Arc::new(stale.config), ..asked };
        let removed = kind.and_then(|kind| delegate::forward(&asked, &kind, Command::Del));
        errors.extend(removed.and_then(|()| scratch::remove(&data_dir, &stale.file)).err());
    }
    if let Some(config) = present_config(request) {
        errors.extend(forward(request, config, Command::Gc).err());
    }
    Error::join(errors)
}
