// SPDX-License-Identifier: Apache-2.0
//! The agent's socket. A lock beside it says whether its owner lives, so that one that was left by a
//! crash is replaced and a living agent's never.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use super::Error;

const NAME: &str = "agent.sock";
const FRESH: &str = ".agent.sock.new";
const LOCK: &str = "agent.lock";

/// For root and its group.
const MODE: u32 = 0o660;

/// Where the socket of an agent with this directory is.
pub fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join(NAME)
}

/// A socket that others can connect to; gone when dropped.
#[derive(Debug)]
pub struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Held for as long as the socket is there.
    _lock: File,
}

impl Socket {
    /// Makes the directory and the socket, in place of a dead agent's.
    pub fn create(run_dir: &Path) -> Result<Socket, Error> {
        let path = socket_path(run_dir);
        let failed = |source| Error::Socket { path: path.clone(), source };
        if !run_dir.is_dir() {
            DirBuilder::new().recursive(true).mode(0o755).create(run_dir).map_err(failed)?;
        }
        let lock = lock_file(&run_dir.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Taken(run_dir.to_owned())),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let listener = bind(run_dir, &path).map_err(failed)?;
        Ok(Socket { listener, path, _lock: lock })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // While the lock is held. One that stays is replaced by the next agent.
        let _ = fs::remove_file(&self.path);
    }
}

/// For root alone: whoever can open it can hold it.
fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Appears by rename with its mode, so that there is always a socket that answers, or none.
fn bind(run_dir: &Path, path: &Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt;
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let words = "there is a file of that name that is no socket: remove it";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, words));
        }
        _ => {}
    }
    let fresh = run_dir.join(FRESH);
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = StdListener::bind(&fresh)?;
    fs::set_permissions(&fresh, Permissions::from_mode(MODE))?;
    listener.set_nonblocking(true)?;
    fs::rename(&fresh, path)?;
    UnixListener::from_std(listener)
}
