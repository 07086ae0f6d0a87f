// SPDX-License-Identifier: Apache-2.0
//! One gRPC call over a Unix socket, on a connection of its own: the frames of HTTP/2 that it takes,
//! without compression. That spares the tests an async runtime and a minute of compiling.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

// RFC 9113, section 6
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The whole connection, and the first stream of a client.
const CONNECTION: u32 = 0;
const STREAM: u32 = 1;

/// A pod may take its time on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Sends a message to a method such as `/runtime.v1.RuntimeService/Status` and returns the reply. A
/// call that fails has none; the server's log, which is in the test's output, tells why.
pub fn call(socket: &str, method: &str, message: &[u8]) -> Result<Vec<u8>, String> {
    let failed = |cause: io::Error| format!("{socket}: {cause}");
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.write_all(&request(method, message)).map_err(failed)?;
    let body = reply(&mut stream).map_err(failed)?;
    // A byte that says "not compressed", the length, the message.
    let (head, reply) = body.split_at_checked(5).ok_or("an error; see containerd's log above")?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    if head[0] != 0 || length as usize != reply.len() {
        return Err(format!("not one plain message: {head:?} and {} bytes", reply.len()));
    }
    Ok(reply.to_vec())
}

fn request(method: &str, message: &[u8]) -> Vec<u8> {
    let headers: Vec<u8> = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    .into_iter()
    .flat_map(|(name, value)| header(name, value))
    .collect();
    let length = u32::try_from(message.len()).expect("a message of a test is small");
    let body = [&[0], &length.to_be_bytes()[..], message].concat();
    [
        PREFACE,
        &frame(SETTINGS, 0, CONNECTION, &[]),
        &frame(HEADERS, END_HEADERS, STREAM, &headers),
        &frame(DATA, END_STREAM, STREAM, &body),
    ]
    .concat()
}

/// A literal header that is not remembered (RFC 7541, section 6.2.2).
fn header(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| {
        let length = u8::try_from(text.len()).ok().filter(|length| *length < 127);
        [&[length.expect("headers of a test are short")], text.as_bytes()].concat()
    };
    [vec![0], text(name), text(value)].concat()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a frame of a test is small");
    // Larger ones would have to be split.
    assert!(length <= 16384, "{length} bytes in a frame");
    [&length.to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The body of the response. Replies of CRI fit into the window that a connection starts with.
fn reply(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload)?;
        let (kind, flags) = (head[3], head[4]);
        match kind {
            DATA => body.extend(payload),
            SETTINGS if flags & ACK == 0 => {
                stream.write_all(&frame(SETTINGS, ACK, CONNECTION, &[]))?;
            }
            PING if flags & ACK == 0 => {
                stream.write_all(&frame(PING, ACK, CONNECTION, &payload))?;
            }
            RST_STREAM | GOAWAY => {
                return Err(io::Error::other(format!("frame {kind} of HTTP/2: {payload:?}")));
            }
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            return Ok(body);
        }
    }
}
