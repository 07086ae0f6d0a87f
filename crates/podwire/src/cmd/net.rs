// SPDX-License-Identifier: Apache-2.0
//! `podwire net`: the verbs of cnitool, with flags for everything that cnitool takes from the
//! environment.

mod attach;
mod convert;
mod gc;
mod list;
mod misspelled_keys;
mod status;

use anyhow::Result;
use clap::Subcommand;
use cni::runtime::NetworkList;
use cni::runtime::cache::Entry;

use crate::errors;
use crate::output::Format;
use crate::runtime::RuntimeArgs;

/// Attach network namespaces to networks, as cnitool does
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  ip netns add blue
  podwire net add mynet blue
  podwire net check mynet blue
  podwire net del mynet blue

Container IDs are the same as cnitool's: each tool finds attachments made by the other.")]
pub(crate) enum NetCommand {
    List(list::List),
    /// Attach a network namespace to a network
    #[command(after_help = "\
Examples:
  podwire net add mynet blue
  podwire net add mynet /run/netns/blue --ifname eth1 -o json
  podwire net add mynet blue --args 'IgnoreUnknown=1;IP=10.88.0.7'")]
    Add(attach::Attach),
    /// Check that an attachment is still as ADD created it
    #[command(after_help = "Example:\n  podwire net check mynet blue")]
    Check(attach::Attach),
    /// Detach a network namespace from a network; the namespace may be gone
    #[command(after_help = "Example:\n  podwire net del mynet blue")]
    Del(attach::Attach),
    Gc(gc::Gc),
    Status(status::Status),
    Convert(convert::Convert),
}

pub(crate) fn run(command: &NetCommand, format: Format) -> Result<()> {
    match command {
        NetCommand::List(args) => list::run(args, format),
        NetCommand::Add(args) => attach::add(args, format),
        NetCommand::Check(args) => attach::check(args, format),
        NetCommand::Del(args) => attach::del(args, format),
        NetCommand::Gc(args) => gc::run(args, format),
        NetCommand::Status(args) => status::run(args, format),
        NetCommand::Convert(args) => convert::run(args),
    }
}

fn warn_of_misspelled_keys(list: &NetworkList) {
    misspelled_keys::find(list).iter().for_each(|line| errors::warn(line));
}

/// The network as cached by the first of these ADDs, for a configuration file that is missing or
/// invalid.
fn from_cache(network: &str, args: &RuntimeArgs, entries: &[Entry]) -> Option<NetworkList> {
    let entry = entries.first()?;
    // The cache does not contain plugins from the network's directory.
    let beside = args.conf_dir.join(format!("{network}.conflist"));
    let list = NetworkList::parse(&entry.config, Some(&beside)).ok()?;
    if list.name != network {
        return None;
    }
    let dir = args.conf_dir.display();
    errors::note(&format!(
        "network {network:?} is missing or invalid in {dir}: using the cached configuration"
    ));
    Some(list)
}
