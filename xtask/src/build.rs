// SPDX-License-Identifier: Apache-2.0
//! The programs as they are shipped: static, in one directory.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cmd;
use crate::workspace::Workspace;

/// The whole of `cargo xtask build`.
pub fn run(workspace: &Workspace) -> Result<()> {
    let programs = [workspace.build_plugin_program()?, command_line(workspace)?];
    let dist = workspace.target_dir.join("dist");
    fs::create_dir_all(&dist).with_context(|| format!("make {}", dist.display()))?;
    for program in programs {
        let size = ship(&program, &dist)?;
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        println!("{:>10} bytes  {}", size, dist.join(&*name).display());
    }
    Ok(())
}

fn command_line(workspace: &Workspace) -> Result<PathBuf> {
    let mut build = cmd::cargo();
    build.args(["build", "--release", "--target", &workspace.triple, "-p", "podwire"]);
    cmd::run(build.current_dir(&workspace.root))?;
    Ok(workspace.target_dir.join(&workspace.triple).join("release/podwire"))
}

/// By a rename: the program that is replaced may be running.
fn ship(program: &Path, dist: &Path) -> Result<u64> {
    let name = program.file_name().context("a program has a name")?;
    let fresh = tempfile::NamedTempFile::new_in(dist)?;
    let size =
        fs::copy(program, fresh.path()).with_context(|| format!("copy {}", program.display()))?;
    fresh.persist(dist.join(name)).context("put the program in its place")?;
    Ok(size)
}
