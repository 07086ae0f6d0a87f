// SPDX-License-Identifier: Apache-2.0
//! What plugin and daemon say to each other: one line of JSON each way, on a socket for root alone.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use agent_client::ClientError;
use cni::{Attachment, Code, Error};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conf::Asked;

/// The longest line.
pub const MAX_LINE: usize = 4 << 20;

/// What the plugin asks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", tag = "verb")]
pub enum Question {
    /// Get leases and keep them.
    Add(Box<AddQuestion>),
    /// Give them back.
    Del(Place),
    /// Are they held? Those that nobody holds are taken over.
    Check(Box<CheckQuestion>),
    /// Is anybody there?
    Status,
    /// Give back what is not listed.
    Gc {
        /// The network that this is about.
        network: String,
        /// What to keep.
        valid: Vec<Attachment>,
    },
}

/// Which attachment, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// The network.
    pub network: String,
    /// The container.
    pub container_id: String,
    /// Its interface.
    pub ifname: String,
}

/// An attachment and its namespace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// Whose.
    pub key: Key,
    /// The namespace as an absolute path; empty where there is none any more.
    pub netns: String,
}

/// Get leases and keep them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AddQuestion {
    /// For whom.
    pub place: Place,
    /// Which.
    pub asked: Asked,
}

/// Are leases of these addresses held?
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckQuestion {
    /// For whom.
    pub place: Place,
    /// Which.
    pub asked: Asked,
    /// The addresses that the result of the ADD tells.
    pub addresses: Vec<IpNet>,
}

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// It is done; for ADD with a result of the newest version.
    Done(Option<Value>),
    /// It is not, in the specification's words.
    Failed {
        /// Its code.
        code: u32,
        /// One line.
        msg: String,
        /// More.
        details: String,
    },
}

impl Answer {
    /// An error to be told.
    pub fn failed(error: &Error) -> Answer {
        let (code, msg, details) = (error.code.0, error.msg.clone(), error.details.clone());
        Answer::Failed { code, msg, details }
    }

    /// As what a plugin returns.
    pub fn into_result(self) -> Result<Option<Value>, Error> {
        match self {
            Answer::Done(value) => Ok(value),
            Answer::Failed { code, msg, details } => {
                Err(Error::new(Code(code), msg).with_details(details))
            }
        }
    }
}

impl Key {
    /// As logs and errors show it, and as servers know it.
    pub fn text(&self) -> String {
        let Key { network, container_id, ifname } = self;
        format!("{container_id}/{network}/{ifname}")
    }
}

/// Asks the daemon; its own errors are in the inner result.
pub fn ask(
    socket: &Path,
    question: &Question,
    patience: Duration,
) -> Result<Result<Option<Value>, Error>, ClientError> {
    let mut stream = UnixStream::connect(socket).map_err(ClientError::Connect)?;
    let no_answer = |cause: io::Error| ClientError::no_answer(&cause, patience);
    stream.set_read_timeout(Some(patience)).map_err(no_answer)?;
    stream.set_write_timeout(Some(patience)).map_err(no_answer)?;
    let mut line = serde_json::to_vec(question).map_err(|cause| no_answer(cause.into()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(no_answer)?;
    let mut said = Vec::new();
    let mut reader = BufReader::new(stream).take(MAX_LINE as u64);
    reader.read_until(b'\n', &mut said).map_err(no_answer)?;
    let answer: Answer = serde_json::from_slice(&said).map_err(|_| {
        ClientError::NoAnswer("what answers is not podwire's dhcp daemon".to_owned())
    })?;
    Ok(answer.into_result())
}

/// The error for a daemon that does not answer.
pub fn no_daemon(code: Code, socket: &Path, cause: &ClientError) -> Error {
    let msg = format!("error dialing DHCP daemon: {cause}");
    Error::new(code, msg).with_details(format!(
        "the dhcp daemon does not answer at {}: start it with `dhcp daemon`, from the directory of \
         plugins",
        socket.display()
    ))
}
