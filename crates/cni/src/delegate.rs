// SPDX-License-Identifier: Apache-2.0
//! A plugin calling another one. The file found in CNI_PATH decides: where it is this very
//! program, the plugin is called as a function, otherwise it is started as a process.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use text::shorten_value;

use crate::error::Error;
use crate::exec;
use crate::plugin::{Host, Plugin};
use crate::request::{Command, Request};
use crate::result::CniResult;

/// How often a plugin may delegate to another one that delegates in turn. The longest useful chain is
/// `podwire`, `flannel`, `bridge`, `host-local`.
pub const MAX_DEPTH: u32 = 8;

/// Carries [`Delegation::depth`](crate::Delegation::depth) to a plugin that is started as a process.
pub const DEPTH_VARIABLE: &str = "PODWIRE_DELEGATION_DEPTH";

/// Where a plugin lives.
#[derive(Debug, Clone)]
pub enum Target {
    /// In this program.
    Function(&'static Plugin),
    /// In a file of its own.
    Program(PathBuf),
}

/// Looks a plugin up in CNI_PATH.
pub fn find(host: &Host, kind: &str, path: &str) -> Result<Target, Error> {
    if kind.is_empty() || kind.contains('/') {
        let msg = format!("invalid plugin name: {}", shorten_value(kind));
        return Err(Error::invalid_config(msg).with_details("it must be the name of a file"));
    }
    for directory in path.split(':').filter(|directory| !directory.is_empty()) {
        let file = PathBuf::from(directory).join(kind);
        let Ok(meta) = std::fs::metadata(&file) else { continue };
        if !meta.is_file() {
            continue;
        }
        let is_ours = !host.always_exec && host.program == Some((meta.dev(), meta.ino()));
        return Ok(match host.plugin(kind).filter(|_| is_ours) {
            Some(plugin) => Target::Function(plugin),
            None => Target::Program(file),
        });
    }
    if let Some(plugin) = host.plugin(kind).filter(|_| host.builtin_fallback) {
        return Ok(Target::Function(plugin));
    }
    let path = shorten_value(path.replace(':', " "));
    let msg = format!("failed to find plugin {:?} in path [{path}]", shorten_value(kind));
    Err(Error::invalid_config(msg))
}

/// ADD by another plugin, which [`find`] has found. When a program fails at it, its DEL is run
/// before the error is returned, as the specification asks; a function of this program leaves
/// nothing when it fails.
///
/// That DEL would take away what an earlier ADD of the same attachment was given, so the caller
/// refuses a second ADD first.
pub fn add(request: &Request, target: &Target) -> Result<CniResult, Error> {
    match target {
        Target::Function(plugin) => (plugin.add)(&asked_to(request, Command::Add)?),
        Target::Program(_) => exec_add(target, request).inspect_err(|_| {
            // The error of the ADD is the one to tell.
            let _ = run(target, request, Command::Del);
        }),
    }
}

fn exec_add(target: &Target, request: &Request) -> Result<CniResult, Error> {
    let printed = run(target, request, Command::Add)?;
    CniResult::parse(exec::parse_output(&printed)?, request.version)
}

/// Any other verb by another plugin.
pub fn forward(request: &Request, kind: &str, command: Command) -> Result<(), Error> {
    let target = find(request.host, kind, &request.path)?;
    run(&target, request, command).map(drop)
}

/// The depth of a plugin that this one delegates to. A configuration that makes plugins call each
/// other without end is an error, instead of the end of the stack.
pub fn deeper(request: &Request) -> Result<u32, Error> {
    if request.delegation.depth < MAX_DEPTH {
        return Ok(request.delegation.depth + 1);
    }
    let msg = format!("plugins delegate to each other more than {MAX_DEPTH} times");
    let hint = "look for a plugin that delegates to itself in keys \"ipam\", \"delegate\" and \
                \"plugins\"";
    Err(Error::invalid_config(msg).with_details(hint))
}

fn asked_to<'host>(request: &Request<'host>, command: Command) -> Result<Request<'host>, Error> {
    let mut delegated = Request { command, ..request.clone() };
    delegated.delegation.depth = deeper(request)?;
    Ok(delegated)
}

fn run(target: &Target, request: &Request, command: Command) -> Result<Vec<u8>, Error> {
    match target {
        Target::Function(plugin) => {
            let request = asked_to(request, command)?;
            match command {
                Command::Add => (plugin.add)(&request).map(drop),
                Command::Del => (plugin.del)(&request),
                Command::Check => (plugin.check)(&request),
                Command::Gc => (plugin.gc)(&request),
                Command::Status => (plugin.status)(&request),
            }
            .map(|()| Vec::new())
        }
        Target::Program(file) => {
            let stdin = request.to_stdin()?;
            let variables = exec::Variables {
                command: command.as_str(),
                container_id: &request.container_id,
                netns: &request.netns,
                ifname: &request.ifname,
                args: &request.raw_args,
                path: &request.path,
                depth: deeper(request)?,
            };
            exec::run(file, &variables, &stdin, None)
        }
    }
}
