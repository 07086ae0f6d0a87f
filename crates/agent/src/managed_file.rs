// SPDX-License-Identifier: Apache-2.0
//! Files that others read. A managed file is restored after another program removes or overwrites it.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::task::spawn_blocking;

use crate::file_watcher::FileWatcher;
use crate::status::{RepairKind, StatusHub};

/// A file that the agent restores, with its condition in the status.
#[derive(Debug)]
pub(crate) struct ManagedFile {
    hub: StatusHub,
    watcher: FileWatcher,
    /// Whether the file had the desired content at the last check. A later difference counts as a repair.
    is_in_place: bool,
}

impl ManagedFile {
    pub(crate) fn new(path: &Path, hub: &StatusHub) -> ManagedFile {
        ManagedFile { hub: hub.clone(), watcher: FileWatcher::new(path), is_in_place: false }
    }

    /// Whether the file had the desired content at the last check.
    pub(crate) fn is_in_place(&self) -> bool {
        self.is_in_place
    }

    /// Takes the result of a write: whether the file was changed.
    pub(crate) fn written(&mut self, written: &Result<bool, impl std::fmt::Display>) {
        if self.is_in_place && matches!(written, Ok(true)) {
            let file = self.watcher.path().display();
            tracing::warn!(%file, "file restored");
            self.hub.record_repair(RepairKind::File, format!("restored {file}"));
        }
        self.is_in_place |= written.is_ok();
        self.report(written);
    }

    /// The desired content changes, so that the next write is no repair.
    pub(crate) fn desired_changed(&mut self) {
        self.is_in_place = false;
    }

    /// Takes the result of a removal: whether the file existed.
    pub(crate) fn removed(&mut self, removed: &Result<bool, impl std::fmt::Display>) {
        self.is_in_place = false;
        self.report(removed);
    }

    fn report(&self, result: &Result<bool, impl std::fmt::Display>) {
        let result = result.as_ref().map(drop).map_err(ToString::to_string);
        self.hub.report_file(self.watcher.path(), result);
    }

    /// Waits until the file may have changed. The wait can be dropped and resumed.
    pub(crate) async fn next(&mut self) {
        self.watcher.next().await;
    }
}

/// Mode of files that plugins and runtimes read.
const MODE: u32 = 0o644;

/// Mode of files with secrets.
const SECRET_MODE: u32 = 0o600;

/// Replaces the content of a file atomically, and creates its directory. Returns `false` if the content is the same.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<bool> {
    replace_with(path, text, MODE)
}

/// Like [`replace`], but only root may read the file. The mode is corrected also if the content is the same.
pub(crate) fn replace_secret(path: &Path, text: &str) -> io::Result<bool> {
    restrict(path)?;
    replace_with(path, text, SECRET_MODE)
}

/// Restricts a file to its owner. An earlier version or another program may have created it with a wider mode.
pub(crate) fn restrict(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 => {
            fs::set_permissions(path, fs::Permissions::from_mode(SECRET_MODE))
        }
        _ => Ok(()),
    }
}

fn replace_with(path: &Path, text: &str, mode: u32) -> io::Result<bool> {
    let has_length = |file: fs::Metadata| file.len() == text.len() as u64;
    if fs::metadata(path).is_ok_and(has_length)
        && fsutil::read(path).is_ok_and(|content| content == text.as_bytes())
    {
        return Ok(false);
    }
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"));
    };
    if !directory.as_os_str().is_empty() && !directory.is_dir() {
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    }
    // A hidden name without the suffix of a configuration: container runtimes ignore it.
    let mut fresh = OsString::from(".");
    fresh.push(name);
    fresh.push(".new");
    let fresh = directory.join(fresh);
    fsutil::replace(path, &fresh, text.as_bytes(), mode).map(|()| true)
}

/// Replaces a file of the agent's state on another thread, so that a slow disk does not delay other
/// controllers. A failure is logged: the file only helps a later start. Returns whether the file is written.
pub(crate) async fn write_in_background(path: PathBuf, text: String, is_secret: bool) -> bool {
    let replace = if is_secret { replace_secret } else { replace };
    let write = move || {
        let written = replace(&path, &text);
        written
            .inspect_err(|error| tracing::warn!(%error, file = %path.display(), "write failed"))
            .is_ok()
    };
    spawn_blocking(write).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "write failed");
        false
    })
}

/// Reads state of the agent on another thread, so that a slow disk does not delay other controllers.
/// Returns `None` if `read` panicked.
pub(crate) async fn in_background<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    spawn_blocking(read).await.ok()
}

/// Removes a file. Returns `false` if it does not exist.
pub(crate) fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Maximum size of a file for [`read`].
const MAX_SIZE: u64 = 1 << 20;

/// Returns the content of a small file; `None` if it does not exist.
pub(crate) fn read(path: &Path) -> io::Result<Option<String>> {
    read_at_most(path, MAX_SIZE)
}

/// Returns the content of a file; `None` if it does not exist. Fails if the file is larger than the limit.
pub(crate) fn read_at_most(path: &Path, limit: u64) -> io::Result<Option<String>> {
    let read = || {
        let mut text = String::new();
        let read = fsutil::open_following(path)?.take(limit + 1).read_to_string(&mut text)?;
        if read as u64 > limit {
            let problem = format!("the file has more than {limit} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
        }
        Ok(text)
    };
    match read() {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_above_the_limit_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert_eq!(read(&path).unwrap(), None);
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_at_most(&path, 5).unwrap().as_deref(), Some("12345"));
        let error = read_at_most(&path, 4).unwrap_err().to_string();
        assert_eq!(error, "the file has more than 4 bytes");
        assert!(!replace(&path, "12345").unwrap());
        assert!(replace(&path, "12346").unwrap());
    }
}
