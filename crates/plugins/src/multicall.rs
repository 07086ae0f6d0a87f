// SPDX-License-Identifier: Apache-2.0
//! Runs the plugin whose name the program was started under. This is the only place where a plugin
//! meets the process, its environment, standard input and output.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use cni::plugin::{self, Env, Host, Reply};
use cni::{Error, Plugin, Version};

use rustix::io::Errno;

use crate::registry::PLUGINS;

/// If this variable is set, plugins of this program are started as processes instead of called as
/// functions.
pub const ALWAYS_EXEC: &str = "PODWIRE_ALWAYS_EXEC";

/// The plugin that the program was started as.
pub fn called_as(program: Option<&OsStr>) -> Option<&'static Plugin> {
    let name = Path::new(program?).file_name()?.to_str()?;
    PLUGINS.iter().copied().find(|plugin| plugin.name == name)
}

/// The directory of the attachments' locks, next to the locks of namespaces.
const LOCKS: &str = "/run/podwire/locks";

/// All plugins of this program.
pub fn host() -> Host {
    Host { locks: Some(LOCKS.into()), ..Host::of_this_program(PLUGINS) }
}

/// Runs the plugin with the request in the environment and standard input.
pub fn run(plugin: &Plugin) -> ExitCode {
    std::panic::set_hook(Box::new(report_panic));
    let mut host = host();
    host.always_exec = std::env::var_os(ALWAYS_EXEC).is_some();
    let env = Env::read(|name| std::env::var(name).ok());
    let mut reply = plugin::answer_to(plugin, &env, &mut io::stdin().lock(), &mut Stdout, &host);
    if env.command.is_empty() {
        reply
            .stderr
            .extend_from_slice(concat!("podwire ", env!("CARGO_PKG_VERSION"), "\n").as_bytes());
    }
    let code = print(&reply);
    kernel::deferred_close::close_in_background();
    code
}

/// Answers a runtime that started the program under a name that is not a plugin's. `None` if a user
/// started it.
pub fn refuse(name: Option<&OsStr>) -> Option<ExitCode> {
    std::env::var_os("CNI_COMMAND")?;
    let name = Path::new(name.unwrap_or_default()).file_name().unwrap_or_default();
    let names: Vec<&str> = PLUGINS.iter().map(|plugin| plugin.name).collect();
    let error = Error::invalid_config(format!("this program has no plugin {name:?}"))
        .with_details(format!("plugins are {}", names.join(", ")));
    Some(print(&Reply::failure(&error, Version::LATEST)))
}

/// Standard output without a buffer: a write error must occur while ADD can still be undone.
struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if kernel::stdio::stdout_was_closed() {
            return Err(Errno::BADF.into());
        }
        Ok(rustix::io::write(rustix::stdio::stdout(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn print(reply: &Reply) -> ExitCode {
    let mut written = Ok(());
    if !reply.stdout.is_empty() {
        written = Stdout.write_all(&reply.stdout);
    }
    if written.is_err() {
        // For the user; a runtime sees the exit status.
        let _ = io::stderr().lock().write_all(&reply.stdout);
    }
    let stderr = io::stderr().lock().write_all(&reply.stderr);
    let success = reply.success && written.is_ok() && stderr.is_ok();
    if success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Reports a panic as a CNI error, because a runtime expects JSON.
fn report_panic(info: &std::panic::PanicHookInfo) {
    let error = Error::internal("the plugin panicked").with_details(info.to_string());
    print(&Reply::failure(&error, Version::LATEST));
}
