// SPDX-License-Identifier: Apache-2.0
//! Packets to send, grouped into messages: datagrams of one size to one node.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::ops::Range;

use crate::packet::segment::WirePacket;

/// Maximum number of datagrams per message (UDP_MAX_SEGMENTS; newer kernels allow twice as many).
const MAX_DATAGRAMS: usize = 64;
/// Maximum length of a message: until the kernel segments it, it is one IP packet.
const MAX_LEN: usize = 65_535 - 48;

/// Messages to send, in order. It owns the new headers; the payload stays in the buffer of the
/// packets read.
#[derive(Debug, Default)]
pub(crate) struct SendBatch {
    pub headers: Vec<u8>,
    datagrams: Vec<WirePacket>,
    messages: Vec<Message>,
}

/// Datagrams of one size to one node; the last one may be shorter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub to: SocketAddr,
    pub size: usize,
    pub bytes: usize,
    /// Range of the batch's datagrams.
    pub datagrams: Range<usize>,
    /// The last datagram is shorter, so that no other can follow.
    is_closed: bool,
}

impl SendBatch {
    pub(crate) fn clear(&mut self) {
        self.headers.clear();
        self.datagrams.clear();
        self.messages.clear();
    }

    /// Adds a packet; the range of its body refers to the buffer of the packets read.
    pub(crate) fn push(&mut self, to: SocketAddr, datagram: WirePacket) {
        let len = datagram.len();
        let at = self.datagrams.len();
        self.datagrams.push(datagram);
        match self.messages.last_mut() {
            Some(message) if message.can_take(to, len) => {
                message.bytes += len;
                message.datagrams.end += 1;
                message.is_closed = len < message.size;
            }
            _ => {
                let datagrams = at..at + 1;
                let is_closed = false;
                self.messages.push(Message { to, size: len, bytes: len, datagrams, is_closed });
            }
        }
    }

    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Returns the bytes of datagrams in order.
    pub(crate) fn parts<'a>(&'a self, datagrams: Range<usize>, read: &'a [u8]) -> Vec<IoSlice<'a>> {
        let mut parts: Vec<IoSlice<'a>> = Vec::with_capacity(datagrams.len() * 2);
        for WirePacket { head, body } in &self.datagrams[datagrams] {
            if !head.is_empty() {
                parts.push(IoSlice::new(&self.headers[head.clone()]));
            }
            parts.push(IoSlice::new(&read[body.clone()]));
        }
        parts
    }
}

impl Message {
    fn can_take(&self, to: SocketAddr, len: usize) -> bool {
        let count = self.datagrams.len();
        let fits = count < MAX_DATAGRAMS && self.bytes + len <= MAX_LEN;
        !self.is_closed && self.to == to && len <= self.size && fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds datagrams given by port and length; expects the port, size and number of datagrams of
    /// each message.
    fn check(datagrams: &[(u16, usize)], expected: &[(u16, usize, usize)]) {
        let mut batch = SendBatch::default();
        for &(port, len) in datagrams {
            let to = SocketAddr::from(([192, 0, 2, 1], port));
            batch.push(to, WirePacket { head: 0..0, body: 0..len });
        }
        let read = vec![0; 70_000];
        for message in batch.messages() {
            let parts = batch.parts(message.datagrams.clone(), &read);
            assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), message.bytes);
        }
        let messages = batch.messages().iter();
        let messages: Vec<_> =
            messages.map(|one| (one.to.port(), one.size, one.datagrams.len())).collect();
        assert_eq!(messages, expected);
    }

    #[test]
    fn equal_datagrams_to_one_node_form_one_message() {
        check(&[(1, 100), (1, 100), (1, 60), (1, 60)], &[(1, 100, 3), (1, 60, 1)]);
        check(&[(1, 100), (2, 100), (2, 100)], &[(1, 100, 1), (2, 100, 2)]);
        check(&[(1, 100), (1, 101)], &[(1, 100, 1), (1, 101, 1)]);
    }

    #[test]
    fn messages_stay_within_the_kernel_limits() {
        check(&[(1, 52); 130], &[(1, 52, 64), (1, 52, 64), (1, 52, 2)]);
        check(&[(1, 1472); 45], &[(1, 1472, 44), (1, 1472, 1)]);
        check(&[(1, 65_000), (1, 65_000)], &[(1, 65_000, 1), (1, 65_000, 1)]);
    }
}
