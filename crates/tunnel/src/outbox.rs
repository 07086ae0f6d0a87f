// SPDX-License-Identifier: Apache-2.0
//! Packets on their way out, grouped: what goes to one node in datagrams of one size is one send.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::ops::Range;

use crate::packet::cut::Piece;

/// The kernel's limit to datagrams in one send, UDP_MAX_SEGMENTS; half of what newer ones have.
const MOST: usize = 64;
/// The longest that IPv4 and IPv6 carry in one packet, which a send is until it is cut.
const LONGEST: usize = 65_535 - 48;

/// Sends in order. Payload stays where it was read to, new headers are here.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub heads: Vec<u8>,
    datagrams: Vec<Piece>,
    sends: Vec<Send>,
}

/// Datagrams of one size, the last of which may be shorter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Send {
    pub to: SocketAddr,
    pub size: usize,
    pub bytes: usize,
    /// Among all datagrams.
    pub datagrams: Range<usize>,
    /// The last is shorter: nothing can follow.
    is_closed: bool,
}

impl Outbox {
    pub(crate) fn clear(&mut self) {
        self.heads.clear();
        self.datagrams.clear();
        self.sends.clear();
    }

    /// Adds a packet whose body is at its place in what was read.
    pub(crate) fn push(&mut self, to: SocketAddr, datagram: Piece) {
        let len = datagram.len();
        let at = self.datagrams.len();
        self.datagrams.push(datagram);
        match self.sends.last_mut() {
            Some(send) if send.can_take(to, len) => {
                send.bytes += len;
                send.datagrams.end += 1;
                send.is_closed = len < send.size;
            }
            _ => {
                let datagrams = at..at + 1;
                self.sends.push(Send { to, size: len, bytes: len, datagrams, is_closed: false });
            }
        }
    }

    pub(crate) fn sends(&self) -> &[Send] {
        &self.sends
    }

    /// The bytes of datagrams, in a row.
    pub(crate) fn parts<'a>(&'a self, datagrams: Range<usize>, read: &'a [u8]) -> Vec<IoSlice<'a>> {
        let mut parts: Vec<IoSlice<'a>> = Vec::with_capacity(datagrams.len() * 2);
        for Piece { head, body } in &self.datagrams[datagrams] {
            if !head.is_empty() {
                parts.push(IoSlice::new(&self.heads[head.clone()]));
            }
            parts.push(IoSlice::new(&read[body.clone()]));
        }
        parts
    }
}

impl Send {
    fn can_take(&self, to: SocketAddr, len: usize) -> bool {
        let count = self.datagrams.len();
        let fits = count < MOST && self.bytes + len <= LONGEST;
        !self.is_closed && self.to == to && len <= self.size && fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ports and lengths in; port, size and number of datagrams of each send out.
    fn check(datagrams: &[(u16, usize)], expected: &[(u16, usize, usize)]) {
        let mut outbox = Outbox::default();
        for &(port, len) in datagrams {
            let to = SocketAddr::from(([192, 0, 2, 1], port));
            outbox.push(to, Piece { head: 0..0, body: 0..len });
        }
        let read = vec![0; 70_000];
        for send in outbox.sends() {
            let parts = outbox.parts(send.datagrams.clone(), &read);
            assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), send.bytes);
        }
        let found = outbox.sends().iter();
        let found: Vec<_> = found.map(|s| (s.to.port(), s.size, s.datagrams.len())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn equal_datagrams_to_one_node_are_one_send() {
        check(&[(1, 100), (1, 100), (1, 60), (1, 60)], &[(1, 100, 3), (1, 60, 1)]);
        check(&[(1, 100), (2, 100), (2, 100)], &[(1, 100, 1), (2, 100, 2)]);
        check(&[(1, 100), (1, 101)], &[(1, 100, 1), (1, 101, 1)]);
    }

    #[test]
    fn sends_stay_below_the_kernels_limits() {
        check(&[(1, 52); 130], &[(1, 52, 64), (1, 52, 64), (1, 52, 2)]);
        check(&[(1, 1472); 45], &[(1, 1472, 44), (1, 1472, 1)]);
        check(&[(1, 65_000), (1, 65_000)], &[(1, 65_000, 1), (1, 65_000, 1)]);
    }
}
