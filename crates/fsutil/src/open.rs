// SPDX-License-Identifier: Apache-2.0
//! Opens and reads regular files. Every other kind of file is an error: a FIFO would block, and a symbolic link could
//! point to a file of another program.

use std::fmt;
use std::fs::{self, File, FileType};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

/// Maximum size of a file that [`read`] and [`read_following`] accept.
pub const LIMIT: u64 = 16 << 20;

/// Opens a state file for reading. A symbolic link is an error.
pub fn open(path: &Path) -> io::Result<File> {
    open_regular(path, OFlags::RDONLY | OFlags::NOFOLLOW, 0)
}

/// Opens a configuration file for reading. A symbolic link is followed, because administrators and
/// Kubernetes use links for these files.
pub fn open_following(path: &Path) -> io::Result<File> {
    open_regular(path, OFlags::RDONLY, 0)
}

/// Opens an existing state file for reading and writing.
pub fn open_for_update(path: &Path) -> io::Result<File> {
    open_regular(path, OFlags::RDWR | OFlags::NOFOLLOW, 0)
}

/// Opens a state file for reading and writing, and creates it with this mode if it is missing.
pub fn create(path: &Path, mode: u32) -> io::Result<File> {
    open_regular(path, OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW, mode)
}

/// Reads a state file of at most [`LIMIT`] bytes. A symbolic link is an error.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_all(open(path)?)
}

/// Reads a configuration file of at most [`LIMIT`] bytes. A symbolic link is followed.
pub fn read_following(path: &Path) -> io::Result<Vec<u8>> {
    read_all(open_following(path)?)
}

/// Returns whether an error of this module means that the path is not a regular file.
pub fn is_wrong_kind(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<WrongKind>())
}

fn read_all(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIMIT {
        let text = format!("it is larger than {LIMIT} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

fn open_regular(path: &Path, flags: OFlags, mode: u32) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = match openat(CWD, path, flags, Mode::from_raw_mode(mode)) {
        Ok(opened) => File::from(opened),
        Err(errno) => return Err(explain(path, errno)),
    };
    let kind = opened.metadata()?.file_type();
    if kind.is_file() { Ok(opened) } else { Err(wrong_kind(kind)) }
}

/// Names the kind of file if that is the reason for the error.
fn explain(path: &Path, errno: Errno) -> io::Error {
    let may_be_kind = matches!(errno, Errno::LOOP | Errno::NXIO | Errno::ISDIR);
    match fs::symlink_metadata(path).map(|meta| meta.file_type()) {
        Ok(kind) if may_be_kind && !kind.is_file() => wrong_kind(kind),
        _ => errno.into(),
    }
}

fn wrong_kind(kind: FileType) -> io::Error {
    let actual = if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    io::Error::new(io::ErrorKind::InvalidInput, WrongKind { actual })
}

#[derive(Debug)]
struct WrongKind {
    actual: &'static str,
}

impl fmt::Display for WrongKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is {}, expected a regular file", self.actual)
    }
}

impl std::error::Error for WrongKind {}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{FileType as Kind, mknodat};

    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("file"), "text").unwrap();
        fs::create_dir(path("directory")).unwrap();
        symlink("file", path("link")).unwrap();
        symlink("fifo", path("link to a FIFO")).unwrap();
        mknodat(CWD, path("fifo"), Kind::Fifo, Mode::RWXU, 0).unwrap();
        let _listener = UnixListener::bind(path("socket")).unwrap();
        let all = [open, open_for_update, |path: &Path| create(path, 0o600)];
        for open in all {
            let check_rejected = |name: &str, text: &str| {
                let error = open(&path(name)).unwrap_err();
                assert!(is_wrong_kind(&error), "{name}: {error}");
                assert_eq!(error.to_string(), format!("it is {text}, expected a regular file"));
            };
            open(&path("file")).unwrap();
            check_rejected("directory", "a directory");
            check_rejected("link", "a symbolic link");
            check_rejected("fifo", "a FIFO");
            check_rejected("socket", "a socket");
        }
        let missing = open(&path("missing")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert_eq!(read_following(&path("link")).unwrap(), b"text");
        assert!(is_wrong_kind(&read_following(&path("link to a FIFO")).unwrap_err()));
        assert_eq!(read(&path("file")).unwrap(), b"text");
    }

    #[test]
    fn large_file_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("large");
        File::create(&path).unwrap().set_len(LIMIT + 1).unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
