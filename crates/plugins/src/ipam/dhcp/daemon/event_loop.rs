// SPDX-License-Identifier: Apache-2.0
//! The daemon's one loop: waits for whatever comes first and hands it to whom it concerns.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use cni::{Attachment, Code, Error, Version};
use ipnet::IpNet;
use kernel::daemon::TerminationSignals;
use kernel::poll::wait_readable;

use super::super::conf::Asked;
use super::super::protocol::{AddQuestion, Answer, CheckQuestion, Key, Place, Question};
use super::attachment::Held;
use super::connections::{CallerId, Callers, Listening, Turn};
use super::family_lease::Outcome;
use super::flags::Flags;
use super::interface::Spot;
use super::log;
use super::store::Store;
use crate::error::Context;

/// A CHECK does not wait for long.
const TAKE_OVER_PATIENCE: Duration = Duration::from_secs(4);

/// The daemon.
pub struct Daemon<'a> {
    flags: &'a Flags,
    store: Store,
    listening: &'a Listening,
    signals: &'a TerminationSignals,
    callers: Callers,
    entries: BTreeMap<Key, Entry>,
}

/// An attachment, and who waits for it.
struct Entry {
    held: Held,
    /// Who waits for leases.
    adding: Option<Adding>,
    /// Who waits for the end, and with what.
    ending: Vec<(CallerId, Answer)>,
}

/// Somebody who waits for leases.
#[derive(Debug, Clone)]
struct Adding {
    caller: CallerId,
    since: Instant,
    patience: Duration,
    /// The addresses that they must be of, for a CHECK.
    expected: Option<Vec<IpNet>>,
}

impl Adding {
    fn until(&self) -> Instant {
        self.since + self.patience
    }
}

/// Whom a descriptor concerns.
#[derive(Debug, Clone)]
enum Concern {
    Signals,
    Listening,
    Caller(CallerId),
    Held(Key),
}

impl<'a> Daemon<'a> {
    /// A daemon that has nothing to do yet.
    pub fn new(
        flags: &'a Flags,
        store: Store,
        listening: &'a Listening,
        signals: &'a TerminationSignals,
    ) -> Daemon<'a> {
        let (callers, entries) = (Callers::default(), BTreeMap::new());
        Daemon { flags, store, listening, signals, callers, entries }
    }

    /// Serves until a signal comes. Leases are kept, for the next daemon.
    pub fn run(mut self) -> Result<(), Error> {
        self.resume();
        log::line(&format!("dhcp daemon holds the leases of {} containers", self.entries.len()));
        loop {
            for concern in self.wait()? {
                match concern {
                    Concern::Signals => return Ok(()),
                    Concern::Listening => self.welcome(),
                    Concern::Caller(id) => self.hear_caller(id),
                    Concern::Held(key) => self.step(&key, Held::hear),
                }
            }
            self.do_what_is_due();
        }
    }

    /// What earlier daemons held, as far as it is still there.
    fn resume(&mut self) {
        for record in self.store.load() {
            let key = record.key.clone();
            if record.spot.enter().is_none() {
                log::about(&key.text(), "the container is gone, its lease is forgotten");
                self.store.remove(&key);
                continue;
            }
            let (held, outcome) = Held::resume(record, self.flags);
            self.entries.insert(key.clone(), Entry { held, adding: None, ending: Vec::new() });
            self.follow_up(&key, outcome);
        }
    }

    /// Whom something has happened to.
    fn wait(&self) -> Result<Vec<Concern>, Error> {
        let mut waited: Vec<(Concern, BorrowedFd)> = vec![
            (Concern::Signals, self.signals.as_fd()),
            (Concern::Listening, self.listening.as_fd()),
        ];
        waited.extend(self.callers.fds().map(|(id, fd)| (Concern::Caller(id), fd)));
        for (key, entry) in &self.entries {
            let fds = entry.held.fds().into_iter();
            waited.extend(fds.map(|fd| (Concern::Held(key.clone()), fd)));
        }
        let deadlines = self.entries.values().flat_map(|entry| {
            let until = entry.adding.as_ref().map(Adding::until);
            [entry.held.deadline(), until].into_iter().flatten()
        });
        let deadline = deadlines.chain(self.callers.deadline()).min();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let fds: Vec<BorrowedFd> = waited.iter().map(|(_, fd)| *fd).collect();
        let ready = wait_readable(&fds, left).context("wait")?;
        let concerns = waited.into_iter().zip(ready).filter(|(_, is_ready)| *is_ready);
        Ok(concerns.map(|((concern, _), _)| concern).collect())
    }

    fn welcome(&mut self) {
        while let Some(stream) = self.listening.accept() {
            self.callers.welcome(stream, Instant::now());
        }
    }

    fn do_what_is_due(&mut self) {
        let now = Instant::now();
        self.callers.drop_silent(now);
        let is_due = |moment: Option<Instant>| moment.is_some_and(|moment| now >= moment);
        let due = |entry: &Entry| {
            is_due(entry.held.deadline()) || is_due(entry.adding.as_ref().map(Adding::until))
        };
        let keys: Vec<Key> = self
            .entries
            .iter()
            .filter(|(_, entry)| due(entry))
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.step(&key, Held::wake);
            self.give_up_if_late(&key, now);
        }
    }

    fn give_up_if_late(&mut self, key: &Key, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let Some(adding) = entry.adding.take_if(|adding| now >= adding.until()) else { return };
        let error = entry.held.missing(Code::TRY_LATER, Some(adding.patience));
        self.end(key, Some((adding.caller, Answer::failed(&error))));
    }

    fn hear_caller(&mut self, id: CallerId) {
        match self.callers.hear(id) {
            Turn::Unfinished => {}
            Turn::Gone => self.forsake(id),
            Turn::Asked(question) => {
                if let Some(answer) = self.consider(id, question) {
                    self.callers.answer(id, &answer);
                }
            }
        }
    }

    /// The plugin has been killed: nobody will use what it asked for.
    fn forsake(&mut self, id: CallerId) {
        let is_theirs =
            |entry: &&Entry| entry.adding.as_ref().is_some_and(|adding| adding.caller == id);
        let key = self.entries.values().find(is_theirs).map(|entry| entry.held.key.clone());
        if let Some(key) = key {
            self.end(&key, None);
        }
    }

    /// The answer, where it is known at once.
    fn consider(&mut self, id: CallerId, question: Question) -> Option<Answer> {
        match question {
            Question::Status => Some(Answer::Done(None)),
            Question::Add(question) => {
                let AddQuestion { place, asked } = *question;
                let patience = self.flags.resend_timeout;
                self.add(id, place, asked, patience, None).err().map(|error| Answer::failed(&error))
            }
            Question::Del(place) if self.entries.contains_key(&place.key) => {
                self.end(&place.key, Some((id, Answer::Done(None))));
                None
            }
            Question::Del(_) => Some(Answer::Done(None)),
            Question::Check(question) => self.check(id, *question),
            Question::Gc { network, valid } => {
                self.gc(&network, &valid);
                Some(Answer::Done(None))
            }
        }
    }

    fn add(
        &mut self,
        caller: CallerId,
        place: Place,
        asked: Asked,
        patience: Duration,
        expected: Option<Vec<IpNet>>,
    ) -> Result<(), Error> {
        let key = place.key;
        let netns = format!("{}{}", self.flags.host_prefix, place.netns);
        let spot = Spot::find(Path::new(&netns), &key.ifname, asked.ipv6)?;
        if let Some(entry) = self.entries.get(&key) {
            if entry.held.spot.is_same(&spot) && !entry.held.is_ending() {
                let msg = format!("{} has a lease already", key.text());
                return Err(Error::internal(msg).with_details("DEL must come before a second ADD"));
            }
            // Its interface is another one now; servers know it by its name, so nothing is lost.
            self.forget(&key);
        }
        log::about(&key.text(), "looking for a lease");
        let hints = expected.as_deref().unwrap_or_default();
        let (held, outcome) = Held::new(key.clone(), spot, asked, hints, self.flags);
        let adding = Some(Adding { caller, since: Instant::now(), patience, expected });
        self.entries.insert(key.clone(), Entry { held, adding, ending: Vec::new() });
        self.follow_up(&key, outcome);
        Ok(())
    }

    /// A container whose lease nobody holds, such as one of the Go daemon's, is taken over: servers know
    /// it by its name, and give it the address that it has.
    fn check(&mut self, id: CallerId, question: CheckQuestion) -> Option<Answer> {
        let CheckQuestion { place, asked, addresses } = question;
        let entry = self.entries.get(&place.key).filter(|entry| !entry.held.is_ending());
        let Some(entry) = entry else {
            let taken = self.add(id, place, asked, TAKE_OVER_PATIENCE, Some(addresses));
            return taken.err().map(|error| Answer::failed(&error));
        };
        Some(match entry.held.result() {
            Some(_) => Answer::Done(None),
            None => Answer::failed(&entry.held.missing(Code::INTERNAL, None)),
        })
    }

    fn gc(&mut self, network: &str, valid: &[Attachment]) {
        let valid: HashSet<(&str, &str)> =
            valid.iter().map(|one| (one.container_id.as_str(), one.ifname.as_str())).collect();
        let is_stale = |key: &&Key| {
            key.network == network && !valid.contains(&(&*key.container_id, &*key.ifname))
        };
        let stale: Vec<Key> = self.entries.keys().filter(is_stale).cloned().collect();
        for key in stale {
            self.end(&key, None);
        }
    }

    /// Gives leases back; the caller is answered when that is done.
    fn end(&mut self, key: &Key, caller: Option<(CallerId, Answer)>) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let Some(Adding { caller: adding, .. }) = entry.adding.take() {
            let error = Error::internal(format!("{} was removed meanwhile", entry.held.whose()));
            entry.ending.push((adding, Answer::failed(&error)));
        }
        entry.ending.extend(caller);
        if entry.held.is_ending() {
            return;
        }
        log::about(entry.held.whose(), "giving the lease back");
        self.step(key, Held::end);
    }

    fn step(&mut self, key: &Key, act: impl FnOnce(&mut Held, Instant) -> Outcome) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let outcome = act(&mut entry.held, Instant::now());
        self.follow_up(key, outcome);
    }

    /// What a step means for files and callers.
    fn follow_up(&mut self, key: &Key, outcome: Outcome) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if outcome.gone {
            log::about(entry.held.whose(), "the container is gone, its lease is forgotten");
            return self.forget(key);
        }
        if entry.held.has_ended() {
            return self.forget(key);
        }
        if entry.held.is_settled()
            && outcome.changed
            && !entry.held.is_ending()
            && let Err(cause) = self.store.save(&entry.held.record())
        {
            log::about(entry.held.whose(), format!("keep the lease: {cause}"));
        }
        self.finish_add(key);
    }

    /// The lease is on disk before it is told, so that a daemon that dies does not lose it.
    fn finish_add(&mut self, key: &Key) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let Some(result) = entry.held.result() else { return };
        let Some(Adding { caller, expected, .. }) = entry.adding.take() else { return };
        let others = result.ips.iter().map(|ip| ip.address);
        let others = others.filter(|got| expected.as_ref().is_some_and(|all| !all.contains(got)));
        let saved = match others.into_iter().next() {
            Some(other) => Err(Error::internal(format!(
                "nobody held the lease of {}, and the server would now give it {other}",
                key.text()
            ))),
            None => self.store.save(&entry.held.record()).map_err(|cause| {
                Error::because(Code::IO, format!("keep the lease of {}", key.text()), &cause)
            }),
        };
        match saved.and_then(|()| result.to_json(Version::LATEST)) {
            Err(error) => self.end(key, Some((caller, Answer::failed(&error)))),
            Ok(result) => {
                entry.held.settle();
                if !self.callers.answer(caller, &Answer::Done(Some(result))) {
                    self.end(key, None);
                }
            }
        }
    }

    /// Drops an attachment, and answers all who waited for that.
    fn forget(&mut self, key: &Key) {
        self.store.remove(key);
        let Some(entry) = self.entries.remove(key) else { return };
        for (caller, answer) in entry.ending {
            self.callers.answer(caller, &answer);
        }
        if let Some(Adding { caller, .. }) = entry.adding {
            let error = Error::internal(format!("{} is gone", entry.held.whose()));
            self.callers.answer(caller, &Answer::failed(&error));
        }
    }
}
