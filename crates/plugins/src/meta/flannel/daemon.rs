// SPDX-License-Identifier: Apache-2.0
//! What the daemon says: by the file that tells what it has leased for this node, and, where it is
//! podwire's own agent, when it is asked.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_client::ClientError;
use cni::Code;
use overlay::subnet_env::{Problem, SubnetEnv};

/// An agent answers within a millisecond, on a busy node within seconds, or hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a file tells nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} is not there: flannel's daemon is not ready on this node", .0.display())]
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
    /// A passing state has the code that the verb gives it.
    pub fn to_cni(&self, passing: Code) -> cni::Error {
        let is_passing = match self {
            Error::Missing(_) => true,
            Error::Content { problem, .. } => matches!(problem, Problem::Incomplete(_)),
            Error::Io { .. } => false,
        };
        let code = match self {
            _ if is_passing || passing == Code::NOT_AVAILABLE => passing,
            Error::Io { .. } => Code::IO,
            _ => Code::INTERNAL,
        };
        let error = cni::Error::because(code, "flannel", self);
        if is_passing {
            return error.with_details("look at the log of flannel's pod on this node");
        }
        error
    }
}

/// What the daemon has written.
pub fn read(file: &Path) -> Result<SubnetEnv, Error> {
    let read = fsutil::read_following(file).map_err(|cause| match cause.kind() {
        ErrorKind::NotFound => Error::Missing(file.to_owned()),
        _ => Error::Io { file: file.to_owned(), cause },
    })?;
    let text = String::from_utf8_lossy(&read);
    SubnetEnv::parse(&text).map_err(|problem| Error::Content { file: file.to_owned(), problem })
}

/// Asks the agent whether pods can be connected. Without one the file decides alone: flannel's daemon
/// has no such socket, and while an agent is started again its node goes on.
pub fn require_ready(socket: Option<&Path>, code: Code) -> Result<(), cni::Error> {
    let Some(socket) = socket else { return Ok(()) };
    let not_ready = |why: &str| cni::Error::new(code, format!("flannel: {why}"));
    match agent_client::get(socket, "/readyz", PATIENCE) {
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
