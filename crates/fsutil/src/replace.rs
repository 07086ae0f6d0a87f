// SPDX-License-Identifier: Apache-2.0
//! Replaces a file by rename, so that readers see either the old or the new content.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Creates a new file. Removes an existing file first: a stale file of a crash, or a symbolic link that would redirect
/// the write.
fn create_fresh(path: &Path, mode: u32) -> io::Result<File> {
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

/// Replaces a file. The content is first written to `temporary`, which must be in the same directory, and synced to
/// disk before the rename. The file gets exactly this mode; the umask is ignored.
pub fn replace(path: &Path, temporary: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = create_fresh(temporary, mode)?;
    let written = file
        .set_permissions(Permissions::from_mode(mode))
        .and_then(|()| file.write_all(content))
        .and_then(|()| file.sync_all());
    written.and_then(|()| fs::rename(temporary, path)).inspect_err(|_| {
        // Best effort: the first error is the one to report.
        let _ = fs::remove_file(temporary);
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn replace_does_not_follow_a_planted_link() {
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
    fn failed_replace_keeps_the_old_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("state")).unwrap();
        fs::write(path(".state"), "stale").unwrap();
        replace(&path("state"), &path(".state"), b"new", 0o600).unwrap_err();
        assert!(path("state").is_dir() && !path(".state").exists());
    }
}
