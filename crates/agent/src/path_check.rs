// SPDX-License-Identifier: Apache-2.0
//! The path check: probes each peer with a full-size packet from time to time. It finds peers that are unreachable,
//! paths with an MTU below the pods' MTU, and devices that send wrong checksums through tunnels, which it repairs.
//! Peers need not run this agent: their kernels answer the probes.

mod checksum_offload;
mod probe;
mod schedule;
mod sockets;
mod target;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::pending;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;
use kernel::{Family, IfName};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tracing::{debug, info, warn};

use self::checksum_offload::{ChecksumOffload, Switched};
use self::probe::{Check, ChecksumResult, Finding, Outcome, PeerReachability, Probe, Step};
pub use self::schedule::ProbeIntervals;
use self::schedule::Schedule;
use self::sockets::{Answer, Received, Sockets, random};
pub use self::target::{Target, routed_targets, targets};
use crate::supervisor::Heartbeat;

/// Size of a small probe, which fits every path. ping sends the same size.
const SMALL: u32 = 84;
/// Maximum time to wait for an answer. Also used while the round-trip time is unknown.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum time to wait for an answer.
const MIN_ANSWER_TIMEOUT: Duration = Duration::from_millis(200);
/// How long this node waits for the peer's first packet if the peer starts.
const HEAD_START: Duration = Duration::from_millis(500);
/// Deadlines that are this close are handled together, because the checks of one round start one after the other.
const DEADLINE_SLACK: Duration = Duration::from_millis(10);

/// The state of the path to a peer, as one check found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathResult {
    /// Name of the peer.
    pub peer: String,
    /// Subnet of the peer's pods.
    pub subnet: IpNet,
    /// Address that was probed.
    pub address: IpAddr,
    pub reachable: bool,
    /// Size of the largest packet that passes, up to `full`; `None` if the peer is unreachable.
    pub path_mtu: Option<u32>,
    /// The pods' MTU.
    pub full: u32,
    pub checksum: Checksum,
    pub round_trip: Option<Duration>,
    pub at: SystemTime,
}

impl PathResult {
    /// The MTU that the route to the subnet needs; `None` if it needs none.
    pub fn route_mtu(&self) -> Option<u32> {
        self.path_mtu.filter(|mtu| *mtu < self.full)
    }
}

/// Whether checksums that the sender leaves to its device arrive intact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    Right,
    /// This check found them wrong, and turning off the tunnel device's checksum offload corrected them. Later checks
    /// report [`Checksum::Right`].
    Repaired,
    /// They are wrong, so TCP and UDP do not get through.
    Wrong,
    /// The peer answers no datagrams.
    Unknown,
}

/// A command to the path check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Check this target now and periodically. It replaces the target of the same peer and family.
    Watch(Target),
    /// The peer shows signs of life: check it now if it was unreachable.
    Heard(String),
    /// Stop checking this peer.
    Forget(String),
    /// Stop checking all peers except these.
    Retain(Vec<String>),
    /// Check all peers now, because the path to them has changed.
    CheckAll,
}

/// A peer and the address family of its subnet.
type Key = (String, Family);

/// Waits for answers and hellos. Never returns if the family has no sockets.
async fn receive(sockets: &mut Option<Sockets>) -> kernel::Result<Vec<Received>> {
    match sockets {
        Some(sockets) => sockets
            .receive()
            .await
            .map_err(|cause| kernel::Error::from_io("receive", "answers to probes", &cause)),
        None => pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => pending().await,
    }
}

/// The path check controller.
#[derive(Debug)]
pub struct PathCheck {
    commands: UnboundedReceiver<Command>,
    results: UnboundedSender<PathResult>,
    targets: BTreeMap<Key, Target>,
    /// The last state that was logged for each target.
    logged: HashMap<Key, PathState>,
    /// Targets that did not answer their last check, by address.
    unreachable: HashMap<IpAddr, Key>,
    schedule: Schedule<Key>,
    running: HashMap<Key, Running>,
    in_flight: InFlight,
    v4: Option<Sockets>,
    v6: Option<Sockets>,
    offload: ChecksumOffload,
    /// Checks that continue when the checksum offload of their device is off.
    awaiting_offload: HashMap<Key, Progress>,
}

/// The check that each probe belongs to, by the number of the probe.
#[derive(Debug, Default)]
struct InFlight {
    checks: HashMap<u64, Key>,
    last_number: u64,
}

/// A check that waits for an answer.
#[derive(Debug)]
struct Running {
    check: Check,
    number: u64,
    sent: Instant,
    deadline: Instant,
    progress: Progress,
}

/// Results of a check beside its state.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    round_trip: Option<Duration>,
    /// The path's MTU, if the check is about to be repeated for checksums only.
    path_mtu: Option<u32>,
    /// Checksum offload is off to see whether that corrects the checksums.
    is_repairing: bool,
}

impl PathCheck {
    /// Creates a path check that sends a result after each check.
    pub fn new(
        intervals: ProbeIntervals,
        commands: UnboundedReceiver<Command>,
        results: UnboundedSender<PathResult>,
    ) -> Self {
        Self {
            commands,
            results,
            targets: BTreeMap::new(),
            logged: HashMap::new(),
            unreachable: HashMap::new(),
            schedule: Schedule::new(intervals, Instant::now()),
            running: HashMap::new(),
            in_flight: InFlight::default(),
            v4: None,
            v6: None,
            offload: ChecksumOffload::default(),
            awaiting_offload: HashMap::new(),
        }
    }

    /// Checks peers until the command channel is closed. After an error, or if it was dropped, it can be called
    /// again: it keeps its targets, opens new sockets and checks all targets.
    pub async fn run(&mut self, heartbeat: &Heartbeat) -> kernel::Result<()> {
        self.restart()?;
        loop {
            heartbeat.beat();
            self.start_due_checks();
            let wake = self.next_deadline();
            tokio::select! {
                // On a busy machine a deadline may have passed while the answer is waiting.
                biased;
                received = receive(&mut self.v4) => self.handle_received(received?),
                received = receive(&mut self.v6) => self.handle_received(received?),
                switched = self.offload.next() => self.handle_switched(switched),
                command = self.commands.recv() => match command {
                    Some(command) => self.handle_command(command)?,
                    None => return Ok(()),
                },
                () = sleep_until(wake) => self.handle_timeouts(),
                () = heartbeat.tick() => {}
            }
        }
    }

    /// Drops everything that belongs to an earlier run except the targets.
    fn restart(&mut self) -> kernel::Result<()> {
        let now = Instant::now();
        self.cancel_all();
        (self.v4, self.v6) = (None, None);
        self.in_flight = InFlight::default();
        // Waiting commands would pile up while sockets cannot be opened.
        while let Ok(command) = self.commands.try_recv() {
            // It keeps its target also after an error, which the loop below returns.
            let _ = self.handle_command(command);
        }
        let targets: Vec<Target> = self.targets.values().cloned().collect();
        for target in targets {
            self.open_sockets(&target)?;
            self.schedule.add(target.key(), first_check(&target, now));
        }
        Ok(())
    }

    fn open_sockets(&mut self, target: &Target) -> kernel::Result<()> {
        let family = Family::of(target.address);
        let sockets = self.sockets(family);
        if sockets.is_none() {
            *sockets = Some(Sockets::open(family)?);
        }
        Ok(())
    }

    fn sockets(&mut self, family: Family) -> &mut Option<Sockets> {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }

    fn handle_command(&mut self, command: Command) -> kernel::Result<()> {
        let now = Instant::now();
        let keys_of = |peer: String| Family::ALL.map(|family| (peer.clone(), family));
        match command {
            Command::Watch(target) => {
                let key = target.key();
                if self.targets.get(&key) == Some(&target) {
                    return Ok(());
                }
                self.forget(&key);
                self.schedule.add(key.clone(), first_check(&target, now));
                // The target is kept also if its sockets cannot be opened: the next run tries again.
                self.targets.insert(key, target.clone());
                self.open_sockets(&target)?;
            }
            Command::Heard(peer) => {
                for key in keys_of(peer) {
                    if self.logged.get(&key) == Some(&PathState::Unreachable) {
                        self.schedule.hurry(&key, now);
                    }
                }
            }
            Command::Forget(peer) => keys_of(peer).iter().for_each(|key| self.forget(key)),
            Command::Retain(peers) => {
                let retained: HashSet<String> = peers.into_iter().collect();
                let keys = self.targets.keys();
                let removed: Vec<Key> =
                    keys.filter(|key| !retained.contains(&key.0)).cloned().collect();
                removed.iter().for_each(|key| self.forget(key));
            }
            Command::CheckAll => {
                for (key, target) in &self.targets {
                    if !self.running.contains_key(key) && !self.awaiting_offload.contains_key(key) {
                        self.schedule.add(key.clone(), first_check(target, now));
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes a running check out of the tables.
    fn take_running(&mut self, key: &Key) -> Option<Running> {
        let running = self.running.remove(key)?;
        self.in_flight.checks.remove(&running.number);
        Some(running)
    }

    fn forget(&mut self, key: &Key) {
        self.cancel(key);
        self.logged.remove(key);
        if let Some(target) = self.targets.remove(key) {
            self.unreachable.remove(&target.address);
        }
        self.schedule.remove(key);
    }

    /// Cancels a check, and undoes a repair that it is trying out.
    fn cancel(&mut self, key: &Key) {
        self.awaiting_offload.remove(key);
        let is_repairing =
            self.take_running(key).is_some_and(|running| running.progress.is_repairing);
        let device = self.targets.get(key).and_then(|target| target.device);
        if let Some(device) = device.filter(|_| is_repairing) {
            self.offload.finish(device, false);
        }
    }

    fn cancel_all(&mut self) {
        let keys: Vec<Key> =
            self.running.keys().chain(self.awaiting_offload.keys()).cloned().collect();
        keys.iter().for_each(|key| self.cancel(key));
    }

    /// When the loop must wake even if nothing arrives.
    fn next_deadline(&self) -> Option<Instant> {
        let deadline = self.running.values().map(|running| running.deadline).min();
        [deadline, self.schedule.next()].into_iter().flatten().min()
    }

    fn start_due_checks(&mut self) {
        while let Some(key) = self.schedule.take(Instant::now()) {
            let Some(target) = self.targets.get(&key) else { continue };
            let reachability = PathState::reachability(self.logged.get(&key).copied());
            let check = Check::new(target.full, SMALL, target.overhead, reachability);
            self.advance(key, check, Progress::default());
        }
    }

    /// Sends the next probe of a check, or finishes the check.
    fn advance(&mut self, key: Key, mut check: Check, progress: Progress) {
        let Some(address) = self.targets.get(&key).map(|target| target.address) else { return };
        loop {
            let probe = match check.step() {
                Step::Send(probe) => probe,
                Step::Done(finding) => return self.finish(key, finding, progress),
            };
            self.in_flight.last_number += 1;
            let number = self.in_flight.last_number;
            let sockets = self.sockets(Family::of(address)).as_ref();
            if sockets.is_some_and(|sockets| !sockets.send(address, probe, number)) {
                check.learn(Outcome::TooBig(None));
                continue;
            }
            let sent = Instant::now();
            let deadline = sent + answer_timeout(progress.round_trip, probe);
            self.in_flight.checks.insert(number, key.clone());
            self.running.insert(key, Running { check, number, sent, deadline, progress });
            return;
        }
    }

    fn handle_received(&mut self, received: Vec<Received>) {
        for one in received {
            match one {
                Received::Answer(answer) => self.handle_answer(answer),
                Received::Hello(address) => {
                    if let Some(key) = self.unreachable.get(&address) {
                        self.schedule.hurry(key, Instant::now());
                    }
                }
            }
        }
    }

    fn handle_answer(&mut self, answer: Answer) {
        let Some(key) = self.in_flight.checks.get(&answer.number).cloned() else { return };
        let address = self.targets.get(&key).map(|target| target.address);
        if answer.only_from.is_some() && answer.only_from != address {
            return;
        }
        let Some(Running { mut check, sent, mut progress, .. }) = self.take_running(&key) else {
            return;
        };
        if answer.outcome == Outcome::Answered {
            progress.round_trip.get_or_insert(sent.elapsed());
        }
        check.learn(answer.outcome);
        self.advance(key, check, progress);
    }

    fn handle_timeouts(&mut self) {
        let now = Instant::now();
        if self.running.values().all(|running| running.deadline > now) {
            return;
        }
        let is_late = |(_, running): &(&Key, &Running)| running.deadline <= now + DEADLINE_SLACK;
        let late: Vec<Key> =
            self.running.iter().filter(is_late).map(|(key, _)| key.clone()).collect();
        for key in late {
            let Some(mut running) = self.take_running(&key) else { continue };
            running.check.learn(Outcome::Silent);
            self.advance(key, running.check, running.progress);
        }
    }

    fn finish(&mut self, key: Key, finding: Finding, progress: Progress) {
        let device = self.targets.get(&key).and_then(|target| target.device);
        if let (Finding::Reachable { path_mtu, sums: ChecksumResult::Wrong }, Some(device), false) =
            (finding, device, progress.is_repairing)
        {
            self.offload.try_off(device, key.clone());
            let progress = Progress { path_mtu: Some(path_mtu), ..progress };
            self.awaiting_offload.insert(key, progress);
            return;
        }
        self.report(&key, device, finding, progress);
    }

    /// Continues a check whose device has its checksum offload off now.
    fn handle_switched(&mut self, Switched { device, key, can_help }: Switched) {
        let Some(progress) = self.awaiting_offload.remove(&key) else {
            // The check was cancelled meanwhile.
            if can_help {
                self.offload.finish(device, false);
            }
            return;
        };
        let path_mtu = progress.path_mtu.unwrap_or(SMALL);
        if can_help {
            let progress = Progress { is_repairing: true, ..progress };
            self.advance(key, Check::of_sums(path_mtu), progress);
        } else {
            let finding = Finding::Reachable { path_mtu, sums: ChecksumResult::Wrong };
            self.report(&key, Some(device), finding, progress);
        }
    }

    fn report(&mut self, key: &Key, device: Option<IfName>, finding: Finding, progress: Progress) {
        let Some(target) = self.targets.get(key).cloned() else { return };
        let (path_mtu, sums) = match finding {
            Finding::Reachable { path_mtu, sums } => (Some(path_mtu), sums),
            Finding::Unreachable => (None, ChecksumResult::Unknown),
        };
        let checksum = match sums {
            ChecksumResult::Right if progress.is_repairing => Checksum::Repaired,
            ChecksumResult::Right => Checksum::Right,
            ChecksumResult::Wrong => Checksum::Wrong,
            ChecksumResult::Unknown => Checksum::Unknown,
        };
        if let Some(device) = device.filter(|_| progress.is_repairing) {
            self.offload.finish(device, checksum == Checksum::Repaired);
        }
        let result = PathResult {
            peer: target.peer,
            subnet: target.subnet,
            address: target.address,
            reachable: path_mtu.is_some(),
            path_mtu,
            full: target.full,
            checksum,
            round_trip: progress.round_trip,
            at: SystemTime::now(),
        };
        let state = PathState::of(&result);
        log_change(self.logged.insert(key.clone(), state), state, &result);
        match state {
            PathState::Unreachable => {
                self.unreachable.insert(target.address, key.clone());
            }
            _ => {
                self.unreachable.remove(&target.address);
            }
        }
        // If the receiver is gone, the command channel is closed as well, which ends the run.
        let _ = self.results.send(result);
        let jitter = random() as f64 / u64::MAX as f64;
        self.schedule.done(key, path_mtu.is_some(), jitter, Instant::now());
    }
}

/// When the first check of a target starts.
fn first_check(target: &Target, now: Instant) -> Instant {
    if target.starts_second { now + HEAD_START } else { now }
}

/// Four round trips if the round-trip time is known. Datagrams get the maximum: they are answered by ICMP errors, whose
/// rate kernels limit.
fn answer_timeout(round_trip: Option<Duration>, probe: Probe) -> Duration {
    match (round_trip, probe) {
        (Some(round_trip), Probe::Hello { .. } | Probe::Echo { .. }) => {
            (round_trip * 4).clamp(MIN_ANSWER_TIMEOUT, ANSWER_TIMEOUT)
        }
        _ => ANSWER_TIMEOUT,
    }
}

/// The state of a path as it is logged: one line for each change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathState {
    Unreachable,
    WrongChecksums,
    /// The path's MTU is below the pods' MTU.
    Narrow(u32),
    Good,
}

impl PathState {
    fn of(result: &PathResult) -> PathState {
        if !result.reachable {
            PathState::Unreachable
        } else if result.checksum == Checksum::Wrong {
            PathState::WrongChecksums
        } else {
            result.route_mtu().map_or(PathState::Good, PathState::Narrow)
        }
    }

    fn reachability(last: Option<PathState>) -> PeerReachability {
        match last {
            None => PeerReachability::Unknown,
            Some(PathState::Unreachable) => PeerReachability::Unreachable,
            Some(_) => PeerReachability::Reachable,
        }
    }
}

fn log_change(before: Option<PathState>, now: PathState, result: &PathResult) {
    if before == Some(now) {
        return;
    }
    let PathResult { peer, address, full, round_trip, .. } = result;
    match now {
        PathState::Unreachable => warn!(%peer, %address, "peer unreachable"),
        PathState::WrongChecksums => {
            warn!(%peer, %address, "checksums arrive wrong, TCP and UDP do not get through");
        }
        PathState::Narrow(mtu) => {
            info!(%peer, %address, mtu, pod_mtu = full, "path MTU below pod MTU");
        }
        PathState::Good if before.is_some() => info!(%peer, %address, "path recovered"),
        PathState::Good => debug!(%peer, %address, ?round_trip, "path good"),
    }
}
