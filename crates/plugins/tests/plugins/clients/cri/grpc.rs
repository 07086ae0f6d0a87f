// SPDX-License-Identifier: Apache-2.0
//! A minimal gRPC client: one uncompressed call per Unix socket connection, with only the HTTP/2
//! frames needed. An async gRPC library would add a minute of compile time to the tests.

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

/// Stream 0 is the connection itself, stream 1 the client's first stream.
const CONNECTION: u32 = 0;
const STREAM: u32 = 1;

/// Starting a pod takes long on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Sends a message to a method such as `/runtime.v1.RuntimeService/Status` and returns the reply. A
/// failed call has no reply; the cause is in the server's log, which is part of the test's output.
pub fn call(socket: &str, method: &str, message: &[u8]) -> Result<Vec<u8>, String> {
    let failed = |cause: io::Error| format!("{socket}: {cause}");
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
    stream.write_all(&request(method, message)).map_err(failed)?;
    let body = reply(&mut stream).map_err(failed)?;
    // Compression flag (1 byte), length (4 bytes), message.
    let (head, reply) =
        body.split_at_checked(5).ok_or("call failed, see containerd's log above")?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    if head[0] != 0 || length as usize != reply.len() {
        return Err(format!(
            "expected one uncompressed message: {head:?} and {} bytes",
            reply.len()
        ));
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
    let length = u32::try_from(message.len()).expect("test messages are small");
    let body = [&[0], &length.to_be_bytes()[..], message].concat();
    [
        PREFACE,
        &frame(SETTINGS, 0, CONNECTION, &[]),
        &frame(HEADERS, END_HEADERS, STREAM, &headers),
        &frame(DATA, END_STREAM, STREAM, &body),
    ]
    .concat()
}

/// A literal header field without indexing (RFC 7541, section 6.2.2).
fn header(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| {
        let length = u8::try_from(text.len()).ok().filter(|length| *length < 127);
        [&[length.expect("test headers are short")], text.as_bytes()].concat()
    };
    [vec![0], text(name), text(value)].concat()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("test frames are small");
    // Larger payloads would have to be split.
    assert!(length <= 16384, "{length} bytes in a frame");
    [&length.to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Reads the response body. CRI replies fit into the initial window of a connection.
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
                return Err(io::Error::other(format!("HTTP/2 frame {kind}: {payload:?}")));
            }
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            return Ok(body);
        }
    }
}
