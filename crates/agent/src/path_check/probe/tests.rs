// SPDX-License-Identifier: Apache-2.0
//! Checks of paths that are made up.

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

const GOOD: Path =
    Path { mtu: 9999, is_alive: true, tells: false, device_sums: true, answers_datagrams: true };

impl Path {
    fn carry(&self, probe: Probe) -> Outcome {
        let (size, is_good) = match probe {
            Probe::Knock { size } | Probe::Echo { size } => (size, true),
            Probe::Datagram { size, sum } => {
                (size, self.answers_datagrams && (sum == ChecksumBy::Kernel || self.device_sums))
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
        self.check_as(Standing::Reachable, full, overhead)
    }

    fn check_as(&self, standing: Standing, full: u32, overhead: u32) -> (Finding, usize) {
        let mut check = Check::new(full, 84, overhead, standing);
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
fn good_path_costs_two_packets_and_a_knock_where_nothing_is_known() {
    assert_eq!(GOOD.check(1450, 50), (found(1450), 2));
    for standing in [Standing::Unknown, Standing::Lost] {
        assert_eq!(GOOD.check_as(standing, 1450, 50), (found(1450), 3));
    }
}

#[test]
fn dead_peer_costs_three_knocks_and_one_as_long_as_it_stays_dead() {
    let dead = Path { is_alive: false, ..GOOD };
    let sent = |standing| {
        let (finding, sent) = dead.check_as(standing, 1450, 50);
        assert_eq!(finding, Finding::Unreachable);
        sent
    };
    assert_eq!(sent(Standing::Reachable), 1 + 3);
    assert_eq!(sent(Standing::Unknown), 3);
    assert_eq!(sent(Standing::Lost), 1);
}

#[test]
fn likely_sizes_are_found_quickly() {
    // 1450 is what is left of 1500; the path carries 1400 outside.
    let path = Path { mtu: 1350, ..GOOD };
    let (finding, sent) = path.check(1450, 50);
    assert_eq!(finding, found(1350));
    assert!(sent <= 20, "{sent}");
    // Told by a router: the full one, a knock, the full one, what it said, the next, a datagram.
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
        let mut check = Check::new(1450, 84, 50, Standing::Reachable);
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
        is_known: bool,
    ) {
        let standing = if is_known { Standing::Reachable } else { Standing::Unknown };
        let (finding, sent) = Path { mtu, tells, ..GOOD }.check_as(standing, full, overhead);
        prop_assert_eq!(finding, found(mtu.min(full)));
        prop_assert!(sent < 80, "{}", sent);
    }

    /// Lies of routers lead nowhere but to an end.
    #[test]
    fn any_answers_come_to_an_end(
        answers in prop::collection::vec((0_u8..3, any::<u32>()), 400),
        full in 84_u32..9001,
    ) {
        let mut check = Check::new(full, 84, 50, Standing::Unknown);
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
