// SPDX-License-Identifier: Apache-2.0
//! A minimal HTTP/1.0 server and client, on sockets that are created in the namespaces of pods.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Answers one request.
pub(crate) fn serve_once(listener: &TcpListener, page: &str) -> Result<()> {
    // Otherwise the demo would wait forever for a client that never connects.
    set_socket_timeout(listener, Timeout::Recv, Some(TIMEOUT)).context("set a timeout")?;
    let (mut client, _) = listener.accept().context("wait for a client")?;
    client.set_read_timeout(Some(TIMEOUT)).context("set a timeout")?;
    read_request(&mut client)?;
    client.write_all(response(page).as_bytes()).context("answer the request")
}

/// Fetches `/` from inside the client's namespace. Returns the page and the time from connecting to
/// the last byte.
pub(crate) fn fetch(from: SocketAddr) -> Result<(String, Duration)> {
    let started = Instant::now();
    let mut server =
        TcpStream::connect_timeout(&from, TIMEOUT).with_context(|| format!("connect to {from}"))?;
    server.set_read_timeout(Some(TIMEOUT)).context("set a timeout")?;
    server
        .write_all(format!("GET / HTTP/1.0\r\nHost: {from}\r\n\r\n").as_bytes())
        .context("send a request")?;
    let mut answer = String::new();
    server.read_to_string(&mut answer).with_context(|| format!("read the answer of {from}"))?;
    Ok((page(&answer)?.to_owned(), started.elapsed()))
}

fn read_request(client: &mut TcpStream) -> Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match client.read(&mut buffer).context("read the request")? {
            0 => bail!("the client closed the connection within its request"),
            count => request.extend_from_slice(&buffer[..count]),
        }
        if request.len() > 64 * 1024 {
            bail!("the request is too long");
        }
    }
    Ok(())
}

fn response(page: &str) -> String {
    let length = page.len();
    format!("HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{page}")
}

fn page(answer: &str) -> Result<&str> {
    let Some((head, page)) = answer.split_once("\r\n\r\n") else {
        bail!("the answer is not HTTP: {:?}", answer.chars().take(80).collect::<String>());
    };
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        bail!("the server answered {status:?}");
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_extracted_from_the_response() {
        assert_eq!(page(&response("hello\r\n\r\nworld")).unwrap(), "hello\r\n\r\nworld");
        assert!(page("HTTP/1.0 404 Not Found\r\n\r\n").unwrap_err().to_string().contains("404"));
        assert!(page("SSH-2.0").unwrap_err().to_string().contains("not HTTP"));
    }

    #[test]
    fn client_fetches_page_from_server() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| serve_once(&listener, "hello"));
            assert_eq!(fetch(address).unwrap().0, "hello");
            server.join().unwrap().unwrap();
        });
    }
}
