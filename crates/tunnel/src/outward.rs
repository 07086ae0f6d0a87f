// SPDX-License-Identifier: Apache-2.0
//! From one queue of the interface to other nodes.

use std::fs::File;
use std::io::{self, IoSlice, PipeReader, Read};
use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use kernel::Family;
use kernel::socket::packet::IcmpSender;
use kernel::socket::udp_gso::{Datagrams, GsoSocket};

use crate::counts::{Counts, Shared};
use crate::outbox::{Outbox, Send};
use crate::packet::icmp::{self, Limit, Reason};
use crate::packet::vnet::{self, Vnet};
use crate::packet::{Ip, cut, take_hop};
use crate::peers::Peers;
use crate::tunnel::PeersInUse;
use crate::wait::{self, Woken};

/// The longest that the kernel hands over.
const LONGEST: usize = vnet::LEN + 65_535;
/// Once this much is read it is sent: more would not stay in the processor's cache.
const ENOUGH: usize = 64 * 1024;
/// Once so many packets are read they are sent.
const MANY: usize = 64;

/// What one thread works with.
#[derive(Debug)]
pub(crate) struct Outward {
    pub queue: Arc<File>,
    pub socket: Arc<GsoSocket>,
    pub icmp: [Option<IcmpSender>; 2],
    pub peers: PeersInUse,
    pub counts: Arc<Shared>,
}

impl Outward {
    /// Carries packets until it is told to stop; an error if the interface is gone.
    pub(crate) fn run(&self, stop: &PipeReader) -> io::Result<()> {
        let mut batch = Batch::new();
        let mut outbox = Outbox::default();
        let mut limit = Limit::new(Instant::now());
        loop {
            let is_drained = batch.read(&self.queue)?;
            if !batch.packets.is_empty() {
                let mut round = Counts::default();
                let told = batch.sort(&self.peers.read(), &mut outbox, &mut round);
                self.send(&outbox, &batch.bytes, &mut round);
                self.tell(&batch.bytes, &told, &mut limit);
                self.counts.add(&round);
            }
            if is_drained && wait::readable(&*self.queue, stop)? == Woken::Stopped {
                return Ok(());
            }
        }
    }

    fn send(&self, outbox: &Outbox, read: &[u8], round: &mut Counts) {
        let sends = outbox.sends();
        let parts: Vec<Vec<IoSlice<'_>>> =
            sends.iter().map(|send| outbox.parts(send.datagrams.clone(), read)).collect();
        let message = |(send, parts): (&Send, _)| {
            let is_several = send.datagrams.len() > 1;
            let size = u16::try_from(send.size).ok().and_then(NonZeroU16::new);
            Datagrams { to: send.to, size: size.filter(|_| is_several), parts }
        };
        let messages: Vec<Datagrams<'_>> =
            sends.iter().zip(parts.iter().map(Vec::as_slice)).map(message).collect();
        let mut at = 0;
        while at < messages.len() {
            match self.socket.send(&messages[at..]) {
                Ok(count) => {
                    for send in &sends[at..at + count] {
                        round.sent.packets += send.datagrams.len() as u64;
                        round.sent.bytes += send.bytes as u64;
                    }
                    at += count;
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.send_singly(outbox, read, &sends[at], round);
                    at += 1;
                }
            }
        }
    }

    /// Each datagram for itself: where the path has become too narrow for them only the kernel can
    /// cut them further, and it does not for several in one; and one refused must not stop the others.
    fn send_singly(&self, outbox: &Outbox, read: &[u8], send: &Send, round: &mut Counts) {
        for at in send.datagrams.clone() {
            let parts = outbox.parts(at..at + 1, read);
            let message = Datagrams { to: send.to, size: None, parts: &parts };
            match self.socket.send(&[message]) {
                Ok(_) => {
                    round.sent.packets += 1;
                    round.sent.bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
                }
                Err(_) => round.dropped.not_sent += 1,
            }
        }
    }

    fn tell(&self, read: &[u8], told: &[(Range<usize>, Reason)], limit: &mut Limit) {
        for (at, reason) in told {
            let packet = &read[at.clone()];
            let Some(ip) = Ip::of(packet) else { continue };
            let Some(message) = icmp::message(packet, &ip, *reason) else { continue };
            let [v4, v6] = &self.icmp;
            let sender = if ip.family == Family::V4 { v4 } else { v6 };
            if let Some(sender) = sender
                && limit.allows(Instant::now())
            {
                // A sender that cannot be reached is not told.
                let _ = sender.send(ip.source, &message);
            }
        }
    }
}

/// Packets read in a row.
#[derive(Debug)]
struct Batch {
    bytes: Vec<u8>,
    /// What the kernel says of each, and where it is.
    packets: Vec<(Option<Vnet>, Range<usize>)>,
}

impl Batch {
    fn new() -> Batch {
        Batch { bytes: vec![0; ENOUGH + LONGEST], packets: Vec::with_capacity(MANY) }
    }

    /// Reads until nothing is there or it is enough; whether nothing is there.
    fn read(&mut self, mut queue: &File) -> io::Result<bool> {
        self.packets.clear();
        let mut used = 0;
        while used < ENOUGH && self.packets.len() < MANY {
            match queue.read(&mut self.bytes[used..]) {
                Ok(len) => {
                    let header = self.bytes[used..used + len].first_chunk::<{ vnet::LEN }>();
                    let vnet = header.and_then(Vnet::of);
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

    /// Puts every packet into the outbox, as datagrams; those whose sender is to be told come back.
    fn sort(
        &mut self,
        peers: &Peers,
        outbox: &mut Outbox,
        round: &mut Counts,
    ) -> Vec<(Range<usize>, Reason)> {
        outbox.clear();
        let mut told = Vec::new();
        for (vnet, at) in &self.packets {
            let packet = &mut self.bytes[at.clone()];
            let (Some(vnet), Some(ip)) = (vnet, Ip::of(packet)) else {
                round.dropped.malformed += 1;
                continue;
            };
            if ip.destination.is_multicast() {
                round.dropped.multicast += 1;
                continue;
            }
            let Some(to) = peers.via(ip.destination) else {
                round.dropped.no_route += 1;
                told.push((at.clone(), Reason::NoRoute));
                continue;
            };
            if !take_hop(packet, &ip) {
                round.dropped.expired += 1;
                told.push((at.clone(), Reason::Expired));
                continue;
            }
            // Bodies are counted from the packet's beginning.
            let moved = |body: Range<usize>| at.start + body.start..at.start + body.end;
            let mut heads = std::mem::take(&mut outbox.heads);
            let cut = cut::pieces(vnet, packet, &ip, &mut heads, |piece| {
                outbox.push(to, cut::Piece { body: moved(piece.body), ..piece });
            });
            outbox.heads = heads;
            match cut {
                Ok(()) => round.sent.large += u64::from(vnet.large.is_some()),
                Err(cut::Malformed) => round.dropped.malformed += 1,
            }
        }
        told
    }
}
