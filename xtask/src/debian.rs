// SPDX-License-Identifier: Apache-2.0
//! Downloads and unpacks Debian packages without installing them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{apt_sources, cmd, setup};

/// Downloads a package of the installed release into `work`.
pub(crate) fn download(package: &str, work: &Path) -> Result<PathBuf> {
    let get = || quietly(apt("apt-get", &[]).args(["download", package]).current_dir(work));
    with_lists(get)?;
    find(work, package)
}

/// Downloads a package of another suite.
pub(crate) fn download_from(suite: &str, package: &str, work: &Path) -> Result<PathBuf> {
    Suite::open(suite, work, false)?.download(package)
}

/// A Debian suite with a private apt state, so that apt never installs from it on this machine.
#[derive(Debug)]
pub(crate) struct Suite {
    work: PathBuf,
    options: Vec<String>,
}

impl Suite {
    /// Downloads the package list of the suite, and optionally the list of sources.
    pub(crate) fn open(suite: &str, work: &Path, with_sources: bool) -> Result<Suite> {
        let list = work.join("suite.list");
        let mirror = apt_sources::mirror()?;
        let kinds = if with_sources { &["deb", "deb-src"][..] } else { &["deb"] };
        fs::write(&list, kinds.iter().map(|kind| mirror.line(kind, suite)).collect::<String>())?;
        let (lists, cache) = (work.join("lists"), work.join("cache"));
        fs::create_dir_all(lists.join("partial"))?;
        fs::create_dir_all(cache.join("archives/partial"))?;
        let options = vec![
            format!("Dir::Etc::sourcelist={}", list.display()),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            format!("Dir::State::lists={}", lists.display()),
            format!("Dir::Cache={}", cache.display()),
            // The release file of a frozen mirror is expired.
            "Acquire::Check-Valid-Until=false".to_owned(),
            "Acquire::Languages=none".to_owned(),
        ];
        // Without --error-on, apt-get succeeds with a warning if the mirror is unreachable.
        quietly(apt("apt-get", &options).args(["update", "--error-on=any"]))?;
        Ok(Suite { work: work.to_path_buf(), options })
    }

    /// Downloads a package.
    pub(crate) fn download(&self, package: &str) -> Result<PathBuf> {
        let mut get = apt("apt-get", &self.options);
        quietly(get.args(["download", package]).current_dir(&self.work))?;
        find(&self.work, package)
    }

    /// Resolves a metapackage to the package it depends on.
    pub(crate) fn resolve(&self, package: &str) -> Result<String> {
        let text = cmd::read(apt("apt-cache", &self.options).args(["depends", package]))?;
        let dependency = first_dependency(&text, package);
        dependency
            .map(str::to_owned)
            .with_context(|| format!("{package} has no dependency with a similar name"))
    }

    /// Unpacks the source of a package with Debian's patches.
    pub(crate) fn source(&self, package: &str, into: &Path) -> Result<()> {
        let mut get = apt("apt-get", &self.options);
        quietly(get.args(["source", "--download-only", package]).current_dir(&self.work))?;
        let description = find_file(&self.work, package, ".dsc")?;
        if let Some(parent) = into.parent() {
            fs::create_dir_all(parent)?;
        }
        // apt has verified the file with the signed list of the suite.
        let mut unpack = cmd::command("dpkg-source");
        quietly(unpack.args(["--no-check", "-x"]).arg(description).arg(into))
    }
}

/// Version of a source package.
pub(crate) fn version_of_source(source: &Path) -> Result<String> {
    let changes = source.join("debian/changelog");
    let text =
        fs::read_to_string(&changes).with_context(|| format!("read {}", changes.display()))?;
    let version = text.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    let (version, _) = version.with_context(|| format!("{} has no version", changes.display()))?;
    Ok(version.to_owned())
}

/// Resolves a metapackage of the installed release: its first dependency whose name starts like its own.
pub(crate) fn resolve(package: &str) -> Result<String> {
    with_lists(|| {
        let text = cmd::read(cmd::command("apt-cache").args(["depends", package]))?;
        let dependency = first_dependency(&text, package);
        dependency
            .map(str::to_owned)
            .with_context(|| format!("{package} has no dependency with a similar name"))
    })
}

fn first_dependency<'a>(text: &'a str, package: &str) -> Option<&'a str> {
    let stem = package.rsplit_once('-').map_or(package, |(stem, _)| stem);
    let mut names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.find(|name| name.starts_with(stem))
}

/// Unpacks a package and returns its version.
pub(crate) fn unpack(package: &Path, into: &Path) -> Result<String> {
    cmd::run(cmd::command("dpkg-deb").arg("-x").arg(package).arg(into))?;
    let version = cmd::read(cmd::command("dpkg-deb").arg("-f").arg(package).arg("Version"))?;
    Ok(version.trim().to_owned())
}

/// Moves an unpacked directory to its final path, atomically.
pub(crate) fn move_to(unpacked: &Path, place: &Path) -> Result<()> {
    if place.exists() {
        fs::remove_dir_all(place)?;
    }
    fs::rename(unpacked, place).with_context(|| format!("create {}", place.display()))
}

/// Retries after an update: the package lists may be missing or outdated.
fn with_lists<T>(attempt: impl Fn() -> Result<T>) -> Result<T> {
    attempt().or_else(|_| {
        setup::update_lists()?;
        attempt()
    })
}

fn apt(program: &str, options: &[String]) -> Command {
    let mut apt = cmd::command(program);
    // apt's sandbox user cannot write to this directory.
    apt.args(["-o", "APT::Sandbox::User=root"]);
    apt.args(options.iter().flat_map(|option| ["-o", option]));
    apt
}

fn find(dir: &Path, package: &str) -> Result<PathBuf> {
    find_file(dir, package, ".deb")
}

fn find_file(dir: &Path, package: &str, end: &str) -> Result<PathBuf> {
    let matches = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix(package).is_some_and(|rest| rest.starts_with('_')) && name.ends_with(end)
    };
    let mut files = fs::read_dir(dir)?.flatten().map(|entry| entry.path());
    files.find(matches).with_context(|| format!("apt-get downloaded no {package}"))
}

/// Runs a command and prints it only if it fails: its options would fill the screen.
fn quietly(command: &mut Command) -> Result<()> {
    cmd::read(command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metapackage_is_resolved_by_name() {
        let text = "linux-image-amd64\n  Depends: libx\n  Depends: linux-image-6.1.0-9-amd64\n";
        assert_eq!(first_dependency(text, "linux-image-amd64"), Some("linux-image-6.1.0-9-amd64"));
        assert_eq!(first_dependency("", "linux-image-amd64"), None);
    }

    #[test]
    fn package_file_is_found_by_exact_name() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a-b_1_amd64.deb", "a_2_amd64.deb", "a_2.txt"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(find(dir.path(), "a").unwrap(), dir.path().join("a_2_amd64.deb"));
        assert!(find(dir.path(), "b").is_err());
    }
}
