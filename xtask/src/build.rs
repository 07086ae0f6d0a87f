// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask build`: the static programs as shipped, in one directory.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cmd;
use crate::workspace::Workspace;

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let programs = [workspace.build_plugin_program()?, build_podwire(workspace)?];
    let dist = workspace.target_dir.join("dist");
    fs::create_dir_all(&dist).with_context(|| format!("create {}", dist.display()))?;
    for program in programs {
        let size = ship(&program, &dist)?;
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        println!("{:>10} bytes  {}", size, dist.join(&*name).display());
    }
    Ok(())
}

fn build_podwire(workspace: &Workspace) -> Result<PathBuf> {
    let mut build = cmd::cargo();
    build.args(["build", "--profile", "shipped", "--target", &workspace.triple, "-p", "podwire"]);
    cmd::run(build.current_dir(&workspace.root))?;
    Ok(workspace.target_dir.join(&workspace.triple).join("shipped/podwire"))
}

/// Replaces the program by rename: the old one may be running.
fn ship(program: &Path, dist: &Path) -> Result<u64> {
    let name = program.file_name().context("get the name of a program")?;
    let fresh = tempfile::NamedTempFile::new_in(dist)?;
    let size =
        fs::copy(program, fresh.path()).with_context(|| format!("copy {}", program.display()))?;
    fresh.persist(dist.join(name)).context("install the program")?;
    Ok(size)
}
