// SPDX-License-Identifier: Apache-2.0
//! A file that a plugin keeps for an attachment. Writes are atomic; removing a missing file
//! succeeds. An incomplete file that a crash left has a name that the next write or removal reuses.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Writes a file with mode 0600, and creates its directory.
pub(crate) fn write(directory: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    if !directory.is_dir() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    fsutil::replace(&directory.join(name), &incomplete(directory, name), text, 0o600)
}

/// Reads a file; `None` if it does not exist.
pub(crate) fn read(directory: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    match fsutil::read(&directory.join(name)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a file, and an incomplete one.
pub(crate) fn remove(directory: &Path, name: &str) -> io::Result<()> {
    for file in [incomplete(directory, name), directory.join(name)] {
        match fs::remove_file(file) {
            Err(error) if !is_gone(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The names of all files; empty if the directory does not exist.
pub(crate) fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        other => other?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()));
    let mut names: Vec<String> = names.collect::<io::Result<_>>()?;
    names.retain(|name| !name.is_empty() && !name.starts_with('.'));
    names.sort();
    Ok(names)
}

/// The name starts with a dot, which no container ID does.
fn incomplete(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!(".{name}.new"))
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_file_is_replaced_and_removed_twice() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("a/b");
        assert_eq!(read(&directory, "c1").unwrap(), None);
        assert!(names(&directory).unwrap().is_empty());
        write(&directory, "c1", b"a long text").unwrap();
        write(&directory, "c1", b"short").unwrap();
        assert_eq!(read(&directory, "c1").unwrap().unwrap(), b"short");
        fs::write(directory.join(".c1.new"), "half").unwrap();
        assert_eq!(names(&directory).unwrap(), ["c1"]);
        remove(&directory, "c1").unwrap();
        remove(&directory, "c1").unwrap();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "nothing is left");
    }
}
