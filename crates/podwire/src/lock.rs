// SPDX-License-Identifier: Apache-2.0
//! A lock on a file or directory that the kernel releases when the process ends. The holder may
//! remove the locked path; a waiting process notices that and locks the new path.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum wait for another command. A plugin may take minutes, for example dhcp.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Holds the lock until dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _lock: fsutil::Lock,
    removed: Option<PathBuf>,
}

impl Lock {
    /// Removes the locked file when the lock is dropped.
    pub(crate) fn with_removal(mut self, path: &Path) -> Lock {
        self.removed = Some(path.to_owned());
        self
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A lock file that stays behind does no harm.
        self.removed.as_ref().map(std::fs::remove_file);
    }
}

/// Waits for the lock, with a deadline. `open` opens the path and creates it if it is missing.
pub(crate) fn wait(path: &Path, open: impl Fn(&Path) -> io::Result<File>) -> io::Result<Lock> {
    loop {
        let lock = fsutil::lock(open(path)?, TIMEOUT)?;
        if is_at(lock.file(), path)? {
            return Ok(Lock { _lock: lock, removed: None });
        }
    }
}

/// Locks an existing path; `None` if another process holds the lock.
pub(crate) fn attempt(path: &Path) -> io::Result<Option<Lock>> {
    let lock = fsutil::try_lock(File::open(path)?)?;
    Ok(lock.map(|lock| Lock { _lock: lock, removed: None }))
}

/// Opens a directory; creates it and its parents if they are missing.
pub(crate) fn directory(path: &Path) -> io::Result<File> {
    with_retries(|| {
        create_private_dir(path)?;
        File::open(path)
    })
}

/// Opens a file; creates it and its directory if they are missing.
pub(crate) fn file(path: &Path) -> io::Result<File> {
    with_retries(|| {
        path.parent().map_or(Ok(()), create_private_dir)?;
        fsutil::create(path, 0o644)
    })
}

/// Creates a directory that only root can enter: a user who can open a lock file can hold the lock
/// and block every command.
fn create_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Tries again if another process removes the new directory before it is used.
fn with_retries(open: impl Fn() -> io::Result<File>) -> io::Result<File> {
    for _ in 0..100 {
        match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
    }
    open()
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let opened = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(current) => Ok((current.dev(), current.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn created_directories_are_private() {
        let temporary = tempfile::tempdir().unwrap();
        let below = |name: &str| temporary.path().join(name);
        directory(&below("a/b")).unwrap();
        file(&below("c/d/lock")).unwrap();
        for name in ["a", "a/b", "c", "c/d"] {
            let mode = std::fs::metadata(below(name)).unwrap().mode();
            assert_eq!(mode & 0o777, 0o700, "{name}");
        }
    }

    #[test]
    fn lock_is_exclusive_when_its_path_is_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("a/b");
        let first = wait(&path, directory).unwrap();
        assert!(attempt(&path).unwrap().is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(&path, directory).unwrap());
            std::fs::remove_dir(&path).unwrap();
            drop(first);
            let second = waiting.join().unwrap();
            assert!(path.is_dir());
            assert!(attempt(&path).unwrap().is_none());
            drop(second);
        });
        assert!(attempt(&path).unwrap().is_some());
    }
}
