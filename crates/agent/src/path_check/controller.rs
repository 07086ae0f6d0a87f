// SPDX-License-Identifier: Apache-2.0
//! The loop that checks peers: whose turn it is, what is under way, what came back, what did not.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::pending;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use kernel::Family;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::check::{Check, Finding, Outcome, Probe, Step, Sums};
use super::repair::Repairs;
use super::said::{Said, say};
use super::schedule::{Pace, Schedule};
use super::sockets::{Answer, Heard, Sockets, random};
use super::target::Target;
use super::{Checksum, Verdict};

/// Passes everywhere, and is what ping sends.
const SMALL: u32 = 84;
/// For an answer, while nothing is known of the round trip, and at most.
const PATIENCE: Duration = Duration::from_secs(1);
/// For an answer, at least.
const LEAST_PATIENCE: Duration = Duration::from_millis(200);
/// For the peer's first packet to come, where it is the peer that begins.
const HEAD_START: Duration = Duration::from_millis(500);
/// Whose time is over by then is given up now: checks of one round were begun one after the other.
const ALMOST: Duration = Duration::from_millis(10);

/// What the loop is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Checks this now and then, now first. One of the same peer and family is replaced.
    Watch(Target),
    /// This peer is alive somewhere: if it did not answer the last time, it is checked now.
    Heard(String),
    /// Checks nothing of this peer's any more.
    Forget(String),
    /// Checks nothing of any peers' but these.
    Retain(Vec<String>),
    /// Checks all now, because the way to them has changed.
    CheckAll,
}

/// A peer, and the family of its subnet.
type Key = (String, Family);

/// Checks peers until nobody gives commands any more. Tells a verdict after every check.
pub async fn run(
    pace: Pace,
    mut commands: UnboundedReceiver<Command>,
    verdicts: UnboundedSender<Verdict>,
) -> kernel::Result<()> {
    let mut watch = Watch::new(pace);
    loop {
        watch.begin_due();
        let wake = watch.wake();
        tokio::select! {
            // On a busy machine time may be over while the answer is there.
            biased;
            heard = receive(&mut watch.v4) => watch.hear(heard?),
            heard = receive(&mut watch.v6) => watch.hear(heard?),
            command = commands.recv() => match command {
                Some(command) => watch.obey(command)?,
                None => return Ok(()),
            },
            () = sleep_until(wake) => watch.give_up_late(),
        }
        for verdict in watch.verdicts.drain(..) {
            // Nobody is left to be told, and the next command says so.
            let _ = verdicts.send(verdict);
        }
    }
}

async fn receive(sockets: &mut Option<Sockets>) -> kernel::Result<Vec<Heard>> {
    match sockets {
        Some(sockets) => sockets
            .receive()
            .await
            .map_err(|cause| kernel::Error::from_io("hear answers to", "probes", &cause)),
        None => pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => pending().await,
    }
}

/// All peers, and the checks that are under way.
struct Watch {
    targets: BTreeMap<Key, Target>,
    said: HashMap<Key, Said>,
    /// Who did not answer the last time, by address.
    lost: HashMap<IpAddr, Key>,
    schedule: Schedule<Key>,
    running: HashMap<Key, Running>,
    /// Which check a probe is of.
    probes: HashMap<u64, Key>,
    last_number: u64,
    v4: Option<Sockets>,
    v6: Option<Sockets>,
    repairs: Repairs,
    verdicts: Vec<Verdict>,
}

struct Running {
    check: Check,
    number: u64,
    sent: Instant,
    deadline: Instant,
    round_trip: Option<Duration>,
    /// Checksums are filled in early, to see whether that helps.
    is_repairing: bool,
}

impl Watch {
    fn new(pace: Pace) -> Self {
        Self {
            targets: BTreeMap::new(),
            said: HashMap::new(),
            lost: HashMap::new(),
            schedule: Schedule::new(pace, Instant::now()),
            running: HashMap::new(),
            probes: HashMap::new(),
            last_number: 0,
            v4: None,
            v6: None,
            repairs: Repairs::default(),
            verdicts: Vec::new(),
        }
    }

    fn obey(&mut self, command: Command) -> kernel::Result<()> {
        let now = Instant::now();
        match command {
            Command::Watch(target) => {
                let key = target.key();
                if self.targets.get(&key) == Some(&target) {
                    return Ok(());
                }
                let family = Family::of(target.address);
                let sockets = self.sockets(family);
                if sockets.is_none() {
                    *sockets = Some(Sockets::open(family)?);
                }
                self.forget(&key);
                self.schedule.add(key.clone(), first(&target, now));
                self.targets.insert(key, target);
            }
            Command::Heard(peer) => {
                for key in Family::ALL.map(|family| (peer.clone(), family)) {
                    if self.said.get(&key) == Some(&Said::Dead) {
                        self.schedule.hurry(&key, now);
                    }
                }
            }
            Command::Forget(peer) => {
                for key in Family::ALL.map(|family| (peer.clone(), family)) {
                    self.forget(&key);
                }
            }
            Command::Retain(peers) => {
                let stay: HashSet<String> = peers.into_iter().collect();
                let keys = self.targets.keys();
                let gone: Vec<Key> = keys.filter(|key| !stay.contains(&key.0)).cloned().collect();
                for key in gone {
                    self.forget(&key);
                }
            }
            Command::CheckAll => {
                for (key, target) in &self.targets {
                    if !self.running.contains_key(key) {
                        self.schedule.add(key.clone(), first(target, now));
                    }
                }
            }
        }
        Ok(())
    }

    fn sockets(&mut self, family: Family) -> &mut Option<Sockets> {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }

    /// Ends a check that is under way, if any.
    fn end(&mut self, key: &Key) -> Option<Running> {
        let running = self.running.remove(key)?;
        self.probes.remove(&running.number);
        Some(running)
    }

    fn forget(&mut self, key: &Key) {
        self.cancel(key);
        self.said.remove(key);
        if let Some(target) = self.targets.remove(key) {
            self.lost.remove(&target.address);
        }
        self.schedule.remove(key);
    }

    /// Ends a check for good. A repair that is being tried out is taken back.
    fn cancel(&mut self, key: &Key) {
        let is_repairing = self.end(key).is_some_and(|running| running.is_repairing);
        let device = self.targets.get(key).and_then(|target| target.device);
        if let Some(device) = device.filter(|_| is_repairing) {
            self.repairs.end(device, false);
        }
    }

    /// When something is to be done even if nothing comes.
    fn wake(&self) -> Option<Instant> {
        let late = self.running.values().map(|running| running.deadline).min();
        [late, self.schedule.next()].into_iter().flatten().min()
    }

    fn begin_due(&mut self) {
        while let Some(key) = self.schedule.take(Instant::now()) {
            let Some(target) = self.targets.get(&key) else { continue };
            let standing = Said::standing(self.said.get(&key).copied());
            let check = Check::new(target.full, SMALL, target.overhead, standing);
            self.go_on(key, check, None, false);
        }
    }

    /// Does what a check wants next.
    fn go_on(
        &mut self,
        key: Key,
        mut check: Check,
        round_trip: Option<Duration>,
        is_repairing: bool,
    ) {
        let Some(address) = self.targets.get(&key).map(|target| target.address) else { return };
        loop {
            let probe = match check.step() {
                Step::Send(probe) => probe,
                Step::Done(finding) => return self.done(key, finding, round_trip, is_repairing),
            };
            self.last_number += 1;
            let number = self.last_number;
            let sockets = self.sockets(Family::of(address)).as_ref();
            if sockets.is_some_and(|sockets| !sockets.send(address, probe, number)) {
                check.learn(Outcome::TooBig(None));
                continue;
            }
            let sent = Instant::now();
            let deadline = sent + patience(round_trip, probe);
            self.probes.insert(number, key.clone());
            let running = Running { check, number, sent, deadline, round_trip, is_repairing };
            self.running.insert(key, running);
            return;
        }
    }

    fn hear(&mut self, heard: Vec<Heard>) {
        for one in heard {
            match one {
                Heard::Answer(answer) => self.learn(answer),
                Heard::Knock(address) => {
                    if let Some(key) = self.lost.get(&address) {
                        self.schedule.hurry(key, Instant::now());
                    }
                }
            }
        }
    }

    fn learn(&mut self, answer: Answer) {
        let Some(key) = self.probes.get(&answer.number).cloned() else { return };
        let address = self.targets.get(&key).map(|target| target.address);
        if answer.if_by.is_some() && answer.if_by != address {
            return;
        }
        let Some(Running { mut check, sent, mut round_trip, is_repairing, .. }) = self.end(&key)
        else {
            return;
        };
        if answer.outcome == Outcome::Answered {
            round_trip.get_or_insert(sent.elapsed());
        }
        check.learn(answer.outcome);
        self.go_on(key, check, round_trip, is_repairing);
    }

    fn give_up_late(&mut self) {
        let now = Instant::now();
        if self.running.values().all(|running| running.deadline > now) {
            return;
        }
        let is_late = |(_, running): &(&Key, &Running)| running.deadline <= now + ALMOST;
        let late: Vec<Key> =
            self.running.iter().filter(is_late).map(|(key, _)| key.clone()).collect();
        for key in late {
            let Some(mut running) = self.end(&key) else { continue };
            running.check.learn(Outcome::Silent);
            self.go_on(key, running.check, running.round_trip, running.is_repairing);
        }
    }

    fn done(
        &mut self,
        key: Key,
        finding: Finding,
        round_trip: Option<Duration>,
        is_repairing: bool,
    ) {
        let Some(target) = self.targets.get(&key).cloned() else { return };
        if let (Finding::Reachable { path_mtu, sums: Sums::Wrong }, Some(device), false) =
            (finding, target.device, is_repairing)
            && self.repairs.begin(device)
        {
            return self.go_on(key, Check::of_sums(path_mtu), round_trip, true);
        }
        let checksum = match finding {
            Finding::Reachable { sums: Sums::Right, .. } if is_repairing => Checksum::Repaired,
            Finding::Reachable { sums: Sums::Right, .. } => Checksum::Right,
            Finding::Reachable { sums: Sums::Wrong, .. } => Checksum::Wrong,
            Finding::Reachable { sums: Sums::Unknown, .. } | Finding::Unreachable => {
                Checksum::Unknown
            }
        };
        if let Some(device) = target.device.filter(|_| is_repairing) {
            self.repairs.end(device, checksum == Checksum::Repaired);
        }
        let path_mtu = match finding {
            Finding::Reachable { path_mtu, .. } => Some(path_mtu),
            Finding::Unreachable => None,
        };
        let verdict = Verdict {
            peer: target.peer,
            subnet: target.subnet,
            address: target.address,
            reachable: path_mtu.is_some(),
            path_mtu,
            full: target.full,
            checksum,
            round_trip,
            at: SystemTime::now(),
        };
        let said = say(self.said.get(&key).copied(), &verdict);
        match said {
            Said::Dead => drop(self.lost.insert(target.address, key.clone())),
            _ => drop(self.lost.remove(&target.address)),
        }
        self.said.insert(key.clone(), said);
        self.verdicts.push(verdict);
        let chance = random() as f64 / u64::MAX as f64;
        self.schedule.done(&key, path_mtu.is_some(), chance, Instant::now());
    }
}

/// When a check begins that is to begin as soon as may be.
fn first(target: &Target, now: Instant) -> Instant {
    if target.comes_second { now + HEAD_START } else { now }
}

/// Four round trips, as far as one is known. A datagram is answered by an error, which kernels are slower
/// with when they have to send many.
fn patience(round_trip: Option<Duration>, probe: Probe) -> Duration {
    match (round_trip, probe) {
        (Some(round_trip), Probe::Knock { .. } | Probe::Echo { .. }) => {
            (round_trip * 4).clamp(LEAST_PATIENCE, PATIENCE)
        }
        _ => PATIENCE,
    }
}
