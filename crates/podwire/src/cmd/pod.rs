// SPDX-License-Identifier: Apache-2.0
//! `podwire pod`: connects pods as kubelet's network manager did: loopback and the default network,
//! host ports and bandwidth as capability arguments, the addresses of a pod, readiness.

mod capability;
mod down;
mod name;
mod network;
mod port;
mod quantity;
mod ready;
mod state;
mod status;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use ipnet::IpNet;

use crate::output::Format;

/// Connect pods, as kubelet's network manager does
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  podwire pod ready
  podwire pod up default/web --port 8080:80
  podwire pod status default/web
  podwire pod down default/web

A pod gets loopback and the first valid network of the configuration directory. Each call reads the
directory again.")]
pub(crate) enum PodCommand {
    Up(up::Up),
    Down(down::Down),
    Status(status::Status),
    Ready(ready::Ready),
}

pub(crate) fn run(command: &PodCommand, format: Format) -> Result<ExitCode> {
    match command {
        PodCommand::Up(args) => up::run(args, format)?,
        PodCommand::Down(args) => down::run(args, format)?,
        PodCommand::Status(args) => status::run(args, format)?,
        PodCommand::Ready(args) => return ready::run(args, format),
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Clone, Debug, Args)]
struct StateArgs {
    /// Directory with one state file per pod
    #[arg(
        long,
        default_value = "/run/podwire/pods",
        value_name = "DIR",
        help_heading = "Directories"
    )]
    state_dir: PathBuf,
}

#[derive(Clone, Debug, Args)]
struct PodCidrArgs {
    /// Pod CIDR of the node, for networks with the capability ipRanges; one per address family
    #[arg(long = "pod-cidr", value_name = "CIDR", value_delimiter = ',', value_parser = parse_cidr)]
    pod_cidrs: Vec<IpNet>,
}

fn parse_cidr(text: &str) -> Result<IpNet, String> {
    text.parse().map_err(|_| "expected a network such as 10.244.0.0/24".to_owned())
}
