// SPDX-License-Identifier: Apache-2.0
//! `podwire`: networks, pods and a demonstration for people. Called by a plugin's name it is that
//! plugin.

mod agent;
mod cli;
mod config;
mod demo;
mod id;
mod interrupt;
mod lock;
mod net;
mod node;
mod output;
mod place;
mod pod;
mod privilege;
mod report;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow};

use crate::cli::{Cli, Command};
use crate::output::Format;
use crate::privilege::Privilege;
use crate::report::Hint;

/// clap's own.
const WRONG_COMMAND_LINE: u8 = 2;

fn main() -> ExitCode {
    if let Some(plugin) = called_as() {
        return plugins::multicall::run(plugin);
    }
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(wrong) => return fail(&wrong.into(), Format::Text),
    };
    let code = run(&cli).unwrap_or_else(|error| fail(&error, cli.output));
    kernel::deferred_close::close_in_background();
    code
}

/// The plugin that a runtime calls; `podwire` is the name of one, too, and only the environment tells
/// a runtime from a person.
fn called_as() -> Option<&'static cni::Plugin> {
    let mut words = std::env::args_os();
    let plugin = plugins::multicall::called_as(words.next().as_deref())?;
    let is_runtime = words.next().is_none() && std::env::var_os("CNI_COMMAND").is_some();
    (plugin.name != "podwire" || is_runtime).then_some(plugin)
}

fn run(cli: &Cli) -> Result<ExitCode> {
    match &cli.command {
        Command::Agent { args } => agent::run(args)?,
        Command::Cleanup { args } => return agent::clean(args, cli.output),
        Command::Net(command) => net::run(command, cli.output)?,
        Command::Pod(command) => return pod::run(command, cli.output),
        Command::Status(asked) => return node::status(asked, cli.output),
        Command::Peers(asked) => node::peers(asked, cli.output)?,
        Command::Demo(asked) => demo::run(*asked, cli.output)?,
        Command::Install { directory } => install(directory)?,
        Command::Completions { shell } => completions(*shell)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// In a plugin directory the name `podwire` is a plugin's.
fn install(directory: &Path) -> Result<()> {
    if directory.join("podwire-cni").exists() {
        let shown = directory.display();
        return Err(anyhow!("{shown} holds the CNI plugin \"podwire\", which this would replace"))
            .hint(|| "choose another directory, such as /opt/podwire/bin".to_owned());
    }
    let installed = plugins::install::copy_to(directory, "podwire");
    let program = installed.map_err(|text| anyhow!(text.trim_end().to_owned()))?;
    output::print(&format!("installed {}\n", program.display()))
}

fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::with_options_of_agent(), "podwire", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

fn fail(error: &anyhow::Error, format: Format) -> ExitCode {
    if output::is_reader_gone(error) {
        // `podwire net list | head -1` is done, not broken.
        return ExitCode::FAILURE;
    }
    if format == Format::Json {
        // Where standard output is what failed, the exit status remains.
        let _ = output::print_json(&report::json(error));
    }
    let text = report::text(error, Privilege::of_process());
    let _ = std::io::stderr().write_all(text.as_bytes());
    let is_usage = error.is::<::agent::options::Error>() || error.is::<report::Usage>();
    match is_usage {
        true => WRONG_COMMAND_LINE.into(),
        false => ExitCode::FAILURE,
    }
}
