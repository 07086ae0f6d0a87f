// SPDX-License-Identifier: Apache-2.0
//! The protocol between plugin and daemon: a request and a reply, each one line of JSON, on a socket that only root can
//! use. Every wait is limited, because a hanging daemon must not block DEL.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use agent_client::ClientError;
use cni::{Attachment, Code, Error};
use ipnet::IpNet;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::conf::LeaseOptions;

/// Maximum length of a line.
pub(super) const MAX_LINE: usize = 4 << 20;

/// A request of the plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "verb")]
pub(super) enum DaemonRequest {
    /// Acquire leases and renew them.
    Add(Box<AddRequest>),
    /// Release the leases.
    Del(Location),
    /// Check that the daemon has the leases. Leases without a daemon are adopted.
    Check(Box<CheckRequest>),
    /// Check that the daemon runs.
    Status,
    /// Release leases of attachments that are not valid.
    Gc { network: String, valid: Vec<Attachment> },
}

/// By hand, because serde's code for a tagged enum would make the program 20 KB larger.
impl<'de> Deserialize<'de> for DaemonRequest {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<DaemonRequest, D::Error> {
        #[derive(Deserialize)]
        struct Gc {
            network: String,
            valid: Vec<Attachment>,
        }
        let value = Value::deserialize(from)?;
        let verb = value["verb"].as_str().unwrap_or_default().to_owned();
        let request = match verb.as_str() {
            "add" => serde_json::from_value(value).map(DaemonRequest::Add),
            "del" => serde_json::from_value(value).map(DaemonRequest::Del),
            "check" => serde_json::from_value(value).map(DaemonRequest::Check),
            "status" => Ok(DaemonRequest::Status),
            "gc" => serde_json::from_value(value)
                .map(|Gc { network, valid }| DaemonRequest::Gc { network, valid }),
            _ => return Err(D::Error::custom(format!("unknown verb {verb:?}"))),
        };
        request.map_err(D::Error::custom)
    }
}

/// Identifies an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentKey {
    pub network: String,
    pub container_id: String,
    pub ifname: String,
}

/// An attachment and its namespace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Location {
    pub key: AttachmentKey,
    /// Absolute path of the namespace; empty if the namespace is gone.
    pub netns: String,
}

/// Parameters of ADD.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AddRequest {
    #[serde(rename = "place")]
    pub location: Location,
    #[serde(rename = "asked")]
    pub options: LeaseOptions,
}

/// Parameters of CHECK.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CheckRequest {
    #[serde(rename = "place")]
    pub location: Location,
    #[serde(rename = "asked")]
    pub options: LeaseOptions,
    /// Addresses in the result of the ADD.
    pub addresses: Vec<IpNet>,
}

/// A reply of the daemon.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum DaemonReply {
    /// Success; for ADD with a result in the newest version.
    Done(Option<Value>),
    /// An error of the specification.
    Failed { code: u32, msg: String, details: String },
}

impl DaemonReply {
    /// Creates the reply for an error.
    pub(super) fn failed(error: &Error) -> DaemonReply {
        let (code, msg, details) = (error.code.0, error.msg.clone(), error.details.clone());
        DaemonReply::Failed { code, msg, details }
    }

    /// Converts the reply to the result of a plugin.
    pub(super) fn into_result(self) -> Result<Option<Value>, Error> {
        match self {
            DaemonReply::Done(value) => Ok(value),
            DaemonReply::Failed { code, msg, details } => {
                Err(Error::new(Code(code), msg).with_details(details))
            }
        }
    }
}

impl AttachmentKey {
    /// Returns the name for logs, errors and DHCP servers, in the format of the Go plugin.
    pub fn name(&self) -> String {
        let AttachmentKey { network, container_id, ifname } = self;
        format!("{container_id}/{network}/{ifname}")
    }
}

/// Sends a request to the daemon and waits for the reply. The inner result is the daemon's.
pub(super) fn ask(
    socket: &Path,
    request: &DaemonRequest,
    timeout: Duration,
) -> Result<Result<Option<Value>, Error>, ClientError> {
    let mut stream = UnixStream::connect(socket).map_err(ClientError::Connect)?;
    let no_answer = |cause: io::Error| ClientError::no_answer(&cause, timeout);
    stream.set_read_timeout(Some(timeout)).map_err(no_answer)?;
    stream.set_write_timeout(Some(timeout)).map_err(no_answer)?;
    let mut line = serde_json::to_vec(request).map_err(|cause| no_answer(cause.into()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(no_answer)?;
    let mut line = Vec::new();
    let mut reader = BufReader::new(stream).take(MAX_LINE as u64);
    reader.read_until(b'\n', &mut line).map_err(no_answer)?;
    let reply: DaemonReply = parse(&line).map_err(|_| {
        ClientError::NoAnswer("what answers is not podwire's dhcp daemon".to_owned())
    })?;
    Ok(reply.into_result())
}

/// Parses JSON in two steps: a parser of its own for each type makes the program larger.
pub(super) fn parse<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice::<Value>(text).and_then(serde_json::from_value)
}

/// Creates the error for a daemon that does not answer.
pub(super) fn no_daemon(code: Code, socket: &Path, cause: &ClientError) -> Error {
    let msg = format!("error dialing DHCP daemon: {cause}");
    Error::new(code, msg).with_details(format!(
        "the dhcp daemon does not answer at {}: start it with `dhcp daemon`, from the directory of \
         plugins",
        socket.display()
    ))
}
