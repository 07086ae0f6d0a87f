// SPDX-License-Identifier: Apache-2.0
//! From other nodes to one queue of the interface.

use std::fs::File;
use std::io::{self, IoSlice, PipeReader, Write};
use std::sync::Arc;

use kernel::socket::udp_gso::{GsoSocket, ReceiveBuffer};

use crate::counts::{Counts, Shared};
use crate::packet::Ip;
use crate::packet::merge::{Merger, Ready};
use crate::wait::{self, Woken};

/// What one thread works with.
#[derive(Debug)]
pub(crate) struct Inward {
    pub queue: Arc<File>,
    pub socket: Arc<GsoSocket>,
    pub counts: Arc<Shared>,
}

impl Inward {
    /// Carries packets until it is told to stop.
    pub(crate) fn run(&self, stop: &PipeReader) -> io::Result<()> {
        let mut buffer = ReceiveBuffer::new();
        loop {
            match self.socket.receive(&mut buffer) {
                Ok(_) => {
                    let mut round = Counts::default();
                    self.take(&buffer, &mut round);
                    self.counts.add(&round);
                }
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                    if wait::readable(&*self.socket, stop)? == Woken::Stopped {
                        return Ok(());
                    }
                }
                // What became of an earlier datagram of ours: it is told once.
                Err(_) => {}
            }
        }
    }

    fn take(&self, buffer: &ReceiveBuffer, round: &mut Counts) {
        let mut merger = Merger::default();
        for packet in buffer.datagrams() {
            if Ip::of(packet).is_none() {
                round.dropped.malformed += 1;
                continue;
            }
            round.received.packets += 1;
            round.received.bytes += packet.len() as u64;
            if let Some(ready) = merger.push(packet) {
                self.write(&ready, round);
            }
        }
        if let Some(ready) = merger.finish() {
            self.write(&ready, round);
        }
    }

    fn write(&self, ready: &Ready<'_>, round: &mut Counts) {
        let packets = ready.packets();
        let parts: Vec<IoSlice<'_>> = ready.parts().map(IoSlice::new).collect();
        let whole: usize = parts.iter().map(|part| part.len()).sum();
        match (&*self.queue).write_vectored(&parts) {
            Ok(len) if len == whole => round.received.large += u64::from(packets > 1),
            _ => round.dropped.not_taken += packets as u64,
        }
    }
}
