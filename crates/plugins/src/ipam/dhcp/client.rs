// SPDX-License-Identifier: Apache-2.0
//! The plugin's end of the socket. Every wait has an end: a daemon that hangs must not hang DEL.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use agent_client::ClientError;
use cni::{Code, Error};
use serde_json::Value;

use super::protocol::{Answer, MAX_LINE, Question};

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
