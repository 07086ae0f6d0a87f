// SPDX-License-Identifier: Apache-2.0
//! Sockets for probes: sends probes, matches answers to them, and receives hellos of other agents. The payload of a
//! probe begins with a unique number. In a hello, a fixed marker follows.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{IpAddr, SocketAddr};

use kernel::Family;
use kernel::socket::echo_listener::EchoListener;
use kernel::socket::icmp_probe::{ChecksumBy, ProbeSocket, Reason};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::probe::{Outcome, Probe};
use crate::async_fd::register;

/// A port that is usually closed. traceroute relies on that as well.
const PORT: u16 = 33_434;
/// Length of the agent's random number and the number of the probe.
const NUMBER: usize = 16;
/// Marks a hello. Agents that gave up on the sender then check it again. Part of the wire format.
const HELLO: [u8; 8] = *b"knocking";
const MAX_PACKET: usize = 65_536;

/// The sockets of one family.
#[derive(Debug)]
pub(super) struct Sockets {
    family: Family,
    echo: AsyncFd<ProbeSocket>,
    datagram: AsyncFd<ProbeSocket>,
    hellos: AsyncFd<EchoListener>,
    /// Random number in all probes of this agent.
    agent_number: u64,
    buffer: Vec<u8>,
}

/// A packet that concerns the path check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    Answer(Answer),
    /// The agent at this address has sent a hello.
    Hello(IpAddr),
}

/// An answer to a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    pub number: u64,
    pub outcome: Outcome,
    /// The answer counts only if this is the peer, because any router may send such an answer.
    pub only_from: Option<IpAddr>,
}

impl Sockets {
    pub(super) fn open(family: Family) -> kernel::Result<Self> {
        let agent_number = random();
        let identifier = (agent_number & 0xffff) as u16;
        Ok(Self {
            family,
            echo: register(ProbeSocket::echo(family, identifier)?)?,
            datagram: register(ProbeSocket::datagram(family)?)?,
            hellos: register(EchoListener::open(family, HELLO, NUMBER as u32)?)?,
            agent_number,
            buffer: vec![0; MAX_PACKET],
        })
    }

    /// Sends a probe with this number. Returns `false` if it is larger than the device's MTU. Other errors are ignored:
    /// the probe is then not answered in time.
    pub(super) fn send(&self, to: IpAddr, probe: Probe, number: u64) -> bool {
        let headers = if self.family == Family::V4 { 20 + 8 } else { 40 + 8 };
        let (socket, size, sum, marker) = match probe {
            Probe::Hello { size } => (&self.echo, size, ChecksumBy::Device, HELLO),
            Probe::Echo { size } => (&self.echo, size, ChecksumBy::Device, [0; 8]),
            Probe::Datagram { size, sum } => (&self.datagram, size, sum, [0; 8]),
        };
        let mut payload = [self.agent_number.to_be_bytes(), number.to_be_bytes(), marker].concat();
        payload.resize((size as usize).saturating_sub(headers).clamp(payload.len(), MAX_PACKET), 0);
        let sent = socket.get_ref().send(SocketAddr::new(to, PORT), &payload, sum);
        !sent.is_err_and(|cause| cause.raw_os_error() == Some(TOO_LARGE))
    }

    /// Waits for packets.
    pub(super) async fn receive(&mut self) -> io::Result<Vec<Received>> {
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
            ready = self.hellos.ready(interest) => {
                ready?.clear_ready();
                return receive_hellos(self.hellos.get_ref());
            }
        };
        let mut answers = Vec::new();
        while let Some(range) = socket.receive(&mut self.buffer)? {
            let number = number(&self.buffer[range], self.agent_number);
            let answered = |number| Answer { number, outcome: Outcome::Answered, only_from: None };
            answers.extend(number.map(answered).map(Received::Answer));
        }
        while let Some(error) = socket.receive_error(&mut self.buffer)? {
            let (outcome, only_from) = match error.reason {
                Reason::TooBig(mtu) => (Outcome::TooBig(Some(mtu).filter(|mtu| *mtu > 0)), None),
                Reason::Refused => (Outcome::Answered, None),
                Reason::Unreachable if error.by.is_none() => continue,
                // From a firewall on the peer, which drops packets with wrong checksums before.
                Reason::Unreachable => (Outcome::Answered, error.by),
            };
            let number = number(&self.buffer[..error.len], self.agent_number);
            answers.extend(
                number.map(|number| Received::Answer(Answer { number, outcome, only_from })),
            );
        }
        Ok(answers)
    }
}

fn receive_hellos(socket: &EchoListener) -> io::Result<Vec<Received>> {
    let mut hellos = Vec::new();
    while let Some(address) = socket.receive()? {
        hellos.push(Received::Hello(address));
    }
    Ok(hellos)
}

const TOO_LARGE: i32 = 90; // asm-generic/errno.h, EMSGSIZE

/// Returns the number of a probe, if this agent sent it.
fn number(payload: &[u8], agent_number: u64) -> Option<u64> {
    let numbers = payload.first_chunk::<NUMBER>()?;
    let (front, back) = numbers.split_at(NUMBER / 2);
    let is_ours = front == agent_number.to_be_bytes();
    is_ours.then(|| back.try_into().ok().map(u64::from_be_bytes))?
}

/// Returns an unpredictable number, the random seed of the standard library's hashers.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_of_another_agent_is_ignored() {
        let payload = [7_u64.to_be_bytes(), 9_u64.to_be_bytes(), HELLO].concat();
        assert_eq!(number(&payload, 7), Some(9));
        assert_eq!(number(&payload, 8), None);
        assert_eq!(number(&payload[..15], 7), None);
    }
}
