// SPDX-License-Identifier: Apache-2.0
//! The path check: now and then a full-size packet to each peer. It finds peers that are not reachable,
//! paths that carry less than pods send, and devices that send wrong checksums through tunnels, which is
//! repaired. Peers need not run this agent: their kernels answer.

pub mod check;
mod repair;
mod said;
pub mod schedule;
mod sockets;
mod target;
mod watch;

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;

pub use self::schedule::Pace;
pub use self::target::{Target, targets};
pub use self::watch::{Command, run};

/// What is known of the path to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whose, in the words of its [`Target`].
    pub peer: String,
    /// Its pods.
    pub subnet: IpNet,
    /// Where it was asked.
    pub address: IpAddr,
    /// Whether it answers.
    pub reachable: bool,
    /// The largest packet that passes, up to what pods send; none if nothing does.
    pub path_mtu: Option<u32>,
    /// What pods send.
    pub full: u32,
    /// What arrives of checksums.
    pub checksum: Checksum,
    /// To the peer and back.
    pub round_trip: Option<Duration>,
    /// When that was found.
    pub at: SystemTime,
}

impl Verdict {
    /// The MTU that the subnet's route should have; none if it needs none.
    pub fn route_mtu(&self) -> Option<u32> {
        self.path_mtu.filter(|mtu| *mtu < self.full)
    }
}

/// What arrives of the checksums that programs leave to devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// They are right.
    Right,
    /// This check found them wrong, and they are right now that the tunnel's device no longer leaves them to
    /// the one below. Later checks find them right.
    Repaired,
    /// They are wrong: TCP and UDP do not get through.
    Wrong,
    /// The peer answers no datagrams.
    Unknown,
}
