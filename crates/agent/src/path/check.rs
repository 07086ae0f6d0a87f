// SPDX-License-Identifier: Apache-2.0
//! One check of one peer: what to send next, and what an answer or its absence means. Knows no socket
//! and no clock.
//!
//! 1. An echo request as large as what pods send. An answer: the path carries it.
//! 2. Without an answer, a small one. No answer to that either: the peer is not reachable.
//! 3. Else sizes between the two, until the largest that passes is known.
//! 4. A datagram of that size to a port where nobody listens, its checksum left to the device, as with
//!    all that programs send. The peer's kernel refuses it if the checksum is right and drops it else.
//! 5. Without an answer, one whose checksum the kernel has filled in. If only that is refused, the
//!    device's checksums are wrong. If neither is, something drops datagrams, and nothing is known.

use kernel::probe::Sum;

/// Before silence means that it does not pass: packets get lost on good paths, too.
const TRIES: u32 = 3;

/// MTUs of links that are often found below or on the way: Ethernet, PPPoE, tunnels, clouds.
const LIKELY: [u32; 16] = [
    9000, 8951, 8500, 1500, 1492, 1480, 1476, 1460, 1450, 1440, 1430, 1420, 1400, 1380, 1300, 1280,
];

/// What to send. The size is that of the whole packet with its IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// An echo request.
    Echo { size: u32 },
    /// A datagram to a port where nobody listens.
    Datagram { size: u32, sum: Sum },
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

/// A check that is under way.
#[derive(Debug, Clone)]
pub struct Check {
    /// What pods send.
    full: u32,
    /// What passes everywhere.
    small: u32,
    /// Sizes to try first, ascending.
    likely: Vec<u32>,
    stage: Stage,
    /// Of what is being sent.
    tries: u32,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Full,
    Small,
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
    pub fn new(full: u32, small: u32, overhead: u32) -> Self {
        let inside = LIKELY.iter().map(|mtu| mtu.saturating_sub(overhead));
        let mut likely: Vec<u32> = inside.chain(LIKELY).filter(|mtu| *mtu > small).collect();
        likely.sort_unstable();
        likely.dedup();
        let small = small.min(full);
        Self { full, small, likely, stage: Stage::Full, tries: 0 }
    }

    /// A check of checksums alone, with packets of a size that is known to pass.
    pub fn of_sums(size: u32) -> Self {
        let stage = Stage::Sums { size, step: SumStep::ByDevice };
        Self { full: size, small: size, likely: Vec::new(), stage, tries: 0 }
    }

    /// What is to be done now.
    pub fn step(&self) -> Step {
        let probe = match self.stage {
            Stage::Done(finding) => return Step::Done(finding),
            Stage::Full => Probe::Echo { size: self.full },
            Stage::Small => Probe::Echo { size: self.small },
            Stage::Between(search) => Probe::Echo { size: search.next(&self.likely) },
            Stage::Sums { size, step: SumStep::ByKernel } => {
                Probe::Datagram { size, sum: Sum::Kernel }
            }
            Stage::Sums { size, .. } => Probe::Datagram { size, sum: Sum::Device },
        };
        Step::Send(probe)
    }

    /// What became of the probe that was to be sent.
    pub fn learn(&mut self, outcome: Outcome) {
        self.tries += 1;
        if outcome == Outcome::Silent && self.tries < TRIES {
            return;
        }
        self.tries = 0;
        self.stage = self.after(outcome);
    }

    fn after(&self, outcome: Outcome) -> Stage {
        let passed = outcome == Outcome::Answered;
        match self.stage {
            Stage::Full if passed => sums(self.full),
            Stage::Full if self.small == self.full => Stage::Done(Finding::Unreachable),
            Stage::Full => Stage::Small,
            Stage::Small if passed => search(Search {
                passes: self.small,
                fails: self.full,
                hint: None,
                is_likely: false,
            }),
            Stage::Small => Stage::Done(Finding::Unreachable),
            Stage::Between(before) => search(before.after(outcome, &self.likely)),
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A path and a peer.
    #[derive(Debug, Clone, Copy)]
    struct Path {
        mtu: u32,
        is_alive: bool,
        /// Says what it does not carry.
        tells: bool,
        device_sums: bool,
        answers_datagrams: bool,
    }

    const GOOD: Path = Path {
        mtu: 9999,
        is_alive: true,
        tells: false,
        device_sums: true,
        answers_datagrams: true,
    };

    impl Path {
        fn carry(&self, probe: Probe) -> Outcome {
            let (size, is_good) = match probe {
                Probe::Echo { size } => (size, true),
                Probe::Datagram { size, sum } => {
                    (size, self.answers_datagrams && (sum == Sum::Kernel || self.device_sums))
                }
            };
            match self.is_alive && is_good {
                _ if size > self.mtu && self.tells => Outcome::TooBig(Some(self.mtu)),
                true if size <= self.mtu => Outcome::Answered,
                _ => Outcome::Silent,
            }
        }

        /// What is found, and how many probes that took.
        fn check(&self, full: u32, overhead: u32) -> (Finding, usize) {
            let mut check = Check::new(full, 84, overhead);
            for sent in 0..200 {
                match check.step() {
                    Step::Done(finding) => return (finding, sent),
                    Step::Send(probe) => check.learn(self.carry(probe)),
                }
            }
            panic!("no end: {check:?}");
        }
    }

    fn found(path_mtu: u32) -> Finding {
        Finding::Reachable { path_mtu, sums: Sums::Right }
    }

    #[test]
    fn good_path_costs_two_packets() {
        assert_eq!(GOOD.check(1450, 50), (found(1450), 2));
    }

    #[test]
    fn dead_peer_is_tried_with_both_sizes() {
        assert_eq!(Path { is_alive: false, ..GOOD }.check(1450, 50), (Finding::Unreachable, 6));
    }

    #[test]
    fn likely_sizes_are_found_quickly() {
        // 1450 is what is left of 1500; the path carries 1400 outside.
        let path = Path { mtu: 1350, ..GOOD };
        let (finding, sent) = path.check(1450, 50);
        assert_eq!(finding, found(1350));
        assert!(sent <= 20, "{sent}");
        // Told by a router: the full one, a small one, one more, what it said, the next, a datagram.
        let (finding, sent) = Path { tells: true, ..path }.check(1450, 50);
        assert_eq!(finding, found(1350));
        assert!(sent <= 6, "{sent}");
    }

    #[test]
    fn sums_of_the_device_are_told_from_silence() {
        let sums = |path: Path| match path.check(1450, 50).0 {
            Finding::Reachable { path_mtu: 1450, sums } => sums,
            other => panic!("{other:?}"),
        };
        assert_eq!(sums(GOOD), Sums::Right);
        assert_eq!(sums(Path { device_sums: false, ..GOOD }), Sums::Wrong);
        assert_eq!(sums(Path { answers_datagrams: false, ..GOOD }), Sums::Unknown);
    }

    #[test]
    fn one_lost_packet_changes_nothing() {
        for lost in 0..2 {
            let mut check = Check::new(1450, 84, 50);
            let mut sent = 0;
            while let Step::Send(probe) = check.step() {
                check.learn(if sent == lost { Outcome::Silent } else { GOOD.carry(probe) });
                sent += 1;
            }
            assert_eq!(check.step(), Step::Done(found(1450)), "{lost}");
        }
    }

    proptest! {
        #[test]
        fn largest_size_that_passes_is_found(
            mtu in 84_u32..10_000,
            full in 84_u32..9001,
            overhead in 0_u32..81,
            tells: bool,
        ) {
            let (finding, sent) = Path { mtu, tells, ..GOOD }.check(full, overhead);
            prop_assert_eq!(finding, found(mtu.min(full)));
            prop_assert!(sent < 80, "{}", sent);
        }

        /// Lies of routers lead nowhere but to an end.
        #[test]
        fn any_answers_come_to_an_end(
            answers in prop::collection::vec((0_u8..3, any::<u32>()), 400),
            full in 84_u32..9001,
        ) {
            let mut check = Check::new(full, 84, 50);
            for (kind, number) in answers {
                if let Step::Done(_) = check.step() {
                    return Ok(());
                }
                check.learn(match kind {
                    0 => Outcome::Answered,
                    1 => Outcome::TooBig(Some(number)),
                    _ => Outcome::Silent,
                });
            }
            prop_assert!(false, "no end: {:?}", check);
        }
    }
}
