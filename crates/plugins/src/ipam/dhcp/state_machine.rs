// SPDX-License-Identifier: Apache-2.0
//! The life of a lease, without sockets and clocks: what is heard and what time it is goes in, what
//! to send and what became of the lease comes out. DHCPv4 and DHCPv6 take the same steps; a
//! [`Dialog`] knows the messages of one of them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::exchange::{About, Dialog, Heard, Phase};
use super::lease::{Lease, Terms};

/// A message is sent again after this long at first.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// The next few times.
const QUICK_DELAY: Duration = Duration::from_secs(2);
const QUICK_TRIES: u32 = 4;
/// Then twice as long each time, from here to [`Pace::resend_max`].
const SLOW_DELAY: Duration = Duration::from_secs(4);
/// A server that was asked to take a lease back has this long, twice, to answer.
const RELEASE_DELAY: Duration = Duration::from_millis(300);
const RELEASE_TRIES: u32 = 2;

/// How patient we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// How long a server may keep us waiting after its offer.
    pub timeout: Duration,
    /// The longest pause between two messages.
    pub resend_max: Duration,
}

/// What comes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Send this.
    Send(Phase, Vec<u8>),
    /// There is a lease, a new one or with new terms.
    Held,
    /// The lease is ours no longer.
    Lost,
}

#[derive(Debug, Clone, Copy)]
struct Asking {
    phase: Phase,
    xid: u32,
    began: Instant,
    sent: Instant,
    tries: u32,
    resend: Instant,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Asking(Asking),
    Bound,
    Resting,
}

/// One lease, from the first question to its release.
#[derive(Debug)]
pub struct Machine<D> {
    dialog: D,
    pace: Pace,
    random: Random,
    state: State,
    lease: Option<Lease>,
    offer: Option<Terms>,
    hint: Option<IpAddr>,
}

impl<D: Dialog> Machine<D> {
    /// Looks for a lease, preferably of this address.
    pub fn start(dialog: D, pace: Pace, hint: Option<IpAddr>, now: Instant) -> (Self, Vec<Event>) {
        let mut machine = Machine::resting(dialog, pace, None);
        machine.hint = hint;
        let events = machine.ask(Phase::Discover, now);
        (machine, events)
    }

    /// Goes on with a lease of an earlier life.
    pub fn resume(dialog: D, pace: Pace, lease: Lease, now: Instant) -> (Self, Vec<Event>) {
        let mut machine = Machine::resting(dialog, pace, Some(lease));
        let expired = machine.lease.as_ref().is_some_and(|lease| lease.has_expired(now));
        let events = if expired { machine.lose(now) } else { machine.ask(Phase::Confirm, now) };
        (machine, events)
    }

    /// A lease of an earlier life that is only to be released.
    pub fn resting(dialog: D, pace: Pace, lease: Option<Lease>) -> Self {
        let state = State::Resting;
        Machine { dialog, pace, random: Random::new(), state, lease, offer: None, hint: None }
    }

    /// The lease, where there is one.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Nothing more is wanted of the servers.
    pub fn is_resting(&self) -> bool {
        matches!(self.state, State::Resting)
    }

    /// Whether an answer is awaited.
    pub fn is_asking(&self) -> bool {
        matches!(self.state, State::Asking(_))
    }

    /// Gives the lease back; [`Machine::is_resting`] tells when that is done.
    pub fn release(&mut self, now: Instant) -> Vec<Event> {
        if self.lease.is_none() {
            self.state = State::Resting;
            return Vec::new();
        }
        let events = self.ask(Phase::Release, now);
        if !D::ANSWERS_RELEASE {
            self.state = State::Resting;
        }
        events
    }

    /// When [`Machine::wake`] wants to be called.
    pub fn deadline(&self) -> Option<Instant> {
        let moments = self.lease.as_ref().and_then(Lease::moments);
        match &self.state {
            State::Resting => None,
            State::Bound => moments.map(|moments| moments.renew),
            State::Asking(asking) => {
                let limit = self.limit(asking);
                let expire = moments.map(|moments| moments.expire);
                let expire = expire.filter(|_| asking.phase != Phase::Release);
                [Some(asking.resend), limit, expire].into_iter().flatten().min()
            }
        }
    }

    /// When a phase ends without an answer.
    fn limit(&self, asking: &Asking) -> Option<Instant> {
        match asking.phase {
            Phase::Request | Phase::Confirm => Some(asking.began + self.pace.timeout),
            Phase::Renew => self.lease.as_ref().and_then(Lease::moments).map(|at| at.rebind),
            Phase::Discover | Phase::Rebind | Phase::Release => None,
        }
    }

    /// Does what is due.
    pub fn wake(&mut self, now: Instant) -> Vec<Event> {
        let phase = match &self.state {
            State::Resting => return Vec::new(),
            State::Bound => None,
            State::Asking(asking) => Some(asking.phase),
        };
        if phase != Some(Phase::Release)
            && self.lease.as_ref().is_some_and(|lease| lease.has_expired(now))
        {
            return self.lose(now);
        }
        match self.state {
            State::Resting => Vec::new(),
            State::Bound => self.leave_bound(now),
            State::Asking(asking) if self.limit(&asking).is_some_and(|limit| now >= limit) => {
                self.give_up(asking.phase, now)
            }
            State::Asking(asking) if now >= asking.resend => self.ask_again(asking, now),
            State::Asking(_) => Vec::new(),
        }
    }

    fn leave_bound(&mut self, now: Instant) -> Vec<Event> {
        match self.lease.as_ref().and_then(Lease::moments) {
            Some(moments) if now >= moments.rebind => self.ask(Phase::Rebind, now),
            Some(moments) if now >= moments.renew => self.ask(Phase::Renew, now),
            _ => Vec::new(),
        }
    }

    fn give_up(&mut self, phase: Phase, now: Instant) -> Vec<Event> {
        match phase {
            Phase::Renew => self.ask(Phase::Rebind, now),
            Phase::Confirm => {
                // Nobody said no: the lease is good until its end.
                self.state = State::Bound;
                self.leave_bound(now)
            }
            _ => self.ask(Phase::Discover, now),
        }
    }

    /// Takes what came from the network.
    pub fn receive(&mut self, answer: &[u8], now: Instant) -> Vec<Event> {
        let State::Asking(asking) = self.state else { return Vec::new() };
        let about = self.about(&asking, now);
        let Some(heard) = self.dialog.read(&about, answer) else { return Vec::new() };
        match (asking.phase, heard) {
            (Phase::Discover, Heard::Offered(terms)) => {
                self.offer = Some(terms);
                self.ask(Phase::Request, now)
            }
            (Phase::Release, Heard::Released) => {
                self.state = State::Resting;
                Vec::new()
            }
            (Phase::Discover | Phase::Release, _) | (_, Heard::Offered(_) | Heard::Released) => {
                Vec::new()
            }
            (_, Heard::Granted(terms)) => self.hold(terms, asking.sent),
            (Phase::Confirm, Heard::Kept) => {
                self.state = State::Bound;
                self.leave_bound(now)
            }
            (_, Heard::Kept) => Vec::new(),
            (Phase::Request, Heard::Refused) => self.discover_later(now),
            (_, Heard::Refused) => self.lose(now),
        }
    }

    fn hold(&mut self, mut terms: Terms, granted: Instant) -> Vec<Event> {
        if terms.server_mac.is_none() {
            terms.server_mac = self.lease.as_ref().and_then(|lease| lease.terms.server_mac);
        }
        self.hint = Some(terms.address.addr());
        self.lease = Some(Lease { terms, granted });
        self.offer = None;
        self.state = State::Bound;
        vec![Event::Held]
    }

    /// Remembers which machine on the link answers.
    pub fn heard_from(&mut self, mac: [u8; 6]) {
        if let Some(lease) = &mut self.lease {
            lease.terms.server_mac = Some(mac);
        }
    }

    fn lose(&mut self, now: Instant) -> Vec<Event> {
        let lost = self.lease.take();
        self.hint = lost.map(|lease| lease.terms.address.addr());
        let mut events = vec![Event::Lost];
        events.extend(self.ask(Phase::Discover, now));
        events
    }

    /// A server that refuses what it has just offered may go on like that.
    fn discover_later(&mut self, now: Instant) -> Vec<Event> {
        self.hint = None;
        let mut asking = self.new_question(Phase::Discover, now);
        asking.resend = now + self.random.about(FIRST_DELAY);
        self.state = State::Asking(asking);
        Vec::new()
    }

    fn ask(&mut self, phase: Phase, now: Instant) -> Vec<Event> {
        let asking = self.new_question(phase, now);
        self.ask_again(asking, now)
    }

    fn new_question(&mut self, phase: Phase, now: Instant) -> Asking {
        let xid = match self.state {
            State::Asking(before) if D::SAME_XID && phase == Phase::Request => before.xid,
            _ => self.random.number() as u32,
        };
        Asking { phase, xid, began: now, sent: now, tries: 0, resend: now }
    }

    fn ask_again(&mut self, mut asking: Asking, now: Instant) -> Vec<Event> {
        if asking.phase == Phase::Release && asking.tries >= RELEASE_TRIES {
            self.state = State::Resting;
            return Vec::new();
        }
        asking.tries += 1;
        asking.sent = now;
        asking.resend = now + self.delay(&asking, now);
        self.state = State::Asking(asking);
        let message = self.dialog.message(&self.about(&asking, now));
        vec![Event::Send(asking.phase, message)]
    }

    fn about(&self, asking: &Asking, now: Instant) -> About<'_> {
        let terms = match asking.phase {
            Phase::Discover => None,
            Phase::Request => self.offer.as_ref(),
            _ => self.lease.as_ref().map(|lease| &lease.terms),
        };
        let elapsed = now.saturating_duration_since(asking.began);
        About { phase: asking.phase, xid: asking.xid, elapsed, terms, hint: self.hint }
    }

    fn delay(&mut self, asking: &Asking, now: Instant) -> Duration {
        if asking.phase == Phase::Release {
            return RELEASE_DELAY;
        }
        let slow = |tries: u32| SLOW_DELAY.saturating_mul(1 << tries.min(16));
        let base = match asking.tries {
            0 | 1 => FIRST_DELAY,
            tries if tries <= QUICK_TRIES => QUICK_DELAY,
            tries => slow(tries - QUICK_TRIES - 1),
        };
        let base = self.random.about(base.min(self.pace.resend_max));
        if asking.tries < QUICK_TRIES {
            return base;
        }
        // A lease has hours left: half of what remains, as the protocol asks, and no more often.
        base.max(self.time_left(asking.phase, now) / 2)
    }

    /// Until the next phase of a lease that is held.
    fn time_left(&self, phase: Phase, now: Instant) -> Duration {
        let moments = self.lease.as_ref().and_then(Lease::moments);
        let end = moments.and_then(|moments| match phase {
            Phase::Renew => Some(moments.rebind),
            Phase::Rebind => Some(moments.expire),
            _ => None,
        });
        end.map_or(Duration::ZERO, |end| end.saturating_duration_since(now))
    }
}

/// Numbers that others cannot guess and that differ between containers; nothing secret hangs on them.
#[derive(Debug)]
struct Random(RandomState, u64);

impl Random {
    fn new() -> Random {
        Random(RandomState::new(), 0)
    }

    fn number(&mut self) -> u64 {
        self.1 += 1;
        let mut hasher = self.0.build_hasher();
        hasher.write_u64(self.1);
        hasher.finish()
    }

    /// A quarter more or less.
    fn about(&mut self, base: Duration) -> Duration {
        let permille = 750 + (self.number() % 500) as u32;
        base * permille / 1000
    }
}

#[cfg(test)]
mod tests {
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

    const PACE: Pace =
        Pace { timeout: Duration::from_secs(10), resend_max: Duration::from_secs(62) };

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
}
