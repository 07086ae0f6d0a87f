// SPDX-License-Identifier: Apache-2.0
//! Delegation: a plugin that calls another plugin. If the file found in CNI_PATH is this program, the other plugin is
//! called as a function; otherwise it is started as a process.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use text::shorten_value;

use crate::error::Error;
use crate::exec;
use crate::plugin::{Host, Plugin};
use crate::request::{Command, Request};
use crate::result::CniResult;

/// Maximum length of a chain of delegations. The longest useful chain is `podwire`, `flannel`, `bridge`, `host-local`.
pub const MAX_DEPTH: u32 = 8;

/// Environment variable that passes [`Delegation::depth`](crate::Delegation::depth) to a plugin process.
pub(crate) const DEPTH_VARIABLE: &str = "PODWIRE_DELEGATION_DEPTH";

/// Implementation of a plugin.
#[derive(Debug, Clone)]
pub enum Target {
    /// A function of this program.
    Function(&'static Plugin),
    /// An executable file.
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
        let is_this_program = host.program == Some((meta.dev(), meta.ino()));
        let builtin = host.plugin(kind).filter(|_| is_this_program && !host.always_exec);
        return Ok(builtin.map_or(Target::Program(file), Target::Function));
    }
    if let Some(plugin) = host.plugin(kind).filter(|_| host.builtin_fallback) {
        return Ok(Target::Function(plugin));
    }
    let path = shorten_value(path.replace(':', " "));
    let msg = format!("failed to find plugin {:?} in path [{path}]", shorten_value(kind));
    Err(Error::invalid_config(msg))
}

/// Runs ADD of another plugin, which [`find`] has found. If a program fails, its DEL is run before the error is
/// returned, as the specification requires. A function of this program cleans up after itself.
///
/// The DEL would also remove what an earlier ADD of the same attachment created. So the caller must reject a second ADD
/// before it calls this function.
pub fn add(request: &Request, target: &Target) -> Result<CniResult, Error> {
    match target {
        Target::Function(plugin) => (plugin.add)(&delegated(request, Command::Add)?),
        Target::Program(_) => exec_add(target, request).inspect_err(|_| {
            // The error of the ADD is the one to report.
            let _ = run(target, request, Command::Del);
        }),
    }
}

fn exec_add(target: &Target, request: &Request) -> Result<CniResult, Error> {
    let printed = run(target, request, Command::Add)?;
    CniResult::parse(exec::parse_output(&printed)?, request.version)
}

/// Runs any other command of another plugin.
pub fn forward(request: &Request, kind: &str, command: Command) -> Result<(), Error> {
    let target = find(request.host, kind, &request.path)?;
    run(&target, request, command).map(drop)
}

/// Returns the depth of a plugin that this one delegates to. Plugins that delegate to each other in a loop get an
/// error instead of a stack overflow.
pub fn deeper(request: &Request) -> Result<u32, Error> {
    if request.delegation.depth < MAX_DEPTH {
        return Ok(request.delegation.depth + 1);
    }
    let msg = format!("plugins delegate to each other more than {MAX_DEPTH} times");
    let hint = "look for a plugin that delegates to itself in keys \"ipam\", \"delegate\" and \
                \"plugins\"";
    Err(Error::invalid_config(msg).with_details(hint))
}

fn delegated<'host>(request: &Request<'host>, command: Command) -> Result<Request<'host>, Error> {
    let mut delegated = Request { command, ..request.clone() };
    delegated.delegation.depth = deeper(request)?;
    Ok(delegated)
}

fn run(target: &Target, request: &Request, command: Command) -> Result<Vec<u8>, Error> {
    match target {
        Target::Function(plugin) => {
            let request = delegated(request, command)?;
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
