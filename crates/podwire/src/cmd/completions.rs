// SPDX-License-Identifier: Apache-2.0
//! `podwire completions`: completion scripts for shells.

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cmd::Cli;
use crate::output;

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  podwire completions bash > /etc/bash_completion.d/podwire
  podwire completions zsh  > \"${fpath[1]}/_podwire\"
  podwire completions fish > ~/.config/fish/completions/podwire.fish")]
pub(crate) struct Completions {
    /// Shell that reads the script
    shell: Shell,
}

pub(crate) fn run(args: &Completions) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "podwire", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
