// SPDX-License-Identifier: Apache-2.0
//! Reads packets from one queue of the interface and sends them to other nodes.

use std::fs::File;
use std::io::{self, IoSlice, PipeReader, Read};
use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use kernel::Family;
use kernel::socket::packet::IcmpSender;
use kernel::socket::udp_gso::{Datagrams, GsoSocket};

use crate::counts::{Counts, SharedCounts};
use crate::packet::icmp::{self, RateLimit, Reason};
use crate::packet::segment::{self, Malformed, WirePacket};
use crate::packet::vnet::{self, Vnet};
use crate::packet::{Ip, decrement_ttl};
use crate::peers::Peers;
use crate::send_batch::{Message, SendBatch};
use crate::tunnel::SharedPeers;
use crate::wait::{self, Woken};

/// Maximum length of a packet from the kernel, with its virtio header.
const MAX_PACKET_LEN: usize = vnet::LEN + 65_535;
/// Number of bytes after which a batch is sent: more would not stay in the CPU cache.
const BATCH_BYTES: usize = 64 * 1024;
/// Number of packets after which a batch is sent.
const BATCH_PACKETS: usize = 64;

/// State of one sending thread.
#[derive(Debug)]
pub(crate) struct Sender {
    pub queue: Arc<File>,
    pub socket: Arc<GsoSocket>,
    pub icmp: [Option<IcmpSender>; 2],
    pub peers: SharedPeers,
    pub counts: Arc<SharedCounts>,
}

impl Sender {
    /// Forwards packets until the stop pipe is closed. Fails if the interface is gone.
    pub(crate) fn run(&self, stop: &PipeReader) -> io::Result<()> {
        let mut read_batch = ReadBatch::new();
        let mut batch = SendBatch::default();
        let mut limit = RateLimit::new(Instant::now());
        loop {
            let is_drained = read_batch.read(&self.queue)?;
            if !read_batch.packets.is_empty() {
                let mut round = Counts::default();
                let errors = read_batch.route(&self.peers.read(), &mut batch, &mut round);
                self.send(&batch, &read_batch.bytes, &mut round);
                self.send_errors(&read_batch.bytes, &errors, &mut limit);
                self.counts.add(&round);
            }
            if is_drained && wait::readable(&*self.queue, stop)? == Woken::Stopped {
                return Ok(());
            }
        }
    }

    fn send(&self, batch: &SendBatch, read: &[u8], round: &mut Counts) {
        let messages = batch.messages();
        let parts: Vec<Vec<IoSlice<'_>>> =
            messages.iter().map(|one| batch.parts(one.datagrams.clone(), read)).collect();
        let datagrams = |(message, parts): (&Message, _)| {
            let has_several = message.datagrams.len() > 1;
            let size = u16::try_from(message.size).ok().and_then(NonZeroU16::new);
            Datagrams { to: message.to, size: size.filter(|_| has_several), parts }
        };
        let datagrams: Vec<Datagrams<'_>> =
            messages.iter().zip(parts.iter().map(Vec::as_slice)).map(datagrams).collect();
        let mut at = 0;
        while at < messages.len() {
            match self.socket.send(&datagrams[at..]) {
                Ok(count) => {
                    for message in &messages[at..at + count] {
                        round.sent.packets += message.datagrams.len() as u64;
                        round.sent.bytes += message.bytes as u64;
                    }
                    at += count;
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.send_one_by_one(batch, read, &messages[at], round);
                    at += 1;
                }
            }
        }
    }

    /// Sends the datagrams of a failed message one by one. If the path MTU has become too small,
    /// the kernel fragments single datagrams but not a message of several; and one rejected
    /// datagram must not stop the others.
    fn send_one_by_one(
        &self,
        batch: &SendBatch,
        read: &[u8],
        message: &Message,
        round: &mut Counts,
    ) {
        for at in message.datagrams.clone() {
            let parts = batch.parts(at..at + 1, read);
            let datagram = Datagrams { to: message.to, size: None, parts: &parts };
            match self.socket.send(&[datagram]) {
                Ok(_) => {
                    round.sent.packets += 1;
                    round.sent.bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
                }
                Err(_) => round.dropped.not_sent += 1,
            }
        }
    }

    /// Sends ICMP errors to the senders of dropped packets.
    fn send_errors(&self, read: &[u8], errors: &[(Range<usize>, Reason)], limit: &mut RateLimit) {
        for (at, reason) in errors {
            let packet = &read[at.clone()];
            let Some(ip) = Ip::parse(packet) else { continue };
            let Some(message) = icmp::message(packet, &ip, *reason) else { continue };
            let [v4, v6] = &self.icmp;
            let sender = if ip.family == Family::V4 { v4 } else { v6 };
            if let Some(sender) = sender
                && limit.allows(Instant::now())
            {
                // Best effort: the sender may be unreachable.
                let _ = sender.send(ip.source, &message);
            }
        }
    }
}

/// Packets read from the interface.
#[derive(Debug)]
struct ReadBatch {
    bytes: Vec<u8>,
    /// Virtio header and position of each packet.
    packets: Vec<(Option<Vnet>, Range<usize>)>,
}

impl ReadBatch {
    fn new() -> ReadBatch {
        ReadBatch {
            bytes: vec![0; BATCH_BYTES + MAX_PACKET_LEN],
            packets: Vec::with_capacity(BATCH_PACKETS),
        }
    }

    /// Reads until the queue is empty or the batch is full. Returns whether the queue is empty.
    fn read(&mut self, mut queue: &File) -> io::Result<bool> {
        self.packets.clear();
        let mut used = 0;
        while used < BATCH_BYTES && self.packets.len() < BATCH_PACKETS {
            match queue.read(&mut self.bytes[used..]) {
                Ok(len) => {
                    let header = self.bytes[used..used + len].first_chunk::<{ vnet::LEN }>();
                    let vnet = header.and_then(Vnet::parse);
                    self.packets.push((vnet, used + vnet::LEN.min(len)..used + len));
                    used += len;
                }
                Err(cause) => match cause.kind() {
                    io::ErrorKind::WouldBlock => return Ok(true),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(cause),
                },
            }
        }
        Ok(false)
    }

    /// Adds every packet to the batch as datagrams for its peer. Returns the packets whose senders
    /// get an ICMP error.
    fn route(
        &mut self,
        peers: &Peers,
        batch: &mut SendBatch,
        round: &mut Counts,
    ) -> Vec<(Range<usize>, Reason)> {
        batch.clear();
        let mut errors = Vec::new();
        for (vnet, at) in &self.packets {
            let packet = &mut self.bytes[at.clone()];
            let (Some(vnet), Some(ip)) = (vnet, Ip::parse(packet)) else {
                round.dropped.malformed += 1;
                continue;
            };
            if ip.destination.is_multicast() {
                round.dropped.multicast += 1;
                continue;
            }
            let Some(to) = peers.lookup(ip.destination) else {
                round.dropped.no_route += 1;
                errors.push((at.clone(), Reason::NoRoute));
                continue;
            };
            if !decrement_ttl(packet, &ip) {
                round.dropped.expired += 1;
                errors.push((at.clone(), Reason::Expired));
                continue;
            }
            // The range of a body is relative to its packet.
            let in_buffer = |body: Range<usize>| at.start + body.start..at.start + body.end;
            let mut headers = std::mem::take(&mut batch.headers);
            let result = segment::split(vnet, packet, &ip, &mut headers, |one| {
                batch.push(to, WirePacket { body: in_buffer(one.body), ..one });
            });
            batch.headers = headers;
            match result {
                Ok(()) => round.sent.large += u64::from(vnet.gso.is_some()),
                Err(Malformed) => round.dropped.malformed += 1,
            }
        }
        errors
    }
}
