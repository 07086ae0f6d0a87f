// SPDX-License-Identifier: Apache-2.0
//! The socket that callers come to: systemd's, or our own.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use cni::{Code, Error};

use crate::error::Context;

/// A socket that listens.
#[derive(Debug)]
pub struct Listening {
    listener: UnixListener,
    /// Its file, where it is ours to remove.
    file: Option<PathBuf>,
}

impl Listening {
    /// Takes the socket that was opened for us, or opens one here.
    pub fn open(path: &Path) -> Result<Listening, Error> {
        let var = |name| std::env::var(name).ok();
        let (count, pid) = (var("LISTEN_FDS"), var("LISTEN_PID"));
        match inherited(count.as_deref(), pid.as_deref(), std::process::id())? {
            true => {
                let listener = kernel::daemon::inherited_listener().context("socket activation")?;
                Listening { listener, file: None }.ready(path)
            }
            false => {
                let fail = |cause: io::Error| {
                    Error::because(Code::IO, format!("listen at {}", path.display()), &cause)
                };
                let listener = bind(path).map_err(fail)?;
                Listening { listener, file: Some(path.to_owned()) }.ready(path)
            }
        }
    }

    fn ready(self, path: &Path) -> Result<Listening, Error> {
        self.listener.set_nonblocking(true).map_err(|cause| {
            Error::because(Code::IO, format!("listen at {}", path.display()), &cause)
        })?;
        Ok(self)
    }

    /// The next caller who is waiting.
    pub fn accept(&self) -> Option<UnixStream> {
        self.listener.accept().ok().map(|(stream, _)| stream)
    }

    /// Stops listening.
    pub fn close(self) {
        if let Some(file) = self.file {
            // Whoever has removed it has done our work.
            let _ = fs::remove_file(file);
        }
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Whether a socket was opened for this very process, and not for the one that started it.
fn inherited(count: Option<&str>, pid: Option<&str>, own: u32) -> Result<bool, Error> {
    if pid != Some(own.to_string().as_str()) {
        return Ok(false);
    }
    match count {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(count) => Err(Error::invalid_config(format!(
            "LISTEN_FDS is {count:?}: exactly one socket must be passed"
        ))),
    }
}

/// Only root may come; the file of a daemon that is dead is taken over.
fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let listener = match UnixListener::bind(path) {
        Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path)?;
            UnixListener::bind(path)?
        }
        other => other?,
    };
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn remove_stale(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file there is no socket"));
    }
    match UnixStream::connect(path) {
        Err(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(cause) => Err(cause),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another daemon is listening")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_for_others_are_not_taken() {
        let check = |count: &str, pid: &str| inherited(Some(count), Some(pid), 7);
        assert_eq!(inherited(None, None, 7), Ok(false));
        assert_eq!(check("1", "8"), Ok(false));
        assert_eq!(check("1", "7"), Ok(true));
        assert_eq!(check("0", "7"), Ok(false));
        assert!(check("2", "7").unwrap_err().msg.contains("LISTEN_FDS is \"2\""));
    }

    #[test]
    fn stale_sockets_are_taken_over_and_live_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/s");
        drop(bind(&path).unwrap());
        // A process that another test has just started holds it until it is another program.
        let patience = std::time::Duration::from_secs(30);
        let live = testkit::wait_some(patience, || bind(&path).ok()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = bind(&path).unwrap_err();
        assert!(error.to_string().contains("another daemon"), "{error}");
        drop(live);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        assert!(bind(&path).unwrap_err().to_string().contains("no socket"));
    }
}
