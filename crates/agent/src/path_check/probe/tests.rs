// SPDX-License-Identifier: Apache-2.0
//! Checks of simulated paths.

use proptest::prelude::*;

use super::*;

/// A simulated path and peer.
#[derive(Debug, Clone, Copy)]
struct Path {
    mtu: u32,
    is_alive: bool,
    /// Routers report their MTU.
    reports_mtu: bool,
    device_sums: bool,
    answers_datagrams: bool,
}

const GOOD: Path = Path {
    mtu: 9999,
    is_alive: true,
    reports_mtu: false,
    device_sums: true,
    answers_datagrams: true,
};

impl Path {
    fn send(&self, probe: Probe) -> Outcome {
        let (size, is_good) = match probe {
            Probe::Hello { size } | Probe::Echo { size } => (size, true),
            Probe::Datagram { size, sum } => {
                (size, self.answers_datagrams && (sum == ChecksumBy::Kernel || self.device_sums))
            }
        };
        match self.is_alive && is_good {
            _ if size > self.mtu && self.reports_mtu => Outcome::TooBig(Some(self.mtu)),
            true if size <= self.mtu => Outcome::Answered,
            _ => Outcome::Silent,
        }
    }

    /// Returns the result and the number of probes.
    fn check(&self, full: u32, overhead: u32) -> (Finding, usize) {
        self.check_as(PeerReachability::Reachable, full, overhead)
    }

    fn check_as(
        &self,
        reachability: PeerReachability,
        full: u32,
        overhead: u32,
    ) -> (Finding, usize) {
        let mut check = Check::new(full, 84, overhead, reachability);
        for sent in 0..200 {
            match check.step() {
                Step::Done(finding) => return (finding, sent),
                Step::Send(probe) => check.learn(self.send(probe)),
            }
        }
        panic!("check does not end: {check:?}");
    }
}

fn good(path_mtu: u32) -> Finding {
    Finding::Reachable { path_mtu, sums: ChecksumResult::Right }
}

#[test]
fn good_path_takes_two_probes_and_a_first_hello() {
    assert_eq!(GOOD.check(1450, 50), (good(1450), 2));
    for reachability in [PeerReachability::Unknown, PeerReachability::Unreachable] {
        assert_eq!(GOOD.check_as(reachability, 1450, 50), (good(1450), 3));
    }
}

#[test]
fn unreachable_peer_takes_one_hello_from_then_on() {
    let dead = Path { is_alive: false, ..GOOD };
    let sent = |reachability| {
        let (finding, sent) = dead.check_as(reachability, 1450, 50);
        assert_eq!(finding, Finding::Unreachable);
        sent
    };
    assert_eq!(sent(PeerReachability::Reachable), 1 + 3);
    assert_eq!(sent(PeerReachability::Unknown), 3);
    assert_eq!(sent(PeerReachability::Unreachable), 1);
}

#[test]
fn common_mtu_is_found_with_few_probes() {
    // The tunnel leaves 1450 of 1500 bytes; a link on the path has MTU 1400.
    let path = Path { mtu: 1350, ..GOOD };
    let (finding, sent) = path.check(1450, 50);
    assert_eq!(finding, good(1350));
    assert!(sent <= 20, "{sent}");
    // A router reports its MTU: full size, hello, full size, the reported MTU, one byte more, a datagram.
    let (finding, sent) = Path { reports_mtu: true, ..path }.check(1450, 50);
    assert_eq!(finding, good(1350));
    assert!(sent <= 6, "{sent}");
}

#[test]
fn wrong_checksums_differ_from_dropped_datagrams() {
    let sums = |path: Path| match path.check(1450, 50).0 {
        Finding::Reachable { path_mtu: 1450, sums } => sums,
        other => panic!("{other:?}"),
    };
    assert_eq!(sums(GOOD), ChecksumResult::Right);
    assert_eq!(sums(Path { device_sums: false, ..GOOD }), ChecksumResult::Wrong);
    assert_eq!(sums(Path { answers_datagrams: false, ..GOOD }), ChecksumResult::Unknown);
}

#[test]
fn one_lost_packet_does_not_change_the_result() {
    for lost in 0..2 {
        let mut check = Check::new(1450, 84, 50, PeerReachability::Reachable);
        let mut sent = 0;
        while let Step::Send(probe) = check.step() {
            check.learn(if sent == lost { Outcome::Silent } else { GOOD.send(probe) });
            sent += 1;
        }
        assert_eq!(check.step(), Step::Done(good(1450)), "{lost}");
    }
}

proptest! {
    #[test]
    fn largest_size_that_passes_is_found(
        mtu in 84_u32..10_000,
        full in 84_u32..9001,
        overhead in 0_u32..81,
        reports_mtu: bool,
        is_known: bool,
    ) {
        let reachability = if is_known { PeerReachability::Reachable } else { PeerReachability::Unknown };
        let (finding, sent) = Path { mtu, reports_mtu, ..GOOD }.check_as(reachability, full, overhead);
        prop_assert_eq!(finding, good(mtu.min(full)));
        prop_assert!(sent < 80, "{}", sent);
    }

    /// Also if routers report nonsense.
    #[test]
    fn check_ends_after_any_answers(
        answers in prop::collection::vec((0_u8..3, any::<u32>()), 400),
        full in 84_u32..9001,
    ) {
        let mut check = Check::new(full, 84, 50, PeerReachability::Unknown);
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
        prop_assert!(false, "check does not end: {:?}", check);
    }
}
