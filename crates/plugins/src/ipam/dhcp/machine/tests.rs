// SPDX-License-Identifier: Apache-2.0
//! The machine against a server of two letters: what is sent when, and what follows.

use super::*;
use crate::ipam::dhcp::lease::Span;

/// Messages are the phase's first letter; answers are `o`, `g`, `k`, `r`, `R`.
struct Letters;

impl Dialog for Letters {
    const NAME: &'static str = "letters";
    const SAME_XID: bool = true;
    const ANSWERS_RELEASE: bool = true;

    fn speaks_of(_: IpAddr) -> bool {
        true
    }

    fn message(&self, about: &About) -> Vec<u8> {
        let address = about.terms.map(|terms| terms.address.addr()).or(about.hint);
        let address = address.map(|address| address.to_string()).unwrap_or_default();
        format!("{:?} {address}", about.phase).into_bytes()
    }

    fn read(&self, _: &About, answer: &[u8]) -> Option<Heard> {
        match answer {
            b"o" => Some(Heard::Offered(terms("10.0.0.1/24"))),
            b"g" => Some(Heard::Granted(terms("10.0.0.1/24"))),
            b"G" => Some(Heard::Granted(terms("10.0.0.2/24"))),
            b"k" => Some(Heard::Kept),
            b"r" => Some(Heard::Refused),
            b"R" => Some(Heard::Released),
            _ => None,
        }
    }
}

fn terms(address: &str) -> Terms {
    Terms {
        address: address.parse().unwrap(),
        gateway: None,
        routes: Vec::new(),
        dns: cni::Dns::default(),
        server: Vec::new(),
        server_mac: None,
        span: Some(Span::new(100, 180, 200)),
    }
}

const PACE: Pace = Pace { timeout: Duration::from_secs(10), resend_max: Duration::from_secs(62) };

/// A machine with its clock and all that it has said.
struct Play {
    machine: Machine<Letters>,
    start: Instant,
    said: Vec<String>,
}

impl Play {
    fn start() -> Play {
        let start = Instant::now();
        let (machine, events) = Machine::start(Letters, PACE, None, start);
        Play { machine, start, said: Vec::new() }.with(events)
    }

    fn bound() -> Play {
        let mut play = Play::start();
        play.hear(0, "o");
        play.hear(0, "g");
        play.said.clear();
        play
    }

    fn with(mut self, events: Vec<Event>) -> Play {
        self.take(events);
        self
    }

    fn take(&mut self, events: Vec<Event>) {
        self.said.extend(events.into_iter().map(|event| match event {
            Event::Send(_, message) => String::from_utf8(message).unwrap().trim().to_owned(),
            other => format!("{other:?}"),
        }));
    }

    fn hear(&mut self, second: u64, answer: &str) {
        let events = self.machine.receive(answer.as_bytes(), self.at(second));
        self.take(events);
    }

    /// Lets time pass as the daemon does, from deadline to deadline.
    fn wait_until(&mut self, second: u64) {
        let end = self.at(second);
        for _ in 0..1000 {
            match self.machine.deadline() {
                Some(deadline) if deadline <= end => {
                    let events = self.machine.wake(deadline);
                    self.take(events);
                }
                _ => return,
            }
        }
        panic!("the machine does not come to rest: {:?}", self.said);
    }

    fn at(&self, second: u64) -> Instant {
        self.start + Duration::from_secs(second)
    }

    #[track_caller]
    fn has_said(&mut self, expected: &[&str]) {
        assert_eq!(std::mem::take(&mut self.said), expected);
    }
}

#[test]
fn from_nothing_to_a_lease() {
    let mut play = Play::start();
    play.hear(0, "nonsense");
    play.hear(0, "g");
    play.has_said(&["Discover"]);
    play.hear(0, "o");
    play.has_said(&["Request 10.0.0.1"]);
    play.hear(0, "g");
    play.has_said(&["Held"]);
    assert!(play.machine.lease().is_some() && !play.machine.is_asking());
    assert_eq!(play.machine.deadline(), Some(play.at(100)));
}

#[test]
fn questions_are_asked_again_but_not_too_often() {
    let mut play = Play::start();
    play.wait_until(9);
    let soon = play.said.len();
    assert!((4..=6).contains(&soon), "{soon}");
    play.wait_until(3600);
    let later = play.said.len();
    assert!((50..=90).contains(&later), "{later}");
    assert!(play.said.iter().all(|said| said == "Discover"));
}

#[test]
fn an_offer_that_leads_nowhere_is_dropped() {
    let mut play = Play::start();
    play.hear(0, "o");
    play.wait_until(10);
    assert_eq!(play.said.last().map(String::as_str), Some("Discover"));
    play.hear(10, "o");
    play.said.clear();
    play.hear(10, "r");
    play.has_said(&[]);
    play.wait_until(12);
    assert!(!play.said.is_empty() && play.said.iter().all(|said| said == "Discover"));
}

#[test]
fn a_lease_is_renewed_then_rebound_then_lost() {
    let mut play = Play::bound();
    play.wait_until(99);
    play.has_said(&[]);
    play.wait_until(100);
    play.has_said(&["Renew 10.0.0.1"]);
    play.wait_until(179);
    assert!(play.said.len() >= 3 && play.said.iter().all(|said| said == "Renew 10.0.0.1"));
    play.said.clear();
    play.wait_until(180);
    play.has_said(&["Rebind 10.0.0.1"]);
    play.wait_until(199);
    play.said.clear();
    play.wait_until(200);
    play.has_said(&["Lost", "Discover 10.0.0.1"]);
    assert!(play.machine.lease().is_none());
}

#[test]
fn a_renewal_begins_anew_and_may_change_the_address() {
    let mut play = Play::bound();
    play.wait_until(100);
    play.hear(101, "G");
    play.has_said(&["Renew 10.0.0.1", "Held"]);
    assert_eq!(play.machine.lease().unwrap().terms.address.to_string(), "10.0.0.2/24");
    // From when it was asked for.
    assert_eq!(play.machine.deadline(), Some(play.at(200)));
}

#[test]
fn a_refusal_ends_a_lease_at_once() {
    let mut play = Play::bound();
    play.wait_until(100);
    play.hear(101, "r");
    play.has_said(&["Renew 10.0.0.1", "Lost", "Discover 10.0.0.1"]);
}

#[test]
fn a_lease_of_an_earlier_life_is_confirmed() {
    let resume = |age: u64| {
        let start = Instant::now();
        let granted = start - Duration::from_secs(age);
        let lease = Lease { terms: terms("10.0.0.1/24"), granted };
        let (machine, events) = Machine::resume(Letters, PACE, lease, start);
        Play { machine, start, said: Vec::new() }.with(events)
    };
    let mut play = resume(50);
    play.has_said(&["Confirm 10.0.0.1"]);
    play.hear(0, "k");
    assert_eq!(play.machine.deadline(), Some(play.at(50)), "its times are kept");
    let mut play = resume(50);
    play.hear(0, "G");
    play.has_said(&["Confirm 10.0.0.1", "Held"]);
    let mut play = resume(50);
    play.hear(0, "r");
    play.has_said(&["Confirm 10.0.0.1", "Lost", "Discover 10.0.0.1"]);
    let mut play = resume(50);
    play.wait_until(49);
    assert!(play.said.iter().all(|said| said == "Confirm 10.0.0.1"), "nobody said no");
    play.said.clear();
    play.wait_until(50);
    play.has_said(&["Renew 10.0.0.1"]);
    let mut play = resume(190);
    play.hear(0, "k");
    play.has_said(&["Confirm 10.0.0.1", "Rebind 10.0.0.1"]);
    resume(200).has_said(&["Lost", "Discover 10.0.0.1"]);
}

#[test]
fn a_lease_is_given_back() {
    let mut play = Play::bound();
    let events = play.machine.release(play.at(1));
    play.take(events);
    play.hear(1, "R");
    play.has_said(&["Release 10.0.0.1"]);
    assert!(play.machine.is_resting());
    let mut play = Play::bound();
    let events = play.machine.release(play.at(1));
    play.take(events);
    play.wait_until(3);
    play.has_said(&["Release 10.0.0.1", "Release 10.0.0.1"]);
    assert!(play.machine.is_resting(), "no server answers for ever");
    let mut play = Play::start();
    assert_eq!(play.machine.release(play.at(1)), []);
    assert!(play.machine.is_resting());
}

#[test]
fn a_lease_for_ever_has_no_deadline() {
    let mut play = Play::start();
    play.hear(0, "o");
    let events = play.machine.hold(Terms { span: None, ..terms("10.0.0.1/24") }, play.start);
    play.take(events);
    assert_eq!(play.machine.deadline(), None);
}
