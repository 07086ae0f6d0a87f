// SPDX-License-Identifier: Apache-2.0
//! Blocking client of the node agent's unix socket, for the plugins and the command-line tool. It
//! sends one HTTP request per connection and needs no async runtime. Every wait has a deadline.

#![warn(missing_docs)]

pub mod ipam;
pub mod pools;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Path of the agent's socket if the agent runs with its default options.
pub const DEFAULT_SOCKET: &str = "/run/podwire/agent.sock";

/// State directory of the agent if it runs with its default options.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/podwire";

/// Upper limit for a response: the status of about ten thousand nodes.
const MAX_RESPONSE: usize = 1 << 25;

/// Response of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// HTTP status code: 200, or 503 if the agent reports a problem.
    pub status: u16,
    /// Body of the response.
    pub body: String,
}

/// Reason why a daemon on a unix socket did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection: no process listens on the socket, or access is denied.
    #[error("{0}")]
    Connect(io::Error),
    /// The daemon accepted the connection but sent no valid response in time.
    #[error("{0}")]
    NoAnswer(String),
}

impl ClientError {
    /// Describes an I/O error on an open connection whose calls time out after `timeout`.
    pub fn no_answer(cause: &io::Error, timeout: Duration) -> Self {
        ClientError::NoAnswer(match cause.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("no answer within {} s", timeout.as_secs_f32())
            }
            _ => cause.to_string(),
        })
    }
}

/// Requests `path`, for example `/readyz`, and waits at most `timeout` for the whole response.
pub fn get(socket: &Path, path: &str, timeout: Duration) -> Result<Response, ClientError> {
    send(socket, &format!("GET {path} HTTP/1.0\r\nHost: podwire\r\n\r\n"), timeout)
}

/// Sends a JSON body to `path`, and waits at most `timeout` for the whole response.
pub fn post(
    socket: &Path,
    path: &str,
    body: &str,
    timeout: Duration,
) -> Result<Response, ClientError> {
    let length = body.len();
    let head = format!("POST {path} HTTP/1.0\r\nHost: podwire\r\nContent-Length: {length}");
    send(socket, &format!("{head}\r\nContent-Type: application/json\r\n\r\n{body}"), timeout)
}

/// With HTTP/1.0 the server closes the connection after the response.
fn send(socket: &Path, request: &str, timeout: Duration) -> Result<Response, ClientError> {
    let deadline = Instant::now() + timeout;
    let mut stream = UnixStream::connect(socket).map_err(ClientError::Connect)?;
    let no_answer = |cause: io::Error| ClientError::no_answer(&cause, timeout);
    stream.set_write_timeout(Some(timeout)).map_err(no_answer)?;
    stream.write_all(request.as_bytes()).map_err(no_answer)?;
    let bytes = read_to_end(&mut stream, deadline).map_err(no_answer)?;
    parse(&bytes).ok_or_else(|| {
        ClientError::NoAnswer("the process on this socket is not a podwire agent".to_owned())
    })
}

/// Reads until the peer closes the connection. The deadline also ends a connection on which the peer
/// sends single bytes.
fn read_to_end(stream: &mut UnixStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 * 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || bytes.len() > MAX_RESPONSE {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(length) => bytes.extend_from_slice(&chunk[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn parse(bytes: &[u8]) -> Option<Response> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Response { status, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn response_has_status_and_body() {
        let bytes = b"HTTP/1.0 503 Service Unavailable\r\ncontent-length: 3\r\n\r\nno\n";
        assert_eq!(parse(bytes), Some(Response { status: 503, body: "no\n".into() }));
        for other in ["", "no", "HTTP/1.1\r\n\r\n", "HTTP/1.1 x\r\n\r\n", "SSH-2.0 200 x\r\n\r\n"] {
            assert_eq!(parse(other.as_bytes()), None, "{other:?}");
        }
    }

    #[test]
    fn post_sends_head_and_body() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = [0; 256];
            let length = stream.read(&mut received).unwrap();
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nyes").unwrap();
            String::from_utf8(received[..length].to_vec()).unwrap()
        });
        let response = post(&path, "/ipam/gc", "{}", Duration::from_secs(30)).unwrap();
        assert_eq!(response, Response { status: 200, body: "yes".into() });
        let received = server.join().unwrap();
        assert!(received.starts_with("POST /ipam/gc HTTP/1.0\r\n"), "{received}");
        assert!(received.contains("\r\nContent-Length: 2\r\n"), "{received}");
        assert!(received.ends_with("\r\n\r\n{}"), "{received}");
    }

    #[test]
    fn missing_and_silent_agents_give_different_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let get = || get(&path, "/readyz", Duration::from_millis(50));
        assert!(matches!(get(), Err(ClientError::Connect(_))));
        let listener = UnixListener::bind(&path).unwrap();
        let error = get().unwrap_err();
        assert!(matches!(&error, ClientError::NoAnswer(why) if why == "no answer within 0.05 s"));
        drop(listener);
        // A process forked by another test holds a copy of the listener until its exec.
        testkit::wait_for("connection refused", Duration::from_secs(30), || {
            matches!(get(), Err(ClientError::Connect(_)))
        });
    }
}
