// SPDX-License-Identifier: Apache-2.0
//! One attachment and its leases, from the ADD to the DEL.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use cni::{CniResult, Code, Error};
use ipnet::IpNet;

use super::super::conf::Asked;
use super::super::exchange::Dialog;
use super::super::lease::{self, Lease};
use super::super::protocol::Key;
use super::super::state_machine::{Machine, Pace};
use super::super::{v4, v6};
use super::family_lease::{AnySide, Outcome, Owner, Side};
use super::flags::Flags;
use super::interface::Spot;
use super::store::{Clock, Kept, Record};
use super::transport::{Wire, Wire4, Wire6};

/// An attachment.
pub struct Held {
    /// Whose.
    pub key: Key,
    /// Where it is.
    pub spot: Spot,
    asked: Asked,
    whose: String,
    ipv4: Option<Box<dyn AnySide>>,
    ipv6: Option<Box<dyn AnySide>>,
    is_settled: bool,
    is_ending: bool,
}

impl Held {
    /// Begins to look for leases, preferably of these addresses.
    pub fn new(
        key: Key,
        spot: Spot,
        asked: Asked,
        hints: &[IpNet],
        flags: &Flags,
    ) -> (Held, Outcome) {
        let record = Record { key, spot, asked, ipv4: None, ipv6: None };
        Held::start(record, flags, &Manner::Look(hints))
    }

    /// Goes on where an earlier daemon was.
    pub fn resume(record: Record, flags: &Flags) -> (Held, Outcome) {
        Held::start(record, flags, &Manner::Resume)
    }

    /// What an earlier daemon had, only to be given back.
    pub fn leaving(record: Record, flags: &Flags) -> Held {
        Held::start(record, flags, &Manner::Leave).0
    }

    fn start(record: Record, flags: &Flags, manner: &Manner) -> (Held, Outcome) {
        let Record { key, spot, asked, ipv4: kept4, ipv6: kept6 } = record;
        let whose = key.text();
        let is_settled = !matches!(manner, Manner::Look(_));
        let owner = Owner { whose: &whose, spot: &spot, priority: asked.priority, is_settled };
        let mut outcome = Outcome::default();
        let ipv4 = asked.ipv4.then(|| {
            let client = client4(&whose, &spot, &asked, flags.broadcast);
            let (side, done) = begin::<_, Wire4>(client, kept4, flags, manner, owner);
            outcome = outcome.and(done);
            side
        });
        let ipv6 = asked.ipv6.then(|| {
            let (duid, association) = v6::duid(&whose);
            let client = v6::Client { duid, association };
            let (side, done) = begin::<_, Wire6>(client, kept6, flags, manner, owner);
            outcome = outcome.and(done);
            side
        });
        (Held { key, spot, asked, whose, ipv4, ipv6, is_settled, is_ending: false }, outcome)
    }

    /// What the next daemon has to know.
    pub fn record(&self) -> Record {
        let clock = Clock::read();
        let kept = |side: &Option<Box<dyn AnySide>>| {
            side.as_ref().and_then(|side| side.lease()).map(|lease| Kept::new(lease, clock))
        };
        let (ipv4, ipv6) = (kept(&self.ipv4), kept(&self.ipv6));
        let (key, spot, asked) = (self.key.clone(), self.spot.clone(), self.asked.clone());
        Record { key, spot, asked, ipv4, ipv6 }
    }

    /// As logs show it.
    pub fn whose(&self) -> &str {
        &self.whose
    }

    /// The ADD has been answered.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Its leases are being given back.
    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Whether its leases have been given back.
    pub fn has_ended(&self) -> bool {
        self.is_ending && self.sides().all(|side| side.is_resting())
    }

    /// What the container gets, once it has a lease of each family.
    pub fn result(&self) -> Option<CniResult> {
        let leases: Option<Vec<&Lease>> = self.sides().map(|side| side.lease()).collect();
        let terms = leases?.into_iter().map(|lease| &lease.terms);
        Some(lease::result(terms, self.asked.priority))
    }

    /// Why there is none.
    pub fn missing(&self, code: Code, within: Option<Duration>) -> Error {
        let missing = self.sides().filter(|side| side.lease().is_none());
        let names: Vec<&str> = missing.map(|side| side.protocol()).collect();
        let (names, ifname) = (names.join(" and no "), &self.key.ifname);
        let shown = |within: Option<Duration>| {
            within.map(|time| format!(" within {time:?}")).unwrap_or_default()
        };
        let details = format!("no {names} server gave {ifname:?} an address{}", shown(within));
        match within {
            Some(_) => {
                Error::new(code, "error calling DHCP.Allocate: no more tries").with_details(details)
            }
            None => Error::new(code, details),
        }
    }

    /// The result has been told, and the plugin acts on it.
    pub fn settle(&mut self) {
        self.is_settled = true;
        self.sides_mut().for_each(|side| side.settle());
    }

    /// When there is something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.sides().filter_map(|side| side.deadline()).min()
    }

    /// What to wait for.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.sides().flat_map(|side| side.fds()).collect()
    }

    /// Does what is due.
    pub fn wake(&mut self, now: Instant) -> Outcome {
        self.each(|side, owner| {
            let is_due = side.deadline().is_some_and(|deadline| now >= deadline);
            if is_due { side.wake(owner, now) } else { Outcome::default() }
        })
    }

    /// Takes what has come.
    pub fn hear(&mut self, now: Instant) -> Outcome {
        self.each(|side, owner| side.hear(owner, now))
    }

    /// Gives its leases back.
    pub fn end(&mut self, now: Instant) -> Outcome {
        self.is_ending = true;
        self.each(|side, owner| side.release(owner, now))
    }

    fn sides(&self) -> impl Iterator<Item = &dyn AnySide> {
        [&self.ipv4, &self.ipv6].into_iter().flatten().map(|side| &**side)
    }

    fn sides_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn AnySide>> {
        [&mut self.ipv4, &mut self.ipv6].into_iter().flatten()
    }

    fn each(&mut self, step: impl Fn(&mut dyn AnySide, Owner) -> Outcome) -> Outcome {
        let Held { whose, spot, asked, ipv4, ipv6, is_settled, .. } = self;
        let (priority, is_settled) = (asked.priority, *is_settled);
        let owner = Owner { whose, spot, priority, is_settled };
        let sides = [ipv4, ipv6].into_iter().flatten();
        sides.map(|side| step(&mut **side, owner)).fold(Outcome::default(), Outcome::and)
    }
}

fn client4(whose: &str, spot: &Spot, asked: &Asked, broadcast: bool) -> v4::Client {
    v4::Client {
        mac: spot.mac(),
        id: v4::client_id(whose),
        provided: asked.provided.clone(),
        requested: asked.requested.clone(),
        broadcast,
    }
}

/// How a side begins.
enum Manner<'a> {
    /// With nothing but addresses that would be welcome.
    Look(&'a [IpNet]),
    /// With what an earlier daemon had.
    Resume,
    /// The same, and only to end.
    Leave,
}

fn begin<D: Dialog + 'static, W: Wire + Default + 'static>(
    client: D,
    kept: Option<Kept>,
    flags: &Flags,
    manner: &Manner,
    owner: Owner,
) -> (Box<dyn AnySide>, Outcome) {
    let clock = Clock::read();
    let pace = Pace { timeout: flags.timeout, resend_max: flags.resend_max };
    let applied = kept.as_ref().map(|kept| kept.terms().clone());
    let lease = kept.and_then(|kept| kept.lease(clock));
    let started = match (manner, lease) {
        (Manner::Leave, lease) => (Machine::resting(client, pace, lease), Vec::new()),
        (Manner::Resume, Some(lease)) => Machine::resume(client, pace, lease, clock.now),
        (Manner::Resume, None) => Machine::start(client, pace, None, clock.now),
        (Manner::Look(hints), _) => {
            let hint = hints.iter().map(IpNet::addr).find(|hint| D::speaks_of(*hint));
            Machine::start(client, pace, hint, clock.now)
        }
    };
    let (side, outcome) = Side::<D, W>::new(started, applied, owner);
    (Box::new(side), outcome)
}
