// SPDX-License-Identifier: Apache-2.0
//! Receives packets from other nodes and writes them to one queue of the interface.

use std::fs::File;
use std::io::{self, IoSlice, PipeReader, Write};
use std::sync::Arc;

use kernel::socket::udp_gso::{GsoSocket, ReceiveBuffer};

use crate::counts::{Counts, SharedCounts};
use crate::packet::Ip;
use crate::packet::merge::{MergedPacket, Merger};
use crate::wait::{self, Woken};

/// State of one receiving thread.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub queue: Arc<File>,
    pub socket: Arc<GsoSocket>,
    pub counts: Arc<SharedCounts>,
}

impl Receiver {
    /// Forwards packets until the stop pipe is closed.
    pub(crate) fn run(&self, stop: &PipeReader) -> io::Result<()> {
        let mut buffer = ReceiveBuffer::new();
        loop {
            match self.socket.receive(&mut buffer) {
                Ok(_) => {
                    let mut round = Counts::default();
                    self.forward(&buffer, &mut round);
                    self.counts.add(&round);
                }
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                    if wait::readable(&*self.socket, stop)? == Woken::Stopped {
                        return Ok(());
                    }
                }
                // An ICMP error for an earlier sent datagram; the kernel reports it once.
                Err(_) => {}
            }
        }
    }

    fn forward(&self, buffer: &ReceiveBuffer, round: &mut Counts) {
        let mut merger = Merger::default();
        for packet in buffer.datagrams() {
            if Ip::parse(packet).is_none() {
                round.dropped.malformed += 1;
                continue;
            }
            round.received.packets += 1;
            round.received.bytes += packet.len() as u64;
            if let Some(merged) = merger.push(packet) {
                self.write(&merged, round);
            }
        }
        if let Some(merged) = merger.finish() {
            self.write(&merged, round);
        }
    }

    fn write(&self, merged: &MergedPacket<'_>, round: &mut Counts) {
        let packets = merged.packets();
        let parts: Vec<IoSlice<'_>> = merged.parts().map(IoSlice::new).collect();
        let total: usize = parts.iter().map(|part| part.len()).sum();
        match (&*self.queue).write_vectored(&parts) {
            Ok(len) if len == total => round.received.large += u64::from(packets > 1),
            _ => round.dropped.not_taken += packets as u64,
        }
    }
}
