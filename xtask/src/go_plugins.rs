// SPDX-License-Identifier: Apache-2.0
//! The Go plugins to compare with, out of Debian's package and without installing it: sid
//! has the newest (CNI 1.1), the machine's own release serves where sid cannot be had.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{apt_sources, cmd, setup};

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

/// Downloads and unpacks next to the final place, which then comes into being by a rename.
fn fetch(home: &Path, suite: &str, download: fn(&Path) -> Result<()>) -> Result<PathBuf> {
    let work = tempfile::tempdir_in(home)?;
    download(work.path())?;
    let package = find_package(work.path())?;
    let unpacked = work.path().join("unpacked");
    cmd::run(cmd::command("dpkg-deb").arg("-x").arg(&package).arg(&unpacked))?;
    let version = cmd::read(cmd::command("dpkg-deb").arg("-f").arg(&package).arg("Version"))?;
    fs::write(unpacked.join(VERSION), version.trim())?;
    let dir = home.join(suite);
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::rename(&unpacked, &dir)?;
    Ok(dir)
}

fn find_package(dir: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(dir)?.flatten().map(|entry| entry.path());
    let mut packages = files.filter(|path| path.extension().is_some_and(|e| e == "deb"));
    packages.next().with_context(|| format!("apt-get downloaded no {PACKAGE}"))
}

/// A state of apt of our own, so that sid never becomes a choice for the machine.
fn from_sid(work: &Path) -> Result<()> {
    let list = work.join("sid.list");
    fs::write(&list, apt_sources::mirror()?.line("sid"))?;
    let (lists, cache) = (work.join("lists"), work.join("cache"));
    fs::create_dir_all(lists.join("partial"))?;
    fs::create_dir_all(cache.join("archives/partial"))?;
    let options = [
        format!("Dir::Etc::sourcelist={}", list.display()),
        "Dir::Etc::sourceparts=/dev/null".to_owned(),
        format!("Dir::State::lists={}", lists.display()),
        format!("Dir::Cache={}", cache.display()),
        // apt's own user cannot write below our directory.
        "APT::Sandbox::User=root".to_owned(),
        // A mirror that stands still has a release file past its date.
        "Acquire::Check-Valid-Until=false".to_owned(),
        "Acquire::Languages=none".to_owned(),
    ];
    let apt_get = || {
        let mut apt_get = cmd::command("apt-get");
        apt_get.args(options.iter().flat_map(|option| ["-o", option]));
        apt_get
    };
    // Without --error-on it warns of a mirror it cannot reach, and succeeds.
    quietly(apt_get().args(["update", "--error-on=any"]))?;
    quietly(apt_get().args(["download", PACKAGE]).current_dir(work))
}

fn from_release(work: &Path) -> Result<()> {
    let download = || {
        let mut apt_get = cmd::command("apt-get");
        apt_get.args(["-o", "APT::Sandbox::User=root", "download", PACKAGE]).current_dir(work);
        apt_get
    };
    quietly(&mut download()).or_else(|_| {
        setup::update_lists()?;
        quietly(&mut download())
    })
}

/// Its options would fill the screen, so the command is shown only when it fails.
fn quietly(command: &mut Command) -> Result<()> {
    cmd::read(command).map(drop)
}
