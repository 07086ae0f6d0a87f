// SPDX-License-Identifier: Apache-2.0
//! `podwire pod`: what kubelet's network manager did for a pod. Loopback and the default network,
//! host ports and bandwidth as capability arguments, the pod's real addresses, readiness.

mod capability;
mod name;
mod network;
mod port;
mod quantity;
mod ready;
mod show;
mod state;
mod teardown;
mod up;

use std::process::ExitCode;

use anyhow::Result;

pub use self::name::PodName;
pub use self::port::PortMapping;
use crate::cli::PodCommand;
use crate::output::Format;

/// Does what the command line asks.
pub fn run(command: &PodCommand, format: Format) -> Result<ExitCode> {
    match command {
        PodCommand::Up(asked) => up::run(asked, format)?,
        PodCommand::Down(asked) => teardown::run(asked, format)?,
        PodCommand::Status(asked) => show::run(asked, format)?,
        PodCommand::Ready(asked) => return ready::run(asked, format),
    }
    Ok(ExitCode::SUCCESS)
}
