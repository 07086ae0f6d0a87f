// SPDX-License-Identifier: Apache-2.0
//! Sending probes and telling whose answers come back, and who sends some to us. A probe begins with a
//! number that is on no other; one that is a knock has a mark behind it.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{IpAddr, SocketAddr};

use kernel::Family;
use kernel::socket::echo_listener::EchoListener;
use kernel::socket::icmp_probe::{ChecksumBy, ProbeSocket, Reason};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::check::{Outcome, Probe};
use crate::watched::watched;

/// Nobody listens there: what traceroute counts on, too.
const PORT: u16 = 33_434;
/// An agent's random number and the probe's own.
const NUMBER: usize = 16;
/// Behind the number, for agents that have given up on the one that sends it.
const KNOCK: [u8; 8] = *b"knocking";
const LARGEST: usize = 65_536;

/// The sockets of one family.
#[derive(Debug)]
pub(super) struct Sockets {
    family: Family,
    echo: AsyncFd<ProbeSocket>,
    datagram: AsyncFd<ProbeSocket>,
    knocks: AsyncFd<EchoListener>,
    /// What tells our packets from those of others.
    ours: u64,
    buffer: Vec<u8>,
}

/// What came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    Answer(Answer),
    /// Somebody there knocks.
    Knock(IpAddr),
}

/// What came back for a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    pub number: u64,
    pub outcome: Outcome,
    /// Counts only if this is the peer: anybody on the way may say so.
    pub if_by: Option<IpAddr>,
}

impl Sockets {
    pub(super) fn open(family: Family) -> kernel::Result<Self> {
        let ours = random();
        let identifier = (ours & 0xffff) as u16;
        Ok(Self {
            family,
            echo: watched(ProbeSocket::echo(family, identifier)?)?,
            datagram: watched(ProbeSocket::datagram(family)?)?,
            knocks: watched(EchoListener::open(family, KNOCK, NUMBER as u32)?)?,
            ours,
            buffer: vec![0; LARGEST],
        })
    }

    /// Sends a probe under this number; `false` if it is larger than what the device takes. What cannot be
    /// sent for another reason is not answered, and that is how it is noticed.
    pub(super) fn send(&self, to: IpAddr, probe: Probe, number: u64) -> bool {
        let headers = if self.family == Family::V4 { 20 + 8 } else { 40 + 8 };
        let (socket, size, sum, mark) = match probe {
            Probe::Knock { size } => (&self.echo, size, ChecksumBy::Device, KNOCK),
            Probe::Echo { size } => (&self.echo, size, ChecksumBy::Device, [0; 8]),
            Probe::Datagram { size, sum } => (&self.datagram, size, sum, [0; 8]),
        };
        let mut payload = [self.ours.to_be_bytes(), number.to_be_bytes(), mark].concat();
        payload.resize((size as usize).saturating_sub(headers).clamp(payload.len(), LARGEST), 0);
        let sent = socket.get_ref().send(SocketAddr::new(to, PORT), &payload, sum);
        !sent.is_err_and(|cause| cause.raw_os_error() == Some(TOO_LARGE))
    }

    /// Waits for something to come.
    pub(super) async fn receive(&mut self) -> io::Result<Vec<Heard>> {
        let interest = Interest::READABLE | Interest::ERROR;
        let socket = tokio::select! {
            ready = self.echo.ready(interest) => {
                ready?.clear_ready();
                self.echo.get_ref()
            }
            ready = self.datagram.ready(interest) => {
                ready?.clear_ready();
                self.datagram.get_ref()
            }
            ready = self.knocks.ready(interest) => {
                ready?.clear_ready();
                return who_knocks(self.knocks.get_ref());
            }
        };
        let mut answers = Vec::new();
        while let Some(range) = socket.receive(&mut self.buffer)? {
            let number = number(&self.buffer[range], self.ours);
            let answered = |number| Answer { number, outcome: Outcome::Answered, if_by: None };
            answers.extend(number.map(answered).map(Heard::Answer));
        }
        while let Some(error) = socket.receive_error(&mut self.buffer)? {
            let (outcome, if_by) = match error.reason {
                Reason::TooBig(mtu) => (Outcome::TooBig(Some(mtu).filter(|mtu| *mtu > 0)), None),
                Reason::Refused => (Outcome::Answered, None),
                Reason::Unreachable if error.by.is_none() => continue,
                // A firewall of the peer's, which looks at checksums as well.
                Reason::Unreachable => (Outcome::Answered, error.by),
            };
            let number = number(&self.buffer[..error.len], self.ours);
            answers.extend(number.map(|number| Heard::Answer(Answer { number, outcome, if_by })));
        }
        Ok(answers)
    }
}

fn who_knocks(socket: &EchoListener) -> io::Result<Vec<Heard>> {
    let mut knocks = Vec::new();
    while let Some(address) = socket.receive()? {
        knocks.push(Heard::Knock(address));
    }
    Ok(knocks)
}

const TOO_LARGE: i32 = 90; // asm-generic/errno.h, EMSGSIZE

/// The number of a probe of ours.
fn number(payload: &[u8], ours: u64) -> Option<u64> {
    let numbers = payload.first_chunk::<NUMBER>()?;
    let (front, back) = numbers.split_at(NUMBER / 2);
    let is_ours = front == ours.to_be_bytes();
    is_ours.then(|| back.try_into().ok().map(u64::from_be_bytes))?
}

/// A number that nobody can guess: the standard library's hashers begin with one.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_others_are_not_ours() {
        let payload = [7_u64.to_be_bytes(), 9_u64.to_be_bytes(), KNOCK].concat();
        assert_eq!(number(&payload, 7), Some(9));
        assert_eq!(number(&payload, 8), None);
        assert_eq!(number(&payload[..15], 7), None);
    }
}
