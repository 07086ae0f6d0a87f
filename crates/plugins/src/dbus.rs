// SPDX-License-Identifier: Apache-2.0
//! A minimal client of the system D-Bus: method calls with string arguments, replies with a
//! boolean, a string or nothing. Every wait has a deadline.

mod address;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Time limit for all calls of a connection together.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum size of a message. The specification allows 128 MiB; the replies that we need are short.
const MAX_MESSAGE: usize = 1 << 20;

const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
/// Flag: do not start the service for this call.
const NO_AUTO_START: u8 = 2;

/// An authenticated connection.
#[derive(Debug)]
pub(crate) struct Bus {
    stream: UnixStream,
    deadline: Instant,
    serial: u32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Method<'a> {
    pub service: &'a str,
    pub path: &'a str,
    pub interface: &'a str,
    pub name: &'a str,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The service's error message.
    #[error("{0}")]
    Refused(String),
    /// The bus is not reachable or does not answer.
    #[error("D-Bus")]
    Io(#[from] io::Error),
}

const BUS: Method<'static> = Method {
    service: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
    name: "Hello",
};

impl Bus {
    /// Connects to the system bus.
    pub(crate) fn system() -> Result<Self, Error> {
        let stream = address::connect()?;
        let mut bus = Self { stream, deadline: Instant::now() + DEADLINE, serial: 0 };
        bus.authenticate()?;
        bus.call(BUS, &[])?;
        Ok(bus)
    }

    /// Whether a service has this name.
    pub(crate) fn has_owner(&mut self, name: &str) -> Result<bool, Error> {
        let body = self.call(Method { name: "NameHasOwner", ..BUS }, &[name])?;
        Ok(body.first() == Some(&1))
    }

    /// Calls a method with these arguments and returns the body of the reply.
    pub(crate) fn call(&mut self, method: Method<'_>, args: &[&str]) -> Result<Vec<u8>, Error> {
        self.serial += 1;
        let message = write_call(self.serial, method, args);
        self.set_timeouts()?;
        self.stream.write_all(&message)?;
        loop {
            let reply = self.read_message()?;
            if reply.reply_to != Some(self.serial) {
                continue;
            }
            match reply.kind {
                METHOD_RETURN => return Ok(reply.body),
                ERROR => return Err(Error::Refused(reply.error_text())),
                _ => {}
            }
        }
    }

    /// The bus takes our user ID from the socket.
    fn authenticate(&mut self) -> Result<(), Error> {
        self.set_timeouts()?;
        self.stream.write_all(b"\0AUTH EXTERNAL\r\nDATA\r\n")?;
        loop {
            let line = self.read_line()?;
            if line.starts_with("OK ") {
                break;
            }
            if !line.starts_with("DATA") {
                return Err(Error::Refused(format!("D-Bus authentication failed: {line}")));
            }
        }
        self.stream.write_all(b"BEGIN\r\n")?;
        Ok(())
    }

    fn read_line(&mut self) -> Result<String, Error> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") && line.len() < 1000 {
            let mut byte = [0];
            self.read(&mut byte)?;
            line.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    fn read_message(&mut self) -> Result<Reply, Error> {
        let mut head = [0; 16];
        self.read(&mut head)?;
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let word = |at: usize| head.get(at..)?.first_chunk().map(|word| u32_of(&head, *word));
        let (Some(body), Some(fields)) = (word(4), word(12)) else { return Err(invalid().into()) };
        let (body, fields) = (body as usize, fields as usize);
        if body > MAX_MESSAGE || fields > MAX_MESSAGE {
            return Err(invalid().into());
        }
        let mut rest = vec![0; fields.next_multiple_of(8) + body];
        self.read(&mut rest)?;
        let body = rest.split_off(fields.next_multiple_of(8));
        rest.truncate(fields);
        Ok(Reply { kind: head[1], reply_to: reply_to(&head, &rest), body, head })
    }

    fn read(&mut self, to: &mut [u8]) -> Result<(), Error> {
        let mut done = 0;
        while done < to.len() {
            self.set_timeouts()?;
            match self.stream.read(&mut to[done..]) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Limits the next read or write to the rest of the deadline.
    fn set_timeouts(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.set_write_timeout(Some(left))
    }
}

struct Reply {
    kind: u8,
    reply_to: Option<u32>,
    body: Vec<u8>,
    head: [u8; 16],
}

impl Reply {
    /// The body of an error starts with a readable text.
    fn error_text(&self) -> String {
        let len = self.body.first_chunk().map_or(0, |word| u32_of(&self.head, *word) as usize);
        let text = self.body.get(4..4 + len).unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }
}

/// Numbers are in the sender's byte order.
fn u32_of(head: &[u8; 16], word: [u8; 4]) -> u32 {
    if head[0] == b'B' { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
}

/// Reads the header field REPLY_SERIAL.
fn reply_to(head: &[u8; 16], fields: &[u8]) -> Option<u32> {
    let word = |at: usize| Some(u32_of(head, *fields.get(at..)?.first_chunk()?));
    let mut at = 0_usize;
    while at < fields.len() {
        at = at.next_multiple_of(8);
        let (code, kind) = (*fields.get(at)?, *fields.get(at + 2)?);
        // Field code, signature length, signature letter, NUL byte, then the value.
        at += 4;
        match kind {
            b'u' if code == 5 => return word(at),
            b'u' => at += 4,
            b's' | b'o' => at += 4 + word(at)? as usize + 1,
            b'g' => at += 1 + usize::from(*fields.get(at)?) + 1,
            _ => return None,
        }
    }
    None
}

fn write_call(serial: u32, method: Method<'_>, args: &[&str]) -> Vec<u8> {
    let mut body = Vec::new();
    for arg in args {
        put_text(&mut body, arg);
    }
    let mut fields = Vec::new();
    let texts = [
        (1, b'o', method.path),
        (2, b's', method.interface),
        (3, b's', method.name),
        (6, b's', method.service),
    ];
    for (code, kind, text) in texts {
        pad(&mut fields, 8);
        fields.extend([code, 1, kind, 0]);
        put_text(&mut fields, text);
    }
    if !args.is_empty() {
        pad(&mut fields, 8);
        fields.extend([8, 1, b'g', 0, args.len() as u8]);
        fields.extend(args.iter().map(|_| b's'));
        fields.push(0);
    }
    let mut message = vec![b'l', METHOD_CALL, NO_AUTO_START, 1];
    message.extend((body.len() as u32).to_le_bytes());
    message.extend(serial.to_le_bytes());
    message.extend((fields.len() as u32).to_le_bytes());
    message.extend(fields);
    pad(&mut message, 8);
    message.extend(body);
    message
}

fn put_text(to: &mut Vec<u8>, text: &str) {
    pad(to, 4);
    to.extend((text.len() as u32).to_le_bytes());
    to.extend(text.as_bytes());
    to.push(0);
}

fn pad(to: &mut Vec<u8>, unit: usize) {
    to.resize(to.len().next_multiple_of(unit), 0);
}
