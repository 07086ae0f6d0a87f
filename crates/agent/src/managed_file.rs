// SPDX-License-Identifier: Apache-2.0
//! Files that others read. A managed file is restored after another program removes or overwrites it.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use crate::file_watcher::FileWatcher;
use crate::status::{ConditionKind, RepairKind, StatusHub};

/// A file that is kept, and what is said of it.
#[derive(Debug)]
pub(crate) struct ManagedFile {
    hub: StatusHub,
    ear: FileWatcher,
    /// Whoever changes it then breaks it.
    is_there: bool,
    /// Others tell of files as well: only its own word is taken back.
    has_complained: bool,
}

impl ManagedFile {
    pub(crate) fn new(path: &Path, hub: &StatusHub) -> ManagedFile {
        ManagedFile {
            hub: hub.clone(),
            ear: FileWatcher::new(path),
            is_there: false,
            has_complained: false,
        }
    }

    /// Whether it was as it should be when last looked at.
    pub(crate) fn is_there(&self) -> bool {
        self.is_there
    }

    /// It was made what it should be, or was it already (false).
    pub(crate) fn put(&mut self, put: &Result<bool, impl std::fmt::Display>) {
        if self.is_there && matches!(put, Ok(true)) {
            let text = format!("put {} back", self.ear.path().display());
            tracing::warn!(change = text, "repaired");
            self.hub.repaired(RepairKind::File, text);
        }
        self.is_there |= put.is_ok();
        self.report(put);
    }

    /// It is going to be another, and nobody has broken it.
    pub(crate) fn is_to_change(&mut self) {
        self.is_there = false;
    }

    /// It was taken away, or was not there (false).
    pub(crate) fn taken(&mut self, taken: &Result<bool, impl std::fmt::Display>) {
        self.is_there = false;
        self.report(taken);
    }

    fn report(&mut self, done: &Result<bool, impl std::fmt::Display>) {
        match done {
            Ok(_) if !self.has_complained => {}
            Ok(_) => self.hub.clear_problem(ConditionKind::Files),
            Err(why) => self.hub.set_problem(ConditionKind::Files, why.to_string()),
        }
        self.has_complained = done.is_err();
    }

    /// Waits until it may be another than it was. The wait can be given up and taken up again.
    pub(crate) async fn next(&mut self) {
        self.ear.next().await;
    }
}

/// Everybody may read it.
const MODE: u32 = 0o644;

/// Nobody else may.
const SECRET_MODE: u32 = 0o600;

/// Makes the file have this content, and its directory. False where it had it.
pub fn replace(path: &Path, text: &str) -> io::Result<bool> {
    replace_with(path, text, MODE)
}

/// The same, for nobody but us to read, also where it has this content and others could read it.
pub fn replace_secret(path: &Path, text: &str) -> io::Result<bool> {
    restrict(path)?;
    replace_with(path, text, SECRET_MODE)
}

/// Takes away the right of others to a file, as an earlier version or somebody else may have written it.
pub fn restrict(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() && found.permissions().mode() & 0o077 != 0 => {
            fs::set_permissions(path, fs::Permissions::from_mode(SECRET_MODE))
        }
        _ => Ok(()),
    }
}

fn replace_with(path: &Path, text: &str, mode: u32) -> io::Result<bool> {
    let has_length = |file: fs::Metadata| file.len() == text.len() as u64;
    if fs::metadata(path).is_ok_and(has_length)
        && fsutil::read(path).is_ok_and(|found| found == text.as_bytes())
    {
        return Ok(false);
    }
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no file's path"));
    };
    if !directory.as_os_str().is_empty() && !directory.is_dir() {
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    }
    // Neither a runtime nor a shell's `*` takes it for a configuration.
    let mut fresh = OsString::from(".");
    fresh.push(name);
    fresh.push(".new");
    let fresh = directory.join(fresh);
    fsutil::replace(path, &fresh, text.as_bytes(), mode).map(|()| true)
}

/// Removes a file; false where there is none.
pub fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Largest file that [`read`] reads.
const LARGEST: u64 = 1 << 20;

/// Returns the content of a small file; none if there is no file.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    read_at_most(path, LARGEST)
}

/// Returns the content of a file; none if there is no file. Fails if the file is larger than the limit.
pub fn read_at_most(path: &Path, limit: u64) -> io::Result<Option<String>> {
    let read = || {
        let mut text = String::new();
        let read = fsutil::open_following(path)?.take(limit + 1).read_to_string(&mut text)?;
        if read as u64 > limit {
            let why = format!("the file has more than {limit} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
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
    fn files_are_read_up_to_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert_eq!(read(&path).unwrap(), None);
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_at_most(&path, 5).unwrap().as_deref(), Some("12345"));
        let why = read_at_most(&path, 4).unwrap_err().to_string();
        assert_eq!(why, "the file has more than 4 bytes");
        assert!(!replace(&path, "12345").unwrap());
        assert!(replace(&path, "12346").unwrap());
    }
}
