// SPDX-License-Identifier: Apache-2.0
//! Plugins that have come with a question: read as it arrives, answered when there is an answer.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use cni::{Code, Error};

use super::super::protocol::{Answer, MAX_LINE, Question};
use super::log;

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
