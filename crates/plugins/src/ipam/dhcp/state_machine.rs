// SPDX-License-Identifier: Apache-2.0
//! The state machine of a lease, without sockets and clocks. Its input are replies and the time, its output are messages
//! to send and changes of the lease. DHCPv4 and DHCPv6 share it; a [`DhcpClient`] encodes the messages of one version.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::exchange::{DhcpClient, MessageContext, Phase, Reply};
use super::lease::{Lease, Terms};

/// Delay before the first retry of a message.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Delay before the next retries.
const QUICK_DELAY: Duration = Duration::from_secs(2);
const QUICK_TRIES: u32 = 4;
/// Delay after that. Doubles with each retry, up to [`RetryTimes::resend_max`].
const SLOW_DELAY: Duration = Duration::from_secs(4);
/// Time to wait for the confirmation of a release.
const RELEASE_DELAY: Duration = Duration::from_millis(300);
const RELEASE_TRIES: u32 = 2;

/// Time limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RetryTimes {
    /// Maximum time to wait for a server after its offer.
    pub timeout: Duration,
    /// Maximum delay between two messages.
    pub resend_max: Duration,
}

/// Output of the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Send this message.
    Send(Phase, Vec<u8>),
    /// A lease was acquired or has new terms.
    Acquired,
    /// The lease was lost.
    Lost,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    phase: Phase,
    xid: u32,
    began: Instant,
    sent: Instant,
    tries: u32,
    resend: Instant,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Waiting(Pending),
    Bound,
    Idle,
}

/// One lease, from the first message to its release.
#[derive(Debug)]
pub(super) struct StateMachine<D> {
    client: D,
    times: RetryTimes,
    random: Random,
    state: State,
    lease: Option<Lease>,
    offer: Option<Terms>,
    hint: Option<IpAddr>,
}

impl<D: DhcpClient> StateMachine<D> {
    /// Starts to acquire a lease, preferably of this address.
    pub(super) fn start(
        client: D,
        times: RetryTimes,
        hint: Option<IpAddr>,
        now: Instant,
    ) -> (Self, Vec<Action>) {
        let mut machine = StateMachine::idle(client, times, None);
        machine.hint = hint;
        let actions = machine.send_first(Phase::Discover, now);
        (machine, actions)
    }

    /// Resumes the lease of an earlier daemon.
    pub(super) fn resume(
        client: D,
        times: RetryTimes,
        lease: Lease,
        now: Instant,
    ) -> (Self, Vec<Action>) {
        let mut machine = StateMachine::idle(client, times, Some(lease));
        let expired = machine.lease.as_ref().is_some_and(|lease| lease.has_expired(now));
        let actions =
            if expired { machine.lose(now) } else { machine.send_first(Phase::Confirm, now) };
        (machine, actions)
    }

    /// Creates an idle machine, for a lease of an earlier daemon that is only released.
    pub(super) fn idle(client: D, times: RetryTimes, lease: Option<Lease>) -> Self {
        let state = State::Idle;
        StateMachine { client, times, random: Random::new(), state, lease, offer: None, hint: None }
    }

    /// Returns the lease, if there is one.
    pub(super) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Returns whether no more messages will be sent.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Returns whether the machine waits for a reply.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    /// Releases the lease. [`StateMachine::is_idle`] returns true when the release is complete.
    pub(super) fn release(&mut self, now: Instant) -> Vec<Action> {
        if self.lease.is_none() {
            self.state = State::Idle;
            return Vec::new();
        }
        let actions = self.send_first(Phase::Release, now);
        if !D::SERVER_CONFIRMS_RELEASE {
            self.state = State::Idle;
        }
        actions
    }

    /// Returns when [`StateMachine::wake`] must be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let deadlines = self.lease.as_ref().and_then(Lease::deadlines);
        match &self.state {
            State::Idle => None,
            State::Bound => deadlines.map(|deadlines| deadlines.renew),
            State::Waiting(pending) => {
                let phase_deadline = self.phase_deadline(pending);
                let expire = deadlines.map(|deadlines| deadlines.expire);
                let expire = expire.filter(|_| pending.phase != Phase::Release);
                [Some(pending.resend), phase_deadline, expire].into_iter().flatten().min()
            }
        }
    }

    /// Returns when a phase ends without a reply.
    fn phase_deadline(&self, pending: &Pending) -> Option<Instant> {
        match pending.phase {
            Phase::Request | Phase::Confirm => Some(pending.began + self.times.timeout),
            Phase::Renew => self.lease.as_ref().and_then(Lease::deadlines).map(|at| at.rebind),
            Phase::Discover | Phase::Rebind | Phase::Release => None,
        }
    }

    /// Handles a deadline.
    pub(super) fn wake(&mut self, now: Instant) -> Vec<Action> {
        let phase = match &self.state {
            State::Idle => return Vec::new(),
            State::Bound => None,
            State::Waiting(pending) => Some(pending.phase),
        };
        if phase != Some(Phase::Release)
            && self.lease.as_ref().is_some_and(|lease| lease.has_expired(now))
        {
            return self.lose(now);
        }
        match self.state {
            State::Idle => Vec::new(),
            State::Bound => self.check_renewal(now),
            State::Waiting(pending)
                if self.phase_deadline(&pending).is_some_and(|deadline| now >= deadline) =>
            {
                self.end_phase(pending.phase, now)
            }
            State::Waiting(pending) if now >= pending.resend => self.send(pending, now),
            State::Waiting(_) => Vec::new(),
        }
    }

    fn check_renewal(&mut self, now: Instant) -> Vec<Action> {
        match self.lease.as_ref().and_then(Lease::deadlines) {
            Some(deadlines) if now >= deadlines.rebind => self.send_first(Phase::Rebind, now),
            Some(deadlines) if now >= deadlines.renew => self.send_first(Phase::Renew, now),
            _ => Vec::new(),
        }
    }

    fn end_phase(&mut self, phase: Phase, now: Instant) -> Vec<Action> {
        match phase {
            Phase::Renew => self.send_first(Phase::Rebind, now),
            Phase::Confirm => {
                // No server rejected the lease, so it is valid until its end.
                self.state = State::Bound;
                self.check_renewal(now)
            }
            _ => self.send_first(Phase::Discover, now),
        }
    }

    /// Handles a message from the network.
    pub(super) fn receive(&mut self, message: &[u8], now: Instant) -> Vec<Action> {
        let State::Waiting(pending) = self.state else { return Vec::new() };
        let context = self.context(&pending, now);
        let Some(reply) = self.client.parse_reply(&context, message) else { return Vec::new() };
        match (pending.phase, reply) {
            (Phase::Discover, Reply::Offered(terms)) => {
                self.offer = Some(terms);
                self.send_first(Phase::Request, now)
            }
            (Phase::Release, Reply::Released) => {
                self.state = State::Idle;
                Vec::new()
            }
            (Phase::Discover | Phase::Release, _) | (_, Reply::Offered(_) | Reply::Released) => {
                Vec::new()
            }
            (_, Reply::Granted(terms)) => self.acquire(terms, pending.sent),
            (Phase::Confirm, Reply::Confirmed) => {
                self.state = State::Bound;
                self.check_renewal(now)
            }
            (_, Reply::Confirmed) => Vec::new(),
            (Phase::Request, Reply::Rejected) => self.delay_discovery(now),
            (_, Reply::Rejected) => self.lose(now),
        }
    }

    fn acquire(&mut self, mut terms: Terms, granted: Instant) -> Vec<Action> {
        if terms.server_mac.is_none() {
            terms.server_mac = self.lease.as_ref().and_then(|lease| lease.terms.server_mac);
        }
        self.hint = Some(terms.address.addr());
        self.lease = Some(Lease { terms, granted });
        self.offer = None;
        self.state = State::Bound;
        vec![Action::Acquired]
    }

    /// Stores the MAC address that the server replies from.
    pub(super) fn set_server_mac(&mut self, mac: [u8; 6]) {
        if let Some(lease) = &mut self.lease {
            lease.terms.server_mac = Some(mac);
        }
    }

    fn lose(&mut self, now: Instant) -> Vec<Action> {
        let lost = self.lease.take();
        self.hint = lost.map(|lease| lease.terms.address.addr());
        let mut actions = vec![Action::Lost];
        actions.extend(self.send_first(Phase::Discover, now));
        actions
    }

    /// Waits before the next discovery: a server that rejects its own offer may do so repeatedly.
    fn delay_discovery(&mut self, now: Instant) -> Vec<Action> {
        self.hint = None;
        let mut pending = self.new_pending(Phase::Discover, now);
        pending.resend = now + self.random.jitter(FIRST_DELAY);
        self.state = State::Waiting(pending);
        Vec::new()
    }

    fn send_first(&mut self, phase: Phase, now: Instant) -> Vec<Action> {
        let pending = self.new_pending(phase, now);
        self.send(pending, now)
    }

    fn new_pending(&mut self, phase: Phase, now: Instant) -> Pending {
        let xid = match self.state {
            State::Waiting(previous) if D::REQUEST_KEEPS_XID && phase == Phase::Request => {
                previous.xid
            }
            _ => self.random.number() as u32,
        };
        Pending { phase, xid, began: now, sent: now, tries: 0, resend: now }
    }

    fn send(&mut self, mut pending: Pending, now: Instant) -> Vec<Action> {
        if pending.phase == Phase::Release && pending.tries >= RELEASE_TRIES {
            self.state = State::Idle;
            return Vec::new();
        }
        pending.tries += 1;
        pending.sent = now;
        pending.resend = now + self.delay(&pending, now);
        self.state = State::Waiting(pending);
        let message = self.client.encode(&self.context(&pending, now));
        vec![Action::Send(pending.phase, message)]
    }

    fn context(&self, pending: &Pending, now: Instant) -> MessageContext<'_> {
        let terms = match pending.phase {
            Phase::Discover => None,
            Phase::Request => self.offer.as_ref(),
            _ => self.lease.as_ref().map(|lease| &lease.terms),
        };
        let elapsed = now.saturating_duration_since(pending.began);
        MessageContext { phase: pending.phase, xid: pending.xid, elapsed, terms, hint: self.hint }
    }

    fn delay(&mut self, pending: &Pending, now: Instant) -> Duration {
        if pending.phase == Phase::Release {
            return RELEASE_DELAY;
        }
        let slow = |tries: u32| SLOW_DELAY.saturating_mul(1 << tries.min(16));
        let base = match pending.tries {
            0 | 1 => FIRST_DELAY,
            tries if tries <= QUICK_TRIES => QUICK_DELAY,
            tries => slow(tries - QUICK_TRIES - 1),
        };
        let base = self.random.jitter(base.min(self.times.resend_max));
        if pending.tries < QUICK_TRIES {
            return base;
        }
        // For a renewal the protocol asks for half of the remaining time between messages.
        base.max(self.time_left(pending.phase, now) / 2)
    }

    /// Returns the time until the next phase of a lease.
    fn time_left(&self, phase: Phase, now: Instant) -> Duration {
        let deadlines = self.lease.as_ref().and_then(Lease::deadlines);
        let end = deadlines.and_then(|deadlines| match phase {
            Phase::Renew => Some(deadlines.rebind),
            Phase::Rebind => Some(deadlines.expire),
            _ => None,
        });
        end.map_or(Duration::ZERO, |end| end.saturating_duration_since(now))
    }
}

/// Random numbers for transaction IDs and delays. They need not be cryptographically secure.
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

    /// Varies a delay by up to a quarter.
    fn jitter(&mut self, base: Duration) -> Duration {
        let permille = 750 + (self.number() % 500) as u32;
        base * permille / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipam::dhcp::lease::Lifetimes;

    /// A protocol for tests. Messages are the phase and the address; replies are `o`, `g`, `G`, `k`, `r`, `R`.
    struct TestProtocol;

    impl DhcpClient for TestProtocol {
        const NAME: &'static str = "test";
        const REQUEST_KEEPS_XID: bool = true;
        const SERVER_CONFIRMS_RELEASE: bool = true;

        fn is_own_family(_: IpAddr) -> bool {
            true
        }

        fn encode(&self, context: &MessageContext) -> Vec<u8> {
            let address = context.terms.map(|terms| terms.address.addr()).or(context.hint);
            let address = address.map(|address| address.to_string()).unwrap_or_default();
            format!("{:?} {address}", context.phase).into_bytes()
        }

        fn parse_reply(&self, _: &MessageContext, message: &[u8]) -> Option<Reply> {
            match message {
                b"o" => Some(Reply::Offered(terms("10.0.0.1/24"))),
                b"g" => Some(Reply::Granted(terms("10.0.0.1/24"))),
                b"G" => Some(Reply::Granted(terms("10.0.0.2/24"))),
                b"k" => Some(Reply::Confirmed),
                b"r" => Some(Reply::Rejected),
                b"R" => Some(Reply::Released),
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
            lifetimes: Some(Lifetimes::new(100, 180, 200)),
        }
    }

    const TIMES: RetryTimes =
        RetryTimes { timeout: Duration::from_secs(10), resend_max: Duration::from_secs(62) };

    /// A machine with its clock and its output.
    struct Scenario {
        machine: StateMachine<TestProtocol>,
        start: Instant,
        output: Vec<String>,
    }

    impl Scenario {
        fn start() -> Scenario {
            let start = Instant::now();
            let (machine, actions) = StateMachine::start(TestProtocol, TIMES, None, start);
            Scenario { machine, start, output: Vec::new() }.with(actions)
        }

        fn bound() -> Scenario {
            let mut scenario = Scenario::start();
            scenario.receive(0, "o");
            scenario.receive(0, "g");
            scenario.output.clear();
            scenario
        }

        fn with(mut self, actions: Vec<Action>) -> Scenario {
            self.record(actions);
            self
        }

        fn record(&mut self, actions: Vec<Action>) {
            self.output.extend(actions.into_iter().map(|action| match action {
                Action::Send(_, message) => String::from_utf8(message).unwrap().trim().to_owned(),
                other => format!("{other:?}"),
            }));
        }

        fn receive(&mut self, second: u64, reply: &str) {
            let actions = self.machine.receive(reply.as_bytes(), self.at(second));
            self.record(actions);
        }

        /// Advances the time from deadline to deadline, like the daemon.
        fn wait_until(&mut self, second: u64) {
            let end = self.at(second);
            for _ in 0..1000 {
                match self.machine.deadline() {
                    Some(deadline) if deadline <= end => {
                        let actions = self.machine.wake(deadline);
                        self.record(actions);
                    }
                    _ => return,
                }
            }
            panic!("the machine does not become idle: {:?}", self.output);
        }

        fn at(&self, second: u64) -> Instant {
            self.start + Duration::from_secs(second)
        }

        #[track_caller]
        fn check_output(&mut self, expected: &[&str]) {
            assert_eq!(std::mem::take(&mut self.output), expected);
        }
    }

    #[test]
    fn discovery_leads_to_a_lease() {
        let mut scenario = Scenario::start();
        scenario.receive(0, "nonsense");
        scenario.receive(0, "g");
        scenario.check_output(&["Discover"]);
        scenario.receive(0, "o");
        scenario.check_output(&["Request 10.0.0.1"]);
        scenario.receive(0, "g");
        scenario.check_output(&["Acquired"]);
        assert!(scenario.machine.lease().is_some() && !scenario.machine.is_waiting());
        assert_eq!(scenario.machine.deadline(), Some(scenario.at(100)));
    }

    #[test]
    fn unanswered_messages_are_retried_with_backoff() {
        let mut scenario = Scenario::start();
        scenario.wait_until(9);
        let soon = scenario.output.len();
        assert!((4..=6).contains(&soon), "{soon}");
        scenario.wait_until(3600);
        let later = scenario.output.len();
        assert!((50..=90).contains(&later), "{later}");
        assert!(scenario.output.iter().all(|line| line == "Discover"));
    }

    #[test]
    fn failed_request_restarts_discovery() {
        let mut scenario = Scenario::start();
        scenario.receive(0, "o");
        scenario.wait_until(10);
        assert_eq!(scenario.output.last().map(String::as_str), Some("Discover"));
        scenario.receive(10, "o");
        scenario.output.clear();
        scenario.receive(10, "r");
        scenario.check_output(&[]);
        scenario.wait_until(12);
        assert!(
            !scenario.output.is_empty() && scenario.output.iter().all(|line| line == "Discover")
        );
    }

    #[test]
    fn unanswered_lease_is_renewed_rebound_and_lost() {
        let mut scenario = Scenario::bound();
        scenario.wait_until(99);
        scenario.check_output(&[]);
        scenario.wait_until(100);
        scenario.check_output(&["Renew 10.0.0.1"]);
        scenario.wait_until(179);
        assert!(
            scenario.output.len() >= 3
                && scenario.output.iter().all(|line| line == "Renew 10.0.0.1")
        );
        scenario.output.clear();
        scenario.wait_until(180);
        scenario.check_output(&["Rebind 10.0.0.1"]);
        scenario.wait_until(199);
        scenario.output.clear();
        scenario.wait_until(200);
        scenario.check_output(&["Lost", "Discover 10.0.0.1"]);
        assert!(scenario.machine.lease().is_none());
    }

    #[test]
    fn renewal_may_change_the_address() {
        let mut scenario = Scenario::bound();
        scenario.wait_until(100);
        scenario.receive(101, "G");
        scenario.check_output(&["Renew 10.0.0.1", "Acquired"]);
        assert_eq!(scenario.machine.lease().unwrap().terms.address.to_string(), "10.0.0.2/24");
        // The lease starts at the time of the request.
        assert_eq!(scenario.machine.deadline(), Some(scenario.at(200)));
    }

    #[test]
    fn rejected_renewal_loses_the_lease() {
        let mut scenario = Scenario::bound();
        scenario.wait_until(100);
        scenario.receive(101, "r");
        scenario.check_output(&["Renew 10.0.0.1", "Lost", "Discover 10.0.0.1"]);
    }

    #[test]
    fn resumed_lease_is_confirmed() {
        let resume = |age: u64| {
            let start = Instant::now();
            let granted = start - Duration::from_secs(age);
            let lease = Lease { terms: terms("10.0.0.1/24"), granted };
            let (machine, actions) = StateMachine::resume(TestProtocol, TIMES, lease, start);
            Scenario { machine, start, output: Vec::new() }.with(actions)
        };
        let mut scenario = resume(50);
        scenario.check_output(&["Confirm 10.0.0.1"]);
        scenario.receive(0, "k");
        assert_eq!(
            scenario.machine.deadline(),
            Some(scenario.at(50)),
            "the lifetimes do not change"
        );
        let mut scenario = resume(50);
        scenario.receive(0, "G");
        scenario.check_output(&["Confirm 10.0.0.1", "Acquired"]);
        let mut scenario = resume(50);
        scenario.receive(0, "r");
        scenario.check_output(&["Confirm 10.0.0.1", "Lost", "Discover 10.0.0.1"]);
        let mut scenario = resume(50);
        scenario.wait_until(49);
        assert!(
            scenario.output.iter().all(|line| line == "Confirm 10.0.0.1"),
            "only confirmations are sent"
        );
        scenario.output.clear();
        scenario.wait_until(50);
        scenario.check_output(&["Renew 10.0.0.1"]);
        let mut scenario = resume(190);
        scenario.receive(0, "k");
        scenario.check_output(&["Confirm 10.0.0.1", "Rebind 10.0.0.1"]);
        resume(200).check_output(&["Lost", "Discover 10.0.0.1"]);
    }

    #[test]
    fn release_is_sent_and_retried() {
        let mut scenario = Scenario::bound();
        let actions = scenario.machine.release(scenario.at(1));
        scenario.record(actions);
        scenario.receive(1, "R");
        scenario.check_output(&["Release 10.0.0.1"]);
        assert!(scenario.machine.is_idle());
        let mut scenario = Scenario::bound();
        let actions = scenario.machine.release(scenario.at(1));
        scenario.record(actions);
        scenario.wait_until(3);
        scenario.check_output(&["Release 10.0.0.1", "Release 10.0.0.1"]);
        assert!(scenario.machine.is_idle(), "retries are limited");
        let mut scenario = Scenario::start();
        assert_eq!(scenario.machine.release(scenario.at(1)), []);
        assert!(scenario.machine.is_idle());
    }

    #[test]
    fn infinite_lease_has_no_deadline() {
        let mut scenario = Scenario::start();
        scenario.receive(0, "o");
        let actions = scenario
            .machine
            .acquire(Terms { lifetimes: None, ..terms("10.0.0.1/24") }, scenario.start);
        scenario.record(actions);
        assert_eq!(scenario.machine.deadline(), None);
    }
}
