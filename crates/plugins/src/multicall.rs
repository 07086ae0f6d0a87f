// SPDX-License-Identifier: Apache-2.0
//! Answering as the plugin whose name the program was started under: the one place where a
//! plugin meets process, environment, standard input and output.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use cni::plugin::{self, Env, Host, Reply};
use cni::{Error, Plugin, Version};

use rustix::io::Errno;

use crate::registry::PLUGINS;

/// Set to anything, a plugin is started as a process even where a function call would do.
pub const ALWAYS_EXEC: &str = "PODWIRE_ALWAYS_EXEC";

/// The plugin that this program was started as, if any.
pub fn called_as(program: Option<&OsStr>) -> Option<&'static Plugin> {
    let name = Path::new(program?).file_name()?.to_str()?;
    PLUGINS.iter().copied().find(|plugin| plugin.name == name)
}

/// Where the locks of attachments are, beside those of namespaces.
const LOCKS: &str = "/run/podwire/locks";

/// This program with all its plugins.
pub fn host() -> Host {
    Host { locks: Some(LOCKS.into()), ..Host::of_this_program(PLUGINS) }
}

/// Answers the invocation that environment and standard input hold.
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

/// The answer to a runtime that calls this program by a name that is no plugin's; `None` where it is
/// a person who calls.
pub fn refuse(name: Option<&OsStr>) -> Option<ExitCode> {
    std::env::var_os("CNI_COMMAND")?;
    let name = Path::new(name.unwrap_or_default()).file_name().unwrap_or_default();
    let names: Vec<&str> = PLUGINS.iter().map(|plugin| plugin.name).collect();
    let error = Error::invalid_config(format!("there is no plugin {name:?} in this program"))
        .with_details(format!("it holds {}", names.join(", ")));
    Some(print(&Reply::failure(&error, Version::LATEST)))
}

/// Standard output without a buffer, which would be written when nothing can be undone any more.
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
        // For whoever looks for the reason; a runtime has the exit status.
        let _ = io::stderr().lock().write_all(&reply.stdout);
    }
    let told = io::stderr().lock().write_all(&reply.stderr);
    let success = reply.success && written.is_ok() && told.is_ok();
    if success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A runtime that reads JSON must not get silence, even for a fault of ours.
fn report_panic(info: &std::panic::PanicHookInfo) {
    let error = Error::internal("the plugin broke").with_details(info.to_string());
    print(&Reply::failure(&error, Version::LATEST));
}
