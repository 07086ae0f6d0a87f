// SPDX-License-Identifier: Apache-2.0
//! A lock on a file or directory that ends with the process, however that ends. The locked path
//! may be removed by its holder; who waited for it meanwhile notices and starts over.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long to wait for another command. A plugin may take minutes, for example with dhcp.
const PATIENCE: Duration = Duration::from_secs(300);

/// Holds the lock until dropped.
#[derive(Debug)]
pub struct Lock {
    _lock: fsutil::Lock,
    removed: Option<PathBuf>,
}

impl Lock {
    /// The same, with the locked file removed in the end.
    pub fn with_removal(mut self, path: &Path) -> Lock {
        self.removed = Some(path.to_owned());
        self
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Left behind it does no harm.
        self.removed.as_ref().map(std::fs::remove_file);
    }
}

/// Waits for the lock, with a deadline. `open` opens the path, making it first where it is not there.
pub fn wait(path: &Path, open: impl Fn(&Path) -> io::Result<File>) -> io::Result<Lock> {
    loop {
        let lock = fsutil::lock(open(path)?, PATIENCE)?;
        if is_at(lock.file(), path)? {
            return Ok(Lock { _lock: lock, removed: None });
        }
    }
}

/// Takes the lock of something that is there; `None` where another holds it.
pub fn attempt(path: &Path) -> io::Result<Option<Lock>> {
    let lock = fsutil::try_lock(File::open(path)?)?;
    Ok(lock.map(|lock| Lock { _lock: lock, removed: None }))
}

/// Opens a directory, making it and those above it first.
pub fn directory(path: &Path) -> io::Result<File> {
    retried(|| {
        make_private(path)?;
        File::open(path)
    })
}

/// Opens a file, making it and its directory first.
pub fn file(path: &Path) -> io::Result<File> {
    retried(|| {
        path.parent().map_or(Ok(()), make_private)?;
        fsutil::create(path, 0o644)
    })
}

/// Root's own: who can open a lock can hold it, and keep everybody waiting.
fn make_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// A directory just made may be removed by another before it is used: then once more.
fn retried(open: impl Fn() -> io::Result<File>) -> io::Result<File> {
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
        Ok(found) => Ok((found.dev(), found.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_of_their_owner_alone() {
        let temporary = tempfile::tempdir().unwrap();
        let made = |name: &str| temporary.path().join(name);
        directory(&made("a/b")).unwrap();
        file(&made("c/d/lock")).unwrap();
        for name in ["a", "a/b", "c", "c/d"] {
            let mode = std::fs::metadata(made(name)).unwrap().mode();
            assert_eq!(mode & 0o777, 0o700, "{name}");
        }
    }

    #[test]
    fn one_holder_at_a_time_even_when_the_path_is_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("a/b");
        let held = wait(&path, directory).unwrap();
        assert!(attempt(&path).unwrap().is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(&path, directory).unwrap());
            std::fs::remove_dir(&path).unwrap();
            drop(held);
            let second = waiting.join().unwrap();
            assert!(path.is_dir());
            assert!(attempt(&path).unwrap().is_none());
            drop(second);
        });
        assert!(attempt(&path).unwrap().is_some());
    }
}
