// SPDX-License-Identifier: Apache-2.0
//! One TCP connection at full speed.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::Outcome;
use super::node::Node;

/// Until TCP has found its speed.
const WARM_UP: Duration = Duration::from_millis(500);

/// Bits a second from one node to an address of the other, as the receiver sees it.
pub fn throughput([a, b]: &[Node; 2], to: IpAddr, time: Duration) -> Outcome<f64> {
    let at = SocketAddr::new(to, 7000);
    let listener = b.netns.enter(|| TcpListener::bind(at))??;
    let mut client = a.netns.enter(|| TcpStream::connect(at))??;
    let (mut server, _) = listener.accept()?;
    thread::spawn(move || {
        let block = vec![7; 256 * 1024];
        while client.write_all(&block).is_ok() {}
    });
    let mut block = vec![0; 256 * 1024];
    let mut read = |time: Duration| -> Outcome<f64> {
        let (start, mut bytes) = (Instant::now(), 0);
        while start.elapsed() < time {
            bytes += server.read(&mut block)?;
        }
        // Far below 2^52.
        Ok(bytes as f64 * 8.0 / start.elapsed().as_secs_f64())
    };
    read(WARM_UP)?;
    read(time)
}
