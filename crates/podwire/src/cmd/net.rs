// SPDX-License-Identifier: Apache-2.0
//! `podwire net`: cnitool's words, and flags for what cnitool takes from the environment only.

use clap::{Args, Subcommand};
use serde_json::{Map, Value};

use super::Places;

/// What to do with a network.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  ip netns add blue
  podwire net add mynet blue
  podwire net check mynet blue
  podwire net del mynet blue

The container's id is cnitool's, so that attachments of either are found by the other.")]
pub enum NetCommand {
    /// Show the networks of the configuration directory
    #[command(after_help = "\
Examples:
  podwire net list
  podwire net list --conf-dir ./networks -o json")]
    List(Places),
    /// Attach a namespace to a network
    #[command(after_help = "\
Examples:
  podwire net add mynet blue
  podwire net add mynet /run/netns/blue --ifname eth1 -o json
  podwire net add mynet blue --args 'IgnoreUnknown=1;IP=10.88.0.7'")]
    Add(Attach),
    /// Check that an attachment is as it was made
    #[command(after_help = "Example:\n  podwire net check mynet blue")]
    Check(Attach),
    /// Detach a namespace from a network; the namespace may be gone
    #[command(after_help = "Example:\n  podwire net del mynet blue")]
    Del(Attach),
    /// Remove attachments whose namespace is gone
    #[command(after_help = "\
Examples:
  podwire net gc mynet              detach those in the cache whose namespace is gone
  podwire net gc mynet --all        detach all of the cache, as cnitool does
  podwire net gc mynet --plugins    where no other runtime attaches containers: addresses and
                                    other leftovers that the cache does not know go as well")]
    Gc(Collect),
    /// Ask whether a network can take containers
    #[command(after_help = "Example:\n  podwire net status mynet && echo ready")]
    Status(NetStatus),
    /// Turn a list of plugins into one of the plugin `podwire`, which does all of it in one process
    #[command(after_help = "\
Examples:
  podwire net convert /etc/cni/net.d/10-mynet.conflist           print the new list
  podwire net convert --write /etc/cni/net.d/10-mynet.conflist   put it in place

Containers that are there stay as they are: either list checks and removes what the other made.
Plugins that are not podwire's stay in the list, in their place.")]
    Convert(Convert),
}

/// `add`, `check` and `del`.
#[derive(Debug, Args)]
pub struct Attach {
    /// The network's name.
    pub network: String,
    /// The namespace: a path, or a name below /run/netns.
    pub netns: String,
    #[command(flatten)]
    pub wishes: Wishes,
    #[command(flatten)]
    pub places: Places,
}

/// What plugins are told about the container.
#[derive(Clone, Debug, Args)]
pub struct Wishes {
    /// Name of the interface in the namespace.
    #[arg(
        long,
        short = 'i',
        env = "CNI_IFNAME",
        default_value = "eth0",
        value_name = "NAME",
        hide_env_values = true
    )]
    pub ifname: String,
    /// Arguments for the plugins: KEY=VALUE with ';' between them.
    #[arg(
        long,
        env = "CNI_ARGS",
        default_value = "",
        value_name = "ARGS",
        hide_env_values = true,
        hide_default_value = true
    )]
    pub args: String,
    /// Values for capabilities that plugins of the network enable, as a JSON object.
    #[arg(long, env = "CAP_ARGS", default_value = "", value_name = "JSON",
          value_parser = json_object, hide_env_values = true, hide_default_value = true)]
    pub cap_args: Map<String, Value>,
}

/// `gc`.
#[derive(Debug, Args)]
pub struct Collect {
    /// The network's name.
    pub network: String,
    /// Accepted for cnitool's sake; it changes nothing.
    #[arg(hide = true)]
    pub netns: Option<String>,
    /// Remove every attachment of this cache, also those whose namespace is alive.
    #[arg(long)]
    pub all: bool,
    /// Also let the plugins remove what belongs to none of the attachments in this cache; only
    /// right where this cache knows all containers of the node.
    #[arg(long, conflicts_with = "all")]
    pub plugins: bool,
    #[command(flatten)]
    pub places: Places,
}

/// `status`.
#[derive(Debug, Args)]
pub struct NetStatus {
    /// The network's name.
    pub network: String,
    /// Accepted for cnitool's sake; it changes nothing.
    #[arg(hide = true)]
    pub netns: Option<String>,
    #[command(flatten)]
    pub places: Places,
}

/// `convert`.
#[derive(Debug, Args)]
pub struct Convert {
    /// The network's file.
    pub file: std::path::PathBuf,
    /// Replace the file, and keep the old one beside it with `.orig` at its end.
    #[arg(long)]
    pub write: bool,
}

fn json_object(text: &str) -> Result<Map<String, Value>, String> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text).map_err(|cause| format!("expected a JSON object: {cause}"))
}
