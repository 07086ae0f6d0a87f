// SPDX-License-Identifier: Apache-2.0
//! Replacing a file by rename, so that readers find the old content or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Creates a file that did not exist before, in place of whatever has its name: the rest of a
/// crash, or a symbolic link that would lead the writer elsewhere.
pub fn create_fresh(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            options.open(path)
        }
        other => other,
    }
}

/// Makes a file have this content. The content is written to `temporary` first, which must be in the
/// same directory, and is on the disk before the name changes.
pub fn replace(path: &Path, temporary: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = create_fresh(temporary, mode)?;
    let written = file.write_all(content).and_then(|()| file.sync_data());
    written.and_then(|()| fs::rename(temporary, path)).inspect_err(|_| {
        // Best effort: the first error is the one to report.
        let _ = fs::remove_file(temporary);
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_planted_link_is_replaced_and_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("victim"), "precious").unwrap();
        symlink("victim", path(".state")).unwrap();
        symlink("victim", path("state")).unwrap();
        replace(&path("state"), &path(".state"), b"new", 0o600).unwrap();
        assert_eq!(fs::read_to_string(path("victim")).unwrap(), "precious");
        assert_eq!(fs::read_to_string(path("state")).unwrap(), "new");
        let meta = fs::symlink_metadata(path("state")).unwrap();
        assert!(meta.is_file() && meta.permissions().mode() & 0o777 == 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_failure_leaves_the_old_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("state")).unwrap();
        fs::write(path(".state"), "of a crash").unwrap();
        replace(&path("state"), &path(".state"), b"new", 0o600).unwrap_err();
        assert!(path("state").is_dir() && !path(".state").exists());
    }
}
