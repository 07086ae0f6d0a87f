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

use super::super::protocol::{Answer, MAX_LINE, Question};
use super::log;
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

/// A plugin writes its question at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the Go plugin says first.
const GO_GREETING: &[u8] = b"CONNECT ";
const TO_GO: &[u8] =
    b"HTTP/1.0 400 this is podwire's dhcp daemon, the plugin is another one\r\n\r\n";

/// Tells callers apart.
pub type CallerId = u64;

/// What became of a caller.
#[derive(Debug)]
pub enum Turn {
    /// There is more to come.
    Unfinished,
    /// This is asked.
    Asked(Question),
    /// It has gone away.
    Gone,
}

#[derive(Debug)]
struct Caller {
    stream: UnixStream,
    said: Vec<u8>,
    /// Until when its question must be here; `None` once it is.
    until: Option<Instant>,
}

/// All that are there.
#[derive(Debug, Default)]
pub struct Callers {
    callers: BTreeMap<CallerId, Caller>,
    last: CallerId,
}

impl Callers {
    /// Lets one in, if it is root's.
    pub fn welcome(&mut self, stream: UnixStream, now: Instant) {
        let is_welcome = kernel::daemon::is_from_root(&stream).unwrap_or(false);
        if !is_welcome || stream.set_nonblocking(true).is_err() {
            log::line("a caller that is not root was turned away");
            return;
        }
        self.last += 1;
        let until = Some(now + PATIENCE);
        self.callers.insert(self.last, Caller { stream, said: Vec::new(), until });
    }

    /// What to wait for.
    pub fn fds(&self) -> impl Iterator<Item = (CallerId, BorrowedFd<'_>)> {
        self.callers.iter().map(|(id, caller)| (*id, caller.stream.as_fd()))
    }

    /// When the first of them has been silent for too long.
    pub fn deadline(&self) -> Option<Instant> {
        self.callers.values().filter_map(|caller| caller.until).min()
    }

    /// Drops those who have been silent for too long.
    pub fn drop_silent(&mut self, now: Instant) {
        self.callers.retain(|_, caller| caller.until.is_none_or(|until| now < until));
    }

    /// Reads what one says.
    pub fn hear(&mut self, id: CallerId) -> Turn {
        let Some(caller) = self.callers.get_mut(&id) else { return Turn::Gone };
        let turn = caller.hear();
        match turn {
            Ok(Turn::Gone) => {
                self.callers.remove(&id);
                Turn::Gone
            }
            Ok(turn) => turn,
            Err(error) => {
                self.answer(id, &Answer::failed(&error));
                Turn::Unfinished
            }
        }
    }

    /// Tells the answer and says goodbye; whether it has been heard.
    pub fn answer(&mut self, id: CallerId, answer: &Answer) -> bool {
        let Some(mut caller) = self.callers.remove(&id) else { return false };
        let Ok(mut line) = serde_json::to_vec(answer) else { return false };
        line.push(b'\n');
        // An answer fits the socket's buffer, so that this does not wait.
        caller.stream.write_all(&line).is_ok()
    }
}

impl Caller {
    fn hear(&mut self) -> Result<Turn, Error> {
        let mut buffer = [0; 8192];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(Turn::Gone),
                // Whoever has asked has nothing more to say.
                Ok(_) if self.until.is_none() => {}
                Ok(length) => self.said.extend(&buffer[..length]),
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Ok(Turn::Gone),
            }
            if self.said.len() > MAX_LINE {
                return Err(Error::new(Code::DECODE, "the question is too long"));
            }
        }
        if self.said.starts_with(GO_GREETING) {
            // It is told what it understands; if it does not listen, it is gone all the same.
            let _ = self.stream.write_all(TO_GO);
            return Ok(Turn::Gone);
        }
        let Some(end) = self.said.iter().position(|byte| *byte == b'\n') else {
            return Ok(Turn::Unfinished);
        };
        let question = serde_json::from_slice(&self.said[..end])
            .map_err(|cause| Error::because(Code::DECODE, "question to the daemon", &cause))?;
        self.until = None;
        self.said = Vec::new();
        Ok(Turn::Asked(question))
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
