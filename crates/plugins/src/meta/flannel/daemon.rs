// SPDX-License-Identifier: Apache-2.0
//! The state of the daemon: the subnet file that it writes for this node and, if the daemon is
//! podwire's agent, its readiness.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_client::ClientError;
use cni::Code;
use overlay::subnet_env::{Problem, SubnetEnv};

/// An agent usually answers within a millisecond, on a busy node within seconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Errors of reading the subnet file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{} does not exist: flannel's daemon is not ready on this node", .0.display())]
    Missing(PathBuf),
    #[error("read {}", .file.display())]
    Io {
        file: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("{}: {problem}", .file.display())]
    Content { file: PathBuf, problem: Problem },
}

impl Error {
    /// A temporary problem gets the code of the verb.
    pub(crate) fn to_cni(&self, temporary: Code) -> cni::Error {
        let is_temporary = match self {
            Error::Missing(_) => true,
            Error::Content { problem, .. } => matches!(problem, Problem::Incomplete(_)),
            Error::Io { .. } => false,
        };
        let code = match self {
            _ if is_temporary || temporary == Code::NOT_AVAILABLE => temporary,
            Error::Io { .. } => Code::IO,
            _ => Code::INTERNAL,
        };
        let error = cni::Error::because(code, "flannel", self);
        if is_temporary {
            return error.with_details("check the log of flannel's pod on this node");
        }
        error
    }
}

/// Reads the subnet file.
pub(crate) fn read(file: &Path) -> Result<SubnetEnv, Error> {
    let read = fsutil::read_following(file).map_err(|cause| match cause.kind() {
        ErrorKind::NotFound => Error::Missing(file.to_owned()),
        _ => Error::Io { file: file.to_owned(), cause },
    })?;
    let text = String::from_utf8_lossy(&read);
    SubnetEnv::parse(&text).map_err(|problem| Error::Content { file: file.to_owned(), problem })
}

/// Asks the agent whether pods can be connected. If no agent listens, the file alone decides:
/// flannel's own daemon has no such socket, and pods can be connected while the agent restarts.
pub(crate) fn require_ready(socket: Option<&Path>, code: Code) -> Result<(), cni::Error> {
    let Some(socket) = socket else { return Ok(()) };
    let not_ready = |why: &str| cni::Error::new(code, format!("flannel: {why}"));
    match agent_client::get(socket, "/readyz", TIMEOUT) {
        Ok(answer) if answer.status == 200 => Ok(()),
        Ok(answer) => {
            let (first, more) = answer.body.split_once('\n').unwrap_or((&answer.body, ""));
            let error = not_ready(&format!("the node agent is not ready: {first}"));
            Err(error.with_details(more.trim_end().replace('\n', "; ")))
        }
        Err(ClientError::Connect(_)) => Ok(()),
        Err(ClientError::NoAnswer(why)) => {
            Err(not_ready(&format!("the node agent at {}: {why}", socket.display())))
        }
    }
}
