// SPDX-License-Identifier: Apache-2.0
//! One check of one peer: what to send next, and what an answer or its absence means. Knows no socket
//! and no clock.
//!
//! 1. A knock: a small echo request. A peer that has answered before is not knocked at first.
//! 2. An echo request as large as what pods send. An answer: the path carries it. Without one, a peer that
//!    was not knocked at is now. No answer to that: it is not reachable.
//! 3. Without an answer of one that is, sizes between the two, until the largest that passes is known.
//! 4. A datagram of that size to a port where nobody listens, its checksum left to the device, as with
//!    all that programs send. The peer's kernel refuses it if the checksum is right and drops it else.
//! 5. Without an answer, one whose checksum the kernel has filled in. If only that is refused, the
//!    device's checksums are wrong. If neither is, something drops datagrams, and nothing is known.

#[cfg(test)]
mod tests;

use kernel::socket::icmp_probe::ChecksumBy;

/// Before silence means that it does not pass: packets get lost on good paths, too.
const TRIES: u32 = 3;

/// MTUs of links that are often found below or on the way: Ethernet, PPPoE, tunnels, clouds.
const LIKELY: [u32; 16] = [
    9000, 8951, 8500, 1500, 1492, 1480, 1476, 1460, 1450, 1440, 1430, 1420, 1400, 1380, 1300, 1280,
];

/// What to send. The size is that of the whole packet with its IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// An echo request that tells an agent who sends it.
    Knock { size: u32 },
    /// An echo request.
    Echo { size: u32 },
    /// A datagram to a port where nobody listens.
    Datagram { size: u32, sum: ChecksumBy },
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The peer answered: an echo, or that nobody listens.
    Answered,
    /// Something on the way said that it is too large, and maybe what is not.
    TooBig(Option<u32>),
    /// No answer in time.
    Silent,
}

/// Whether what programs send arrives with the right checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sums {
    Right,
    Wrong,
    /// The peer answers no datagrams.
    Unknown,
}

/// What a check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    Unreachable,
    Reachable { path_mtu: u32, sums: Sums },
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Send(Probe),
    Done(Finding),
}

/// What is known of a peer before a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Unknown,
    Reachable,
    /// It did not answer the last time.
    Lost,
}

/// A check that is under way.
#[derive(Debug, Clone)]
pub struct Check {
    /// What pods send.
    full: u32,
    /// What passes everywhere.
    small: u32,
    /// What tunnels on the way add.
    overhead: u32,
    standing: Standing,
    stage: Stage,
    /// Of what is being sent.
    tries: u32,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Knock,
    Full {
        /// It has answered a knock.
        is_awake: bool,
    },
    Between(Search),
    /// Datagrams of this size.
    Sums {
        size: u32,
        step: SumStep,
    },
    Done(Finding),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SumStep {
    ByDevice,
    ByKernel,
    /// Once more by the device: all of its first ones may have been lost.
    Again,
}

/// Between a size that passes and one that does not.
#[derive(Debug, Clone, Copy)]
struct Search {
    passes: u32,
    fails: u32,
    /// What something on the way said would pass.
    hint: Option<u32>,
    /// The one that passes is a likely one, so that the next larger one is worth a try.
    is_likely: bool,
}

impl Check {
    /// A check with packets of `full` bytes, where tunnels on the way add `overhead`. `small` bytes are
    /// taken to pass.
    pub fn new(full: u32, small: u32, overhead: u32, standing: Standing) -> Self {
        let stage = match standing {
            Standing::Reachable => Stage::Full { is_awake: false },
            Standing::Unknown | Standing::Lost => Stage::Knock,
        };
        Self { full, small: small.min(full), overhead, standing, stage, tries: 0 }
    }

    /// A check of checksums alone, with packets of a size that is known to pass.
    pub fn of_sums(size: u32) -> Self {
        let standing = Standing::Reachable;
        Self { full: size, small: size, overhead: 0, standing, stage: sums(size), tries: 0 }
    }

    /// What is to be done now.
    pub fn step(&self) -> Step {
        let probe = match self.stage {
            Stage::Done(finding) => return Step::Done(finding),
            Stage::Knock => Probe::Knock { size: self.small },
            Stage::Full { .. } => Probe::Echo { size: self.full },
            Stage::Between(search) => Probe::Echo { size: search.next(&self.likely()) },
            Stage::Sums { size, step: SumStep::ByKernel } => {
                Probe::Datagram { size, sum: ChecksumBy::Kernel }
            }
            Stage::Sums { size, .. } => Probe::Datagram { size, sum: ChecksumBy::Device },
        };
        Step::Send(probe)
    }

    /// What became of the probe that was to be sent.
    pub fn learn(&mut self, outcome: Outcome) {
        self.tries += 1;
        if outcome == Outcome::Silent && self.tries < self.tries_allowed() {
            return;
        }
        self.tries = 0;
        self.stage = self.after(outcome);
    }

    fn tries_allowed(&self) -> u32 {
        match self.stage {
            // Its turn comes again.
            Stage::Knock if self.standing == Standing::Lost => 1,
            // Before more of these, a knock shows whether there is anybody.
            Stage::Full { is_awake: false } => 1,
            _ => TRIES,
        }
    }

    /// Sizes to try first, ascending.
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
            Stage::Knock if passed => Stage::Full { is_awake: true },
            Stage::Knock => Stage::Done(Finding::Unreachable),
            Stage::Full { .. } if passed => sums(self.full),
            Stage::Full { is_awake: false } => Stage::Knock,
            Stage::Full { is_awake: true } => {
                let hint = if let Outcome::TooBig(hint) = outcome { hint } else { None };
                let (passes, fails, is_likely) = (self.small, self.full, false);
                search(Search { passes, fails, hint, is_likely })
            }
            Stage::Between(before) => search(before.after(outcome, &self.likely())),
            Stage::Sums { size, step } => {
                let done = |sums| Stage::Done(Finding::Reachable { path_mtu: size, sums });
                match (step, passed) {
                    (SumStep::ByDevice | SumStep::Again, true) => done(Sums::Right),
                    (SumStep::ByDevice, false) => Stage::Sums { size, step: SumStep::ByKernel },
                    (SumStep::ByKernel, true) => Stage::Sums { size, step: SumStep::Again },
                    (SumStep::ByKernel, false) => done(Sums::Unknown),
                    (SumStep::Again, false) => done(Sums::Wrong),
                }
            }
            Stage::Done(finding) => Stage::Done(finding),
        }
    }
}

fn sums(size: u32) -> Stage {
    Stage::Sums { size, step: SumStep::ByDevice }
}

fn search(search: Search) -> Stage {
    match search.fails - search.passes {
        0 | 1 => sums(search.passes),
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
