// SPDX-License-Identifier: Apache-2.0
//! Debian packages that are fetched and unpacked, but never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{apt_sources, cmd, setup};

/// The file of a package of the installed release, below `work`.
pub fn download(package: &str, work: &Path) -> Result<PathBuf> {
    let get = || quietly(apt_get(&[]).args(["download", package]).current_dir(work));
    with_lists(get)?;
    find(work, package)
}

/// The file of a package of another suite. A state of apt of our own, so that the suite never
/// becomes a choice for the machine.
pub fn download_from(suite: &str, package: &str, work: &Path) -> Result<PathBuf> {
    let list = work.join("suite.list");
    fs::write(&list, apt_sources::mirror()?.line(suite))?;
    let (lists, cache) = (work.join("lists"), work.join("cache"));
    fs::create_dir_all(lists.join("partial"))?;
    fs::create_dir_all(cache.join("archives/partial"))?;
    let options = [
        format!("Dir::Etc::sourcelist={}", list.display()),
        "Dir::Etc::sourceparts=/dev/null".to_owned(),
        format!("Dir::State::lists={}", lists.display()),
        format!("Dir::Cache={}", cache.display()),
        // A mirror that stands still has a release file past its date.
        "Acquire::Check-Valid-Until=false".to_owned(),
        "Acquire::Languages=none".to_owned(),
    ];
    // Without --error-on it warns of a mirror it cannot reach, and succeeds.
    quietly(apt_get(&options).args(["update", "--error-on=any"]))?;
    quietly(apt_get(&options).args(["download", package]).current_dir(work))?;
    find(work, package)
}

/// The package that a package without contents stands for: the first that it depends on whose
/// name starts like its own.
pub fn stands_for(package: &str) -> Result<String> {
    with_lists(|| {
        let text = cmd::read(cmd::command("apt-cache").args(["depends", package]))?;
        let found = first_dependency(&text, package);
        found.map(str::to_owned).with_context(|| format!("{package} depends on nothing alike"))
    })
}

fn first_dependency<'a>(text: &'a str, package: &str) -> Option<&'a str> {
    let stem = package.rsplit_once('-').map_or(package, |(stem, _)| stem);
    let mut names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.find(|name| name.starts_with(stem))
}

/// Unpacks the package, and says which version it has.
pub fn unpack(package: &Path, into: &Path) -> Result<String> {
    cmd::run(cmd::command("dpkg-deb").arg("-x").arg(package).arg(into))?;
    let version = cmd::read(cmd::command("dpkg-deb").arg("-f").arg(package).arg("Version"))?;
    Ok(version.trim().to_owned())
}

/// Puts what was unpacked where it belongs. By a rename, so that it is there whole or not.
pub fn settle(unpacked: &Path, place: &Path) -> Result<()> {
    if place.exists() {
        fs::remove_dir_all(place)?;
    }
    fs::rename(unpacked, place).with_context(|| format!("make {}", place.display()))
}

/// A fresh machine has no lists of packages, and old ones name files that are gone.
fn with_lists<T>(attempt: impl Fn() -> Result<T>) -> Result<T> {
    attempt().or_else(|_| {
        setup::update_lists()?;
        attempt()
    })
}

fn apt_get(options: &[String]) -> Command {
    let mut apt_get = cmd::command("apt-get");
    // apt's own user cannot write below our directory.
    apt_get.args(["-o", "APT::Sandbox::User=root"]);
    apt_get.args(options.iter().flat_map(|option| ["-o", option]));
    apt_get
}

fn find(dir: &Path, package: &str) -> Result<PathBuf> {
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix(package).is_some_and(|rest| rest.starts_with('_'))
            && name.ends_with(".deb")
    };
    let mut files = fs::read_dir(dir)?.flatten().map(|entry| entry.path());
    files.find(is_it).with_context(|| format!("apt-get downloaded no {package}"))
}

/// Its options would fill the screen, so the command is shown only when it fails.
fn quietly(command: &mut Command) -> Result<()> {
    cmd::read(command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_of_a_kernel_is_found() {
        let text = "linux-image-amd64\n  Depends: libx\n  Depends: linux-image-6.1.0-9-amd64\n";
        assert_eq!(first_dependency(text, "linux-image-amd64"), Some("linux-image-6.1.0-9-amd64"));
        assert_eq!(first_dependency("", "linux-image-amd64"), None);
    }

    #[test]
    fn file_of_a_package_is_not_that_of_a_longer_name() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a-b_1_amd64.deb", "a_2_amd64.deb", "a_2.txt"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(find(dir.path(), "a").unwrap(), dir.path().join("a_2_amd64.deb"));
        assert!(find(dir.path(), "b").is_err());
    }
}
