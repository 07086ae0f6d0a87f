// SPDX-License-Identifier: Apache-2.0
//! The kernel of the machine: Debian's package, unpacked and prepared for a fast boot.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::vmlinux;
use crate::{cmd, debian};

/// Metapackage that depends on the newest kernel of the release.
const PACKAGE: &str = "linux-image-amd64";

/// Package of the shell in the initial RAM disk.
const SHELL: &str = "busybox-static";

/// File that marks a complete directory, written last.
const VERSION: &str = "VERSION";

/// An unpacked kernel.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    /// Directory of all files of the machine.
    pub(crate) home: PathBuf,
    /// Subdirectory `kernel`.
    dir: PathBuf,
    /// Output of `uname -r` in the machine.
    pub(crate) release: String,
}

impl Kernel {
    /// Downloads the kernel if it is missing.
    pub(crate) fn ensure(target_dir: &Path, refresh: bool) -> Result<Kernel> {
        let home = target_dir.join("machine");
        let dir = home.join("kernel");
        if refresh || !dir.join(VERSION).is_file() {
            fs::create_dir_all(&home).with_context(|| format!("make {}", home.display()))?;
            fetch(&home, &dir).context("download a kernel for the emulated machine")?;
        }
        let release = fs::read_to_string(dir.join(VERSION))?;
        Ok(Kernel { home, dir, release })
    }

    /// The uncompressed kernel: under emulation, decompressing takes longer than the rest of the boot.
    pub(crate) fn image(&self) -> PathBuf {
        self.dir.join("vmlinux")
    }

    pub(crate) fn busybox(&self) -> PathBuf {
        self.dir.join("bin/busybox")
    }

    /// Directory with the modules of this kernel, like `/lib/modules`.
    pub(crate) fn all_modules(&self) -> PathBuf {
        self.dir.join("lib/modules")
    }

    pub(crate) fn modules(&self) -> PathBuf {
        self.all_modules().join(&self.release)
    }
}

fn fetch(home: &Path, place: &Path) -> Result<()> {
    let work = tempfile::tempdir_in(home)?;
    let dir = work.path().join("unpacked");
    for package in [debian::resolve(PACKAGE)?, SHELL.to_owned()] {
        let file = debian::download(&package, work.path())?;
        debian::unpack(&file, &dir)?;
    }
    join_usr(&dir)?;
    let release = only_entry(&dir.join("lib/modules"))?;
    // Debian creates this list when it installs the package.
    cmd::run(cmd::command("depmod").arg("-b").arg(&dir).arg(&release))?;
    let packed = dir.join("boot").join(format!("vmlinuz-{release}"));
    vmlinux::unpack(&packed, &dir.join("vmlinux"))?;
    fs::write(dir.join(VERSION), release)?;
    debian::move_to(&dir, place)
}

/// Newer packages have all files below `usr`.
fn join_usr(dir: &Path) -> Result<()> {
    for (name, proof) in [("lib", "modules"), ("bin", "busybox")] {
        let below_usr = dir.join("usr").join(name);
        if !dir.join(name).exists() && below_usr.join(proof).exists() {
            fs::rename(&below_usr, dir.join(name))?;
        }
    }
    Ok(())
}

fn only_entry(dir: &Path) -> Result<String> {
    let entries = fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    ensure!(names.len() == 1, "{} has {} entries instead of one", dir.display(), names.len());
    names[0].to_str().map(str::to_owned).context("the name of the kernel is not UTF-8")
}
