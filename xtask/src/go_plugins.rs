// SPDX-License-Identifier: Apache-2.0
//! The Go plugins to compare with, out of Debian's package and without installing it: sid
//! has the newest (CNI 1.1), the machine's own release serves where sid cannot be had.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{cmd, debian};

const PACKAGE: &str = "containernetworking-plugins";

/// Where the package has its programs.
const PROGRAMS: &str = "usr/lib/cni";

/// Ours, next to the unpacked files.
const VERSION: &str = "VERSION";

/// Unpacked plugins that were seen to run.
#[derive(Debug)]
pub struct GoPlugins {
    /// To be used as `CNI_PATH`.
    pub dir: PathBuf,
    /// The package's version.
    pub version: String,
}

/// Fetches the plugins unless they are there.
pub fn ensure(target_dir: &Path, refresh: bool) -> Result<GoPlugins> {
    let home = target_dir.join("go-plugins");
    let present = ["sid", "stable"].map(|suite| home.join(suite));
    if let Some(dir) = present.iter().find(|dir| !refresh && dir.join(VERSION).is_file()) {
        return open(dir);
    }
    fs::create_dir_all(&home).with_context(|| format!("make {}", home.display()))?;
    let dir = fetch(&home, "sid", from_sid).or_else(|cause| {
        println!("no Go plugins from Debian sid: {cause:#}");
        println!("taking those of the installed release");
        fetch(&home, "stable", from_release)
    })?;
    open(&dir)
}

/// Asks one program what it speaks: a package for another machine fails here, and not in the
/// middle of a test.
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

/// Downloads and unpacks next to the final place.
fn fetch(home: &Path, suite: &str, download: fn(&Path) -> Result<PathBuf>) -> Result<PathBuf> {
    let work = tempfile::tempdir_in(home)?;
    let package = download(work.path())?;
    let unpacked = work.path().join("unpacked");
    let version = debian::unpack(&package, &unpacked)?;
    fs::write(unpacked.join(VERSION), version)?;
    let dir = home.join(suite);
    debian::settle(&unpacked, &dir)?;
    Ok(dir)
}

fn from_sid(work: &Path) -> Result<PathBuf> {
    debian::download_from("sid", PACKAGE, work)
}

fn from_release(work: &Path) -> Result<PathBuf> {
    debian::download(PACKAGE, work)
}
