// SPDX-License-Identifier: Apache-2.0
//! The check of one peer as a state machine without sockets and clock: the next probe to send, and the meaning of an
//! answer or of silence.
//!
//! 1. Hello: a small echo request. It is skipped if the peer answered its last check.
//! 2. An echo request of the pods' MTU. If it is answered, the path carries full-size packets. If not, a peer that got
//!    no hello gets one now. A peer that does not answer the hello is unreachable.
//! 3. If only the hello is answered, a search between the two sizes finds the largest packet that passes.
//! 4. A datagram of that size to a closed port, with its checksum left to the device, as programs do. The peer's kernel
//!    answers with an ICMP error if the checksum is right, and drops the datagram otherwise.
//! 5. If there is no answer, a datagram whose checksum the kernel has computed. If only this one is answered, the
//!    device's checksums are wrong. If neither is, datagrams are dropped for another reason: the result is unknown.

#[cfg(test)]
mod tests;

use kernel::socket::icmp_probe::ChecksumBy;

/// Number of probes before silence means that the size does not pass. Packets get lost on good paths, too.
const TRIES: u32 = 3;

/// MTUs of common links: Ethernet, PPPoE, tunnels, clouds.
const LIKELY: [u32; 16] = [
    9000, 8951, 8500, 1500, 1492, 1480, 1476, 1460, 1450, 1440, 1430, 1420, 1400, 1380, 1300, 1280,
];

/// A packet to send. The size includes the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Probe {
    /// An echo request that agents recognize. An agent that gave up on this node then checks it again.
    Hello { size: u32 },
    /// An echo request.
    Echo { size: u32 },
    /// A datagram to a closed port.
    Datagram { size: u32, sum: ChecksumBy },
}

/// The outcome of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The peer answered with an echo or with "port unreachable".
    Answered,
    /// A router reported that the packet is too large, perhaps with its MTU.
    TooBig(Option<u32>),
    /// No answer in time.
    Silent,
}

/// Whether checksums that are left to the device arrive intact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChecksumResult {
    Right,
    Wrong,
    /// The peer answers no datagrams.
    Unknown,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    Unreachable,
    Reachable { path_mtu: u32, sums: ChecksumResult },
}

/// The next action of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Send(Probe),
    Done(Finding),
}

/// The result of the previous check of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerReachability {
    Unknown,
    Reachable,
    Unreachable,
}

/// A check in progress.
#[derive(Debug, Clone)]
pub(super) struct Check {
    /// The pods' MTU.
    full: u32,
    /// Size that fits every path.
    small: u32,
    /// Bytes that the tunnel adds to a packet.
    overhead: u32,
    reachability: PeerReachability,
    stage: Stage,
    /// Probes sent in this stage.
    tries: u32,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Hello,
    Full {
        /// Whether the peer has answered a hello.
        is_alive: bool,
    },
    Between(Search),
    Checksums {
        size: u32,
        step: ChecksumStep,
    },
    Done(Finding),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChecksumStep {
    ByDevice,
    ByKernel,
    /// Once more by the device, because its first datagrams may all have been lost.
    Again,
}

/// A search between a size that passes and one that does not.
#[derive(Debug, Clone, Copy)]
struct Search {
    passes: u32,
    fails: u32,
    /// MTU that a router reported.
    hint: Option<u32>,
    /// Whether `passes` is a common MTU. Then it is probably the path's MTU, and one byte more is tried next.
    is_likely: bool,
}

impl Check {
    /// Creates a check with packets of `full` bytes, to which a tunnel adds `overhead`. Packets of `small` bytes are
    /// assumed to pass.
    pub(super) fn new(
        full: u32,
        small: u32,
        overhead: u32,
        reachability: PeerReachability,
    ) -> Self {
        let stage = match reachability {
            PeerReachability::Reachable => Stage::Full { is_alive: false },
            PeerReachability::Unknown | PeerReachability::Unreachable => Stage::Hello,
        };
        Self { full, small: small.min(full), overhead, reachability, stage, tries: 0 }
    }

    /// Creates a check of checksums only, with packets of a size that is known to pass.
    pub(super) fn of_sums(size: u32) -> Self {
        let reachability = PeerReachability::Reachable;
        let stage = checksums(size);
        Self { full: size, small: size, overhead: 0, reachability, stage, tries: 0 }
    }

    /// Returns the next action.
    pub(super) fn step(&self) -> Step {
        let probe = match self.stage {
            Stage::Done(finding) => return Step::Done(finding),
            Stage::Hello => Probe::Hello { size: self.small },
            Stage::Full { .. } => Probe::Echo { size: self.full },
            Stage::Between(search) => Probe::Echo { size: search.next(&self.likely()) },
            Stage::Checksums { size, step: ChecksumStep::ByKernel } => {
                Probe::Datagram { size, sum: ChecksumBy::Kernel }
            }
            Stage::Checksums { size, .. } => Probe::Datagram { size, sum: ChecksumBy::Device },
        };
        Step::Send(probe)
    }

    /// Takes the outcome of the probe that [`Self::step`] returned.
    pub(super) fn learn(&mut self, outcome: Outcome) {
        self.tries += 1;
        if outcome == Outcome::Silent && self.tries < self.tries_allowed() {
            return;
        }
        self.tries = 0;
        self.stage = self.after(outcome);
    }

    fn tries_allowed(&self) -> u32 {
        match self.stage {
            // An unreachable peer is checked again soon.
            Stage::Hello if self.reachability == PeerReachability::Unreachable => 1,
            // A hello tells sooner than more large packets whether the peer is alive.
            Stage::Full { is_alive: false } => 1,
            _ => TRIES,
        }
    }

    /// Sizes to try first, in ascending order.
    fn likely(&self) -> Vec<u32> {
        let inside = LIKELY.iter().map(|mtu| mtu.saturating_sub(self.overhead));
        let mut likely: Vec<u32> = inside.chain(LIKELY).filter(|mtu| *mtu > self.small).collect();
        likely.sort_unstable();
        likely.dedup();
        likely
    }

    fn after(&self, outcome: Outcome) -> Stage {
        let passed = outcome == Outcome::Answered;
        match self.stage {
            Stage::Hello if passed => Stage::Full { is_alive: true },
            Stage::Hello => Stage::Done(Finding::Unreachable),
            Stage::Full { .. } if passed => checksums(self.full),
            Stage::Full { is_alive: false } => Stage::Hello,
            Stage::Full { is_alive: true } => {
                let hint = if let Outcome::TooBig(hint) = outcome { hint } else { None };
                let (passes, fails, is_likely) = (self.small, self.full, false);
                search(Search { passes, fails, hint, is_likely })
            }
            Stage::Between(before) => search(before.after(outcome, &self.likely())),
            Stage::Checksums { size, step } => {
                let done = |sums| Stage::Done(Finding::Reachable { path_mtu: size, sums });
                match (step, passed) {
                    (ChecksumStep::ByDevice | ChecksumStep::Again, true) => {
                        done(ChecksumResult::Right)
                    }
                    (ChecksumStep::ByDevice, false) => {
                        Stage::Checksums { size, step: ChecksumStep::ByKernel }
                    }
                    (ChecksumStep::ByKernel, true) => {
                        Stage::Checksums { size, step: ChecksumStep::Again }
                    }
                    (ChecksumStep::ByKernel, false) => done(ChecksumResult::Unknown),
                    (ChecksumStep::Again, false) => done(ChecksumResult::Wrong),
                }
            }
            Stage::Done(finding) => Stage::Done(finding),
        }
    }
}

fn checksums(size: u32) -> Stage {
    Stage::Checksums { size, step: ChecksumStep::ByDevice }
}

fn search(search: Search) -> Stage {
    match search.fails - search.passes {
        0 | 1 => checksums(search.passes),
        _ => Stage::Between(search),
    }
}

impl Search {
    fn next(&self, likely: &[u32]) -> u32 {
        let is_between = |size: &u32| (self.passes + 1..self.fails).contains(size);
        if let Some(hint) = self.hint.filter(is_between) {
            return hint;
        }
        if self.is_likely {
            return self.passes + 1;
        }
        let likely: Vec<u32> = likely.iter().copied().filter(is_between).collect();
        match likely.get(likely.len() / 2) {
            Some(size) => *size,
            None => self.passes + (self.fails - self.passes) / 2,
        }
    }

    fn after(self, outcome: Outcome, likely: &[u32]) -> Self {
        let size = self.next(likely);
        match outcome {
            Outcome::Answered => {
                let is_likely = likely.contains(&size) || self.hint == Some(size);
                Self { passes: size, is_likely, ..self }
            }
            Outcome::TooBig(hint) => Self { fails: size, hint: hint.or(self.hint), ..self },
            Outcome::Silent => Self { fails: size, ..self },
        }
    }
}
