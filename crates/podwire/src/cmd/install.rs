// SPDX-License-Identifier: Apache-2.0
//! `podwire install`: copies this program into a directory.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;

use crate::errors::Hint;
use crate::output;

/// Copy this program into a directory, as the DaemonSet does on each node
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  podwire install /usr/local/bin
  podwire install /host/opt/podwire/bin    from a container into a directory of its node

The program replaces an older one by rename. A missing directory is created, its parents are not.")]
pub(crate) struct Install {
    /// Directory for the program
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(crate) fn run(args: &Install) -> Result<()> {
    let directory = &args.directory;
    // In a plugin directory, `podwire` is the name of a plugin.
    if directory.join("podwire-cni").exists() {
        let shown = directory.display();
        return Err(anyhow!("{shown} holds the CNI plugin \"podwire\", which this would replace"))
            .hint(|| "choose another directory, such as /opt/podwire/bin".to_owned());
    }
    let installed = plugins::install::copy_to(directory, "podwire");
    let program = installed.map_err(|text| anyhow!(text.trim_end().to_owned()))?;
    output::print(&format!("installed {}\n", program.display()))
}
