// SPDX-License-Identifier: Apache-2.0
//! Round trips of small packets between two network namespaces.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use kernel::Netns;

use super::Outcome;

const PORT: u16 = 7000;
const TIMEOUT: Duration = Duration::from_secs(5);
/// Round trips that are not measured.
const WARM_UP: usize = 100;

/// Returns the microseconds of each round trip.
pub(crate) fn measure(from: &Path, to: &Path, address: &str, count: usize) -> Outcome<Vec<f64>> {
    let to = Netns::open(to)?;
    let server = to.enter(|| UdpSocket::bind((address, PORT)))??;
    let client = Netns::open(from)?.enter(|| UdpSocket::bind("0.0.0.0:0"))??;
    client.set_read_timeout(Some(TIMEOUT))?;
    client.connect(SocketAddr::new(address.parse()?, PORT))?;
    // Ends with this process.
    thread::spawn(move || -> std::io::Result<()> {
        let mut buffer = [0; 64];
        loop {
            let (length, peer) = server.recv_from(&mut buffer)?;
            server.send_to(&buffer[..length], peer)?;
        }
    });
    let mut micros = Vec::with_capacity(count);
    let mut buffer = [0; 64];
    for number in 0..WARM_UP + count {
        let start = Instant::now();
        client.send(&buffer[..56])?;
        client.recv(&mut buffer)?;
        if number >= WARM_UP {
            micros.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok(micros)
}
