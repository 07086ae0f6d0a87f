// SPDX-License-Identifier: Apache-2.0
//! One TCP connection at full speed.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::Outcome;
use super::node::Node;

/// Time until TCP has reached its full speed.
const WARM_UP: Duration = Duration::from_millis(500);

/// A connection whose sender blocks only if the receiver does not read.
pub(crate) struct Flow {
    receiver: TcpStream,
    block: Vec<u8>,
}

impl Flow {
    /// Connects from one node to an address of the other and waits for full speed.
    pub(crate) fn start([a, b]: &[Node; 2], to: IpAddr) -> Outcome<Self> {
        let at = SocketAddr::new(to, 7000);
        let listener = b.netns.enter(|| TcpListener::bind(at))??;
        let mut sender = a.netns.enter(|| TcpStream::connect(at))??;
        let (receiver, _) = listener.accept()?;
        thread::spawn(move || {
            let block = vec![7; 256 * 1024];
            while sender.write_all(&block).is_ok() {}
        });
        let mut flow = Self { receiver, block: vec![0; 256 * 1024] };
        flow.measure(WARM_UP)?;
        Ok(flow)
    }

    /// Throughput at the receiver in bit/s.
    pub(crate) fn measure(&mut self, time: Duration) -> Outcome<f64> {
        let (start, mut bytes) = (Instant::now(), 0);
        while start.elapsed() < time {
            bytes += self.receiver.read(&mut self.block)?;
        }
        // Far below 2^52.
        Ok(bytes as f64 * 8.0 / start.elapsed().as_secs_f64())
    }
}
