// SPDX-License-Identifier: Apache-2.0
//! The node agent, asked over its socket: HTTP in the least form that its server understands. Every
//! wait has an end.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::silence::Silence;

/// Where an agent's socket is unless it was told otherwise.
pub const SOCKET: &str = "/run/podwire/agent.sock";

/// The status of some ten thousand nodes.
const MAX_ANSWER: usize = 1 << 25;

/// What an agent answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP's: 200, or 503 for something that is not as it should be.
    pub code: u16,
    pub body: String,
}

/// Asks for a page, such as `/readyz`.
pub fn ask(socket: &Path, page: &str, patience: Duration) -> Result<Answer, Silence> {
    let end = Instant::now() + patience;
    let mut stream = UnixStream::connect(socket).map_err(Silence::Absent)?;
    let mute = |cause: io::Error| Silence::mute(&cause, patience);
    stream.set_write_timeout(Some(patience)).map_err(mute)?;
    // The end of an answer to HTTP/1.0 is the end of the connection.
    let request = format!("GET {page} HTTP/1.0\r\nHost: podwire\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(mute)?;
    let said = read_all(&mut stream, end).map_err(mute)?;
    understand(&said).ok_or_else(|| Silence::Mute("what answers is no podwire agent".to_owned()))
}

/// What comes until the other end closes. One that sends a byte now and then must end, too.
fn read_all(stream: &mut UnixStream, end: Instant) -> io::Result<Vec<u8>> {
    let mut said = Vec::new();
    let mut chunk = [0; 16 * 1024];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || said.len() > MAX_ANSWER {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(said),
            Ok(length) => said.extend_from_slice(&chunk[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn understand(said: &[u8]) -> Option<Answer> {
    let text = std::str::from_utf8(said).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let code = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { code, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn an_answer_has_a_code_and_a_body() {
        let said = b"HTTP/1.0 503 Service Unavailable\r\ncontent-length: 3\r\n\r\nno\n";
        assert_eq!(understand(said), Some(Answer { code: 503, body: "no\n".into() }));
        for other in ["", "no", "HTTP/1.1\r\n\r\n", "HTTP/1.1 x\r\n\r\n", "SSH-2.0 200 x\r\n\r\n"] {
            assert_eq!(understand(other.as_bytes()), None, "{other:?}");
        }
    }

    #[test]
    fn nobody_and_somebody_silent_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let ask = || ask(&path, "/readyz", Duration::from_millis(50));
        assert!(matches!(ask(), Err(Silence::Absent(_))));
        let listener = UnixListener::bind(&path).unwrap();
        let silence = ask().unwrap_err();
        assert!(matches!(&silence, Silence::Mute(why) if why == "no answer within 0.05 s"));
        drop(listener);
        // A process that another test has just started holds it until it is another program.
        testkit::wait_for("what a crash leaves", Duration::from_secs(30), || {
            matches!(ask(), Err(Silence::Absent(_)))
        });
    }
}
