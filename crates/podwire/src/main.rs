// SPDX-License-Identifier: Apache-2.0
//! `podwire`: the command-line tool and the node agent. Started under the name of a CNI plugin, the
//! program runs that plugin.

mod cmd;
mod container_id;
mod errors;
mod lock;
mod network_lookup;
mod output;
mod privilege;
mod runtime;
mod signals;

use std::io::Write;
use std::process::ExitCode;

use crate::cmd::Cli;
use crate::output::Format;
use crate::privilege::Privilege;

/// Exit status for a wrong command line, the same as clap's.
const USAGE_ERROR: u8 = 2;

fn main() -> ExitCode {
    if let Some(plugin) = plugin_to_run() {
        return plugins::multicall::run(plugin);
    }
    let cli = Cli::parse_args();
    let code = cmd::run(&cli).unwrap_or_else(|error| fail(&error, cli.output));
    kernel::deferred_close::close_in_background();
    code
}

/// The plugin that a container runtime asks for. `podwire` is also the name of a plugin: only
/// CNI_COMMAND tells a call by a runtime from a call by a person.
fn plugin_to_run() -> Option<&'static cni::Plugin> {
    let mut args = std::env::args_os();
    let plugin = plugins::multicall::called_as(args.next().as_deref())?;
    let is_runtime = args.next().is_none() && std::env::var_os("CNI_COMMAND").is_some();
    (plugin.name != "podwire" || is_runtime).then_some(plugin)
}

fn fail(error: &anyhow::Error, format: Format) -> ExitCode {
    if output::is_broken_pipe(error) {
        // The reader of `podwire net list | head -1` has what it wants: no error message.
        return ExitCode::FAILURE;
    }
    if format == Format::Json {
        // If standard output itself fails, the exit status still reports the error.
        let _ = output::print_json(&errors::json(error));
    }
    let text = errors::text(error, Privilege::of_process());
    let _ = std::io::stderr().write_all(text.as_bytes());
    let is_usage = error.is::<agent::settings::Error>() || error.is::<errors::Usage>();
    match is_usage {
        true => USAGE_ERROR.into(),
        false => ExitCode::FAILURE,
    }
}
