// SPDX-License-Identifier: Apache-2.0
//! Programs that a test creates.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Creates an executable file with this text. An existing file is replaced by rename, because the kernel
/// does not allow writing to a file that is being executed.
#[track_caller]
pub fn write_program(file: impl AsRef<Path>, text: &str) {
    let file = file.as_ref();
    let new = file.with_extension("new");
    fs::write(&new, text).expect("write the program");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755))
        .expect("set the mode of the program");
    fs::rename(&new, file).expect("rename the program");
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn open_old_program_stays_unchanged() {
        let dir = tempfile::tempdir().expect("create a temporary directory");
        let file = dir.path().join("program");
        write_program(&file, "old");
        let mut old = fs::File::open(&file).expect("the program exists");
        write_program(&file, "new");
        let (mut before, now) =
            (String::new(), fs::read_to_string(&file).expect("the program exists"));
        old.read_to_string(&mut before).expect("read the old program");
        let mode = fs::metadata(&file).expect("the program exists").permissions().mode();
        assert_eq!((before.as_str(), now.as_str(), mode & 0o777), ("old", "new", 0o755));
    }
}
