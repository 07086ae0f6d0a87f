// SPDX-License-Identifier: Apache-2.0
//! `podwire net status`.

use anyhow::{Context, Result};
use clap::Args;
use cni::{Code, Command};
use serde_json::json;

use crate::network_lookup;
use crate::output::{self, Format};
use crate::runtime::RuntimeArgs;

/// Ask the plugins whether a network accepts containers
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  podwire net status mynet && echo ready")]
pub(crate) struct Status {
    /// Name of the network
    network: String,
    /// Accepted for compatibility with cnitool, without effect
    #[arg(hide = true)]
    netns: Option<String>,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

pub(crate) fn run(args: &Status, format: Format) -> Result<()> {
    let list = network_lookup::load(&args.runtime.conf_dir, &args.network)?;
    super::warn_of_misspelled_keys(&list);
    let host = args.runtime.host();
    let runtime = args.runtime.runtime(&host);
    runtime.status(&list).map_err(|error| {
        let about = match error.code {
            Code::LIMITED => "has limited connectivity",
            _ => "cannot accept containers",
        };
        anyhow::Error::new(error).context(format!("network {:?} {about}", list.name))
    })?;
    // Versions before 1.1.0 have no STATUS. For them this checks only that every plugin exists.
    runtime
        .validate(&list)
        .with_context(|| format!("network {:?} cannot accept containers", list.name))?;
    let has_status = list.version >= Command::Status.since();
    match format {
        Format::Json => output::print_json(
            &json!({ "network": list.name, "ready": true, "pluginsAsked": has_status }),
        ),
        Format::Text if has_status => output::print(&format!("{}: ready\n", list.name)),
        Format::Text => output::print(&format!(
            "{}: plugins are installed; their state is unknown, because STATUS needs cniVersion {} and this \
             network has {}\n",
            list.name,
            Command::Status.since(),
            list.version
        )),
    }
}
