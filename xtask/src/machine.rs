// SPDX-License-Identifier: Apache-2.0
//! An emulated machine with Debian's kernel, for tests of features that the running kernel lacks.
//!
//! Its root file system is an overlay over the root directory of this machine: tests find all programs
//! and the build, and their changes are discarded.

mod boot;
mod initrd;
mod job;
mod kernel;
mod modules;
mod vmlinux;

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

pub(crate) use self::job::Job;
pub(crate) use self::kernel::Kernel;

/// Programs that the machine needs, and their packages.
pub(crate) const PROGRAMS: [(&str, &str); 5] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    // Also started by the kernel of the machine.
    ("modprobe", "kmod"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
];

/// Whether the machine can run: it executes the programs of this architecture.
pub(crate) fn is_possible() -> bool {
    ARCH == "x86_64"
}

/// One start of the machine, with its input and output files.
#[derive(Debug)]
pub(crate) struct Session {
    kernel: Kernel,
    /// Directory shared with the machine, writable from inside.
    dir: TempDir,
}

impl Session {
    pub(crate) fn new(kernel: Kernel) -> Result<Session> {
        let dir = tempfile::tempdir_in(&kernel.home).context("create the shared directory")?;
        Ok(Session { kernel, dir })
    }

    /// Path of a file that jobs can write from any namespace and that is copied back.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(boot::FILES).join(name)
    }

    /// Contents of [`Session::file`] after the run.
    pub(crate) fn read(&self, name: &str) -> Result<String> {
        let path = self.dir.path().join(boot::BACK).join(name);
        if !path.exists() {
            return Ok(String::new());
        }
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }

    /// Starts the machine and runs the jobs in order. Calls `on_line` for each printed line. Returns 0 if
    /// all jobs succeeded, and otherwise the status of the last one that failed.
    pub(crate) fn run(&self, jobs: &[Job], on_line: impl FnMut(&str)) -> Result<i32> {
        boot::run(&self.kernel, self.dir.path(), jobs, on_line)
    }
}

/// The path as text for the kernel and the shell of the machine.
fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}
