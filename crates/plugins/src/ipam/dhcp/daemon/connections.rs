// SPDX-License-Identifier: Apache-2.0
//! The daemon's socket and the connections of plugins. Requests are read as they arrive and answered when the reply is
//! known.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni::{Code, Error};

use super::super::protocol::{self, DaemonReply, DaemonRequest, MAX_LINE};
use super::log;
use crate::error::Context;

/// The socket on which the daemon accepts connections.
#[derive(Debug)]
pub(super) struct ListenSocket {
    listener: UnixListener,
    /// File of the socket, if the daemon created it and must remove it.
    file: Option<PathBuf>,
}

impl ListenSocket {
    /// Uses the socket that systemd passed, or creates one.
    pub(super) fn open(path: &Path) -> Result<ListenSocket, Error> {
        let var = |name| std::env::var(name).ok();
        let (count, pid) = (var("LISTEN_FDS"), var("LISTEN_PID"));
        match inherited(count.as_deref(), pid.as_deref(), std::process::id())? {
            true => {
                let listener = kernel::daemon::inherited_listener().context("socket activation")?;
                ListenSocket { listener, file: None }.set_nonblocking(path)
            }
            false => {
                let fail = |cause: io::Error| {
                    Error::because(Code::IO, format!("listen at {}", path.display()), &cause)
                };
                let listener = bind(path).map_err(fail)?;
                ListenSocket { listener, file: Some(path.to_owned()) }.set_nonblocking(path)
            }
        }
    }

    fn set_nonblocking(self, path: &Path) -> Result<ListenSocket, Error> {
        self.listener.set_nonblocking(true).map_err(|cause| {
            Error::because(Code::IO, format!("listen at {}", path.display()), &cause)
        })?;
        Ok(self)
    }

    /// Accepts the next waiting connection.
    pub(super) fn accept(&self) -> Option<UnixStream> {
        self.listener.accept().ok().map(|(stream, _)| stream)
    }

    /// Closes the socket and removes its file.
    pub(super) fn close(self) {
        if let Some(file) = self.file {
            // The file may be gone already.
            let _ = fs::remove_file(file);
        }
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Returns whether systemd passed a socket to this process, and not to its parent.
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

/// Creates a socket that only root can use. Replaces the stale socket of a daemon that has died.
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
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file is not a socket"));
    }
    match UnixStream::connect(path) {
        Err(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(cause) => Err(cause),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another daemon is listening")),
    }
}

/// Time limit for a request to arrive. A plugin writes it at once.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Start of a request of the Go plugin.
const GO_GREETING: &[u8] = b"CONNECT ";
const REPLY_TO_GO: &[u8] =
    b"HTTP/1.0 400 this is podwire's dhcp daemon, it does not support the Go plugin\r\n\r\n";

/// Identifies a connection.
pub(super) type ConnectionId = u64;

/// Input from a connection.
#[derive(Debug)]
pub(super) enum Input {
    /// The request is not complete yet.
    Incomplete,
    /// A complete request.
    Request(DaemonRequest),
    /// The plugin has closed the connection.
    Closed,
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    input: Vec<u8>,
    /// Deadline for the request; `None` once it is complete.
    deadline: Option<Instant>,
}

/// All open connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    connections: BTreeMap<ConnectionId, Connection>,
    last: ConnectionId,
}

impl Connections {
    /// Adds a connection if the other end is root.
    pub(super) fn accept(&mut self, stream: UnixStream, now: Instant) {
        let is_root = kernel::daemon::is_from_root(&stream).unwrap_or(false);
        if !is_root || stream.set_nonblocking(true).is_err() {
            log::line("connection rejected: the client is not root");
            return;
        }
        self.last += 1;
        let deadline = Some(now + REQUEST_TIMEOUT);
        self.connections.insert(self.last, Connection { stream, input: Vec::new(), deadline });
    }

    /// Returns the descriptors to wait for.
    pub(super) fn fds(&self) -> impl Iterator<Item = (ConnectionId, BorrowedFd<'_>)> {
        self.connections.iter().map(|(id, connection)| (*id, connection.stream.as_fd()))
    }

    /// Returns the first deadline of a connection.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.connections.values().filter_map(|connection| connection.deadline).min()
    }

    /// Drops connections whose request did not arrive in time.
    pub(super) fn drop_idle(&mut self, now: Instant) {
        self.connections
            .retain(|_, connection| connection.deadline.is_none_or(|deadline| now < deadline));
    }

    /// Reads the input of a connection.
    pub(super) fn receive(&mut self, id: ConnectionId) -> Input {
        let Some(connection) = self.connections.get_mut(&id) else { return Input::Closed };
        let input = connection.receive();
        match input {
            Ok(Input::Closed) => {
                self.connections.remove(&id);
                Input::Closed
            }
            Ok(input) => input,
            Err(error) => {
                self.reply(id, &DaemonReply::failed(&error));
                Input::Incomplete
            }
        }
    }

    /// Sends the reply and closes the connection. Returns whether the reply was sent.
    pub(super) fn reply(&mut self, id: ConnectionId, reply: &DaemonReply) -> bool {
        let Some(mut connection) = self.connections.remove(&id) else { return false };
        let Ok(mut line) = serde_json::to_vec(reply) else { return false };
        line.push(b'\n');
        // A reply fits into the socket's buffer, so this does not block.
        connection.stream.write_all(&line).is_ok()
    }
}

impl Connection {
    fn receive(&mut self) -> Result<Input, Error> {
        let mut buffer = [0; 8192];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(Input::Closed),
                // Input after the request is ignored.
                Ok(_) if self.deadline.is_none() => {}
                Ok(length) => self.input.extend(&buffer[..length]),
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Ok(Input::Closed),
            }
            if self.input.len() > MAX_LINE {
                return Err(Error::new(Code::DECODE, "the request is too long"));
            }
        }
        if self.input.starts_with(GO_GREETING) {
            // Reply in HTTP, which the Go plugin expects. A failure does not matter, because the connection is closed.
            let _ = self.stream.write_all(REPLY_TO_GO);
            return Ok(Input::Closed);
        }
        let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else {
            return Ok(Input::Incomplete);
        };
        let request = protocol::parse(&self.input[..end])
            .map_err(|cause| Error::because(Code::DECODE, "request to the daemon", &cause))?;
        self.deadline = None;
        self.input = Vec::new();
        Ok(Input::Request(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_for_another_process_is_ignored() {
        let check = |count: &str, pid: &str| inherited(Some(count), Some(pid), 7);
        assert_eq!(inherited(None, None, 7), Ok(false));
        assert_eq!(check("1", "8"), Ok(false));
        assert_eq!(check("1", "7"), Ok(true));
        assert_eq!(check("0", "7"), Ok(false));
        assert!(check("2", "7").unwrap_err().msg.contains("LISTEN_FDS is \"2\""));
    }

    #[test]
    fn only_a_stale_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/s");
        drop(bind(&path).unwrap());
        // A process that another test has just forked has a copy of the descriptor until it calls exec.
        let timeout = std::time::Duration::from_secs(30);
        let live = testkit::wait_some(timeout, || bind(&path).ok()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = bind(&path).unwrap_err();
        assert!(error.to_string().contains("another daemon"), "{error}");
        drop(live);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        assert!(bind(&path).unwrap_err().to_string().contains("not a socket"));
    }
}
