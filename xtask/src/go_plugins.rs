// SPDX-License-Identifier: Apache-2.0
//! The Go plugins for comparison, unpacked from Debian's package. sid has the newest version (CNI
//! 1.1); the installed release is the fallback if sid is not available.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{cmd, debian};

const PACKAGE: &str = "containernetworking-plugins";

/// Directory of the programs in the package.
const PROGRAMS: &str = "usr/lib/cni";

/// File with the package version, written after unpacking.
const VERSION: &str = "VERSION";

/// Unpacked plugins that run on this machine.
#[derive(Debug)]
pub(crate) struct GoPlugins {
    /// Value for `CNI_PATH`.
    pub(crate) dir: PathBuf,
    /// Version of the package.
    pub(crate) version: String,
}

/// Downloads the plugins if they are missing.
pub(crate) fn ensure(target_dir: &Path, refresh: bool) -> Result<GoPlugins> {
    let home = target_dir.join("go-plugins");
    let present = ["sid", "stable"].map(|suite| home.join(suite));
    if let Some(dir) = present.iter().find(|dir| !refresh && dir.join(VERSION).is_file()) {
        return open(dir);
    }
    fs::create_dir_all(&home).with_context(|| format!("create {}", home.display()))?;
    let dir = fetch(&home, "sid", from_sid).or_else(|cause| {
        println!("no Go plugins from Debian sid: {cause:#}");
        println!("using those of the installed release");
        fetch(&home, "stable", from_release)
    })?;
    open(&dir)
}

/// Runs VERSION once, so that a package for another architecture fails here and not in a test.
fn open(dir: &Path) -> Result<GoPlugins> {
    let version = fs::read_to_string(dir.join(VERSION))?;
    let dir = dir.join(PROGRAMS);
    let mut ask = cmd::command(dir.join("bridge"));
    let answer = cmd::read(ask.env("CNI_COMMAND", "VERSION"))?;
    let answer: serde_json::Value = serde_json::from_str(&answer)?;
    if answer["supportedVersions"].as_array().is_none_or(Vec::is_empty) {
        bail!("{} answers VERSION with {answer}", dir.join("bridge").display());
    }
    Ok(GoPlugins { dir, version })
}

/// Downloads and unpacks a package beside its final directory.
fn fetch(home: &Path, suite: &str, download: fn(&Path) -> Result<PathBuf>) -> Result<PathBuf> {
    let work = tempfile::tempdir_in(home)?;
    let package = download(work.path())?;
    let unpacked = work.path().join("unpacked");
    let version = debian::unpack(&package, &unpacked)?;
    fs::write(unpacked.join(VERSION), version)?;
    let dir = home.join(suite);
    debian::move_to(&unpacked, &dir)?;
    Ok(dir)
}

fn from_sid(work: &Path) -> Result<PathBuf> {
    debian::download_from("sid", PACKAGE, work)
}

fn from_release(work: &Path) -> Result<PathBuf> {
    debian::download(PACKAGE, work)
}
