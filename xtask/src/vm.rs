// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask vm`: runs one command in the emulated machine.

use std::env;

use anyhow::{Context, Result, ensure};

use crate::machine::{Job, Session};
use crate::setup;
use crate::workspace::Workspace;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Command with arguments; it runs in the current directory
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, args: Args) -> Result<()> {
    let ready = setup::run(workspace, &setup::Args { refresh: false })?;
    let kernel = ready.kernel.context("the emulated machine does not support this architecture")?;
    let session = Session::new(kernel)?;
    let job = Job::new(env::current_dir()?, args.command);
    let job = job.env_path("PODWIRE_GO_PLUGINS", &ready.go_plugins)?;
    let status = session.run(&[job], |_| ())?;
    ensure!(status == 0, "the command ended with status {status}");
    Ok(())
}
