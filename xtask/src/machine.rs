// SPDX-License-Identifier: Apache-2.0
//! An emulated machine with Debian's kernel, for tests of what the running kernel lacks.
//!
//! It sees the root directory of this machine, with a layer of its own above for what it writes, so
//! that tests find the programs and the build as they are here, and nothing of theirs stays.

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

pub use self::job::Job;
pub use self::kernel::Kernel;

/// Programs that it takes, and their packages.
pub const PROGRAMS: [(&str, &str); 5] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    // Started by the kernel inside as well.
    ("modprobe", "kmod"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
];

/// Whether there can be one: its kernel runs the programs of this machine.
pub fn is_possible() -> bool {
    ARCH == "x86_64"
}

/// One start of the machine, and what goes in and comes out.
#[derive(Debug)]
pub struct Session {
    kernel: Kernel,
    /// Shared with the machine, which may write there.
    dir: TempDir,
}

impl Session {
    pub fn new(kernel: Kernel) -> Result<Session> {
        let dir = tempfile::tempdir_in(&kernel.home).context("make a directory to share")?;
        Ok(Session { kernel, dir })
    }

    /// A file that jobs may write, in whatever namespace, and that comes back.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(boot::FILES).join(name)
    }

    /// What a job has written into [`Session::file`].
    pub fn read(&self, name: &str) -> Result<String> {
        let path = self.dir.path().join(boot::BACK).join(name);
        if !path.exists() {
            return Ok(String::new());
        }
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }

    /// Starts the machine and in it one job after the other. `look` sees each line they print.
    /// Returns 0 if all of them succeeded, else the status of the last that failed.
    pub fn run(&self, jobs: &[Job], look: impl FnMut(&str)) -> Result<i32> {
        boot::run(&self.kernel, self.dir.path(), jobs, look)
    }
}

/// A path as the kernel and the shell inside take it.
fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}
