// SPDX-License-Identifier: Apache-2.0
//! Programs that a test writes for itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Makes `file` a program of this text, in place of one that may be starting just now: the
/// kernel refuses to write into a file that is being executed.
#[track_caller]
pub fn write_program(file: impl AsRef<Path>, text: &str) {
    let file = file.as_ref();
    let new = file.with_extension("new");
    fs::write(&new, text).expect("a file of the test's");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).expect("a file of the test's");
    fs::rename(&new, file).expect("a name in the same directory");
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn whoever_has_the_old_file_keeps_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("program");
        write_program(&file, "old");
        let mut old = fs::File::open(&file).expect("it is there");
        write_program(&file, "new");
        let (mut before, now) = (String::new(), fs::read_to_string(&file).expect("it is there"));
        old.read_to_string(&mut before).expect("it can be read");
        let mode = fs::metadata(&file).expect("it is there").permissions().mode();
        assert_eq!((before.as_str(), now.as_str(), mode & 0o777), ("old", "new", 0o755));
    }
}
