// SPDX-License-Identifier: Apache-2.0
//! Runs the controllers. A controller that fails, panics or hangs is restarted with back-off while the
//! others go on, and the status names it.
//!
//! All controllers run on the thread that polls `Supervisor::run`, so a controller must not block: it
//! leaves blocking calls to `spawn_blocking` or to a thread of its own.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;
use tokio::time::{Instant, interval, sleep, sleep_until};

use crate::status::{HEARTBEAT_INTERVAL, StatusHub};

/// Why a controller ended, as a text for the status and the log.
pub(crate) type Failure = String;

/// When controllers count as hung, and when they are restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// A controller without a heartbeat for this long is restarted.
    pub heartbeat_timeout: Duration,
    /// Delay before the first restart. It doubles with each further restart.
    pub first_delay: Duration,
    pub max_delay: Duration,
    /// A controller that ran for this long starts again with the first delay.
    pub stable_after: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat_timeout: Duration::from_secs(45),
            first_delay: Duration::from_millis(500),
            max_delay: Duration::from_secs(30),
            stable_after: Duration::from_secs(60),
        }
    }
}

impl Timing {
    /// Returns the delay before the next restart. Pure.
    fn next_delay(&self, last: Option<Duration>, ran_for: Duration) -> Duration {
        match last {
            Some(last) if ran_for < self.stable_after => (last * 2).min(self.max_delay),
            _ => self.first_delay,
        }
    }
}

/// A fault that a test injects into a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Panic,
    /// The controller makes no progress until the supervisor stops it.
    Hang,
    /// The controller stops with an error, and so do this many restarts.
    FailStarts(u32),
}

/// Sends faults to the controllers of one agent.
#[derive(Debug, Clone)]
pub struct FaultInjector(UnboundedSender<(String, Fault)>);

/// The receiving end of a [`FaultInjector`].
#[derive(Debug)]
pub struct Faults(UnboundedReceiver<(String, Fault)>);

impl FaultInjector {
    pub fn channel() -> (FaultInjector, Faults) {
        let (sender, receiver) = unbounded_channel();
        (FaultInjector(sender), Faults(receiver))
    }

    pub fn inject(&self, controller: &str, fault: Fault) {
        // The receiver is gone only while the agent shuts down.
        let _ = self.0.send((controller.to_owned(), fault));
    }
}

/// Proves that a controller makes progress.
pub struct Heartbeat {
    last: Cell<Instant>,
    interval: Duration,
    /// When the controller counts as running; `None` once that is reported. After a failure it has to run for as
    /// long as it waited for its restart, so that one that fails again and again is never reported as running.
    recovers_at: Cell<Option<Instant>>,
    name: &'static str,
    hub: StatusHub,
}

impl fmt::Debug for Heartbeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heartbeat").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Heartbeat {
    fn new(name: &'static str, timing: &Timing, hub: &StatusHub, waited: Duration) -> Self {
        let now = Instant::now();
        Self {
            last: Cell::new(now),
            interval: timing.heartbeat_timeout / 4,
            recovers_at: Cell::new(Some(now + waited)),
            name,
            hub: hub.clone(),
        }
    }

    /// A heartbeat for a controller that runs without a supervisor.
    pub fn unsupervised() -> Self {
        Self::new("unsupervised", &Timing::default(), &StatusHub::new("", ""), Duration::ZERO)
    }

    /// Reports progress.
    pub(crate) fn beat(&self) {
        let now = Instant::now();
        self.last.set(now);
        if self.recovers_at.get().is_some_and(|at| at <= now) {
            self.recovers_at.set(None);
            self.hub.controller_running(self.name);
        }
    }

    /// Waits until a heartbeat is due, and reports progress. A branch of a controller's `select!`.
    pub(crate) async fn tick(&self) {
        let regular = self.last.get() + self.interval;
        sleep_until(self.recovers_at.get().map_or(regular, |at| at.min(regular))).await;
        self.beat();
    }

    /// Reports progress while it waits for another program, such as a store, that may take long to answer.
    pub(crate) async fn during<T>(&self, wait: impl Future<Output = T>) -> T {
        self.beat();
        let mut wait = pin!(wait);
        loop {
            tokio::select! {
                biased;
                done = &mut wait => return done,
                () = self.tick() => {}
            }
        }
    }

    async fn is_lost(&self, timeout: Duration) {
        loop {
            let deadline = self.last.get() + timeout;
            if deadline <= Instant::now() {
                return;
            }
            sleep_until(deadline).await;
        }
    }
}

/// How a controller ended.
enum Exit {
    /// It has nothing more to do.
    Finished,
    Failed(Failure),
    Panicked(String),
    Hung,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Finished => f.write_str("finished"),
            Exit::Failed(failure) => f.write_str(failure),
            Exit::Panicked(message) => write!(f, "panicked: {message}"),
            Exit::Hung => f.write_str("no heartbeat"),
        }
    }
}

/// Takes injected faults.
type Target = Box<dyn Fn(Fault)>;

/// Starts and restarts controllers.
pub(crate) struct Supervisor {
    tasks: LocalSet,
    timing: Timing,
    hub: StatusHub,
    faults: Option<Faults>,
    /// Controllers and threads that take faults, by name. Empty without an injector.
    targets: RefCell<HashMap<&'static str, Target>>,
}

impl Supervisor {
    pub(crate) fn new(hub: &StatusHub, timing: Timing, faults: Option<Faults>) -> Supervisor {
        let (tasks, targets) = (LocalSet::new(), RefCell::default());
        let shown = hub.clone();
        // The heartbeat of the thread that all controllers share. It also beats while the store opens.
        tasks.spawn_local(async move {
            let mut beats = interval(HEARTBEAT_INTERVAL);
            loop {
                beats.tick().await;
                shown.heartbeat();
            }
        });
        Supervisor { tasks, timing, hub: hub.clone(), faults, targets }
    }

    /// Adds a controller. It is called again after each failure, so what it captures must survive a failure.
    pub(crate) fn add(
        &self,
        name: &'static str,
        controller: impl AsyncFnMut(&Heartbeat) -> Result<(), Failure> + 'static,
    ) {
        let injected = self.faults.as_ref().map(|_| {
            let (sender, receiver) = unbounded_channel();
            // The receiver is gone once the controller has finished.
            self.add_fault_target(name, move |fault| {
                let _ = sender.send(fault);
            });
            receiver
        });
        let (timing, hub) = (self.timing, self.hub.clone());
        self.tasks.spawn_local(supervise(name, controller, timing, hub, injected));
    }

    /// Lets tests inject faults into something that is not a controller, such as a thread.
    pub(crate) fn add_fault_target(&self, name: &'static str, target: impl Fn(Fault) + 'static) {
        if self.faults.is_some() {
            self.targets.borrow_mut().insert(name, Box::new(target));
        }
    }

    /// How long a thread hangs if a test injects [`Fault::Hang`] into it: its controller counts as hung before.
    pub(crate) fn hang_duration(&self) -> Duration {
        self.timing.heartbeat_timeout * 2
    }

    /// Runs the controllers while something else runs.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        self.tasks.run_until(work).await
    }

    /// Runs the controllers until this is dropped.
    pub(crate) async fn run(self) -> Infallible {
        let Supervisor { tasks, mut faults, targets, .. } = self;
        let targets = targets.into_inner();
        let forward = async {
            loop {
                let Some(faults) = &mut faults else {
                    pending::<()>().await;
                    continue;
                };
                let Some((name, fault)) = faults.0.recv().await else {
                    pending::<()>().await;
                    continue;
                };
                let Some(target) = targets.get(name.as_str()) else {
                    panic!("no controller or thread {name}");
                };
                target(fault);
            }
        };
        tasks.run_until(forward).await
    }
}

async fn supervise(
    name: &'static str,
    mut controller: impl AsyncFnMut(&Heartbeat) -> Result<(), Failure>,
    timing: Timing,
    hub: StatusHub,
    mut injected: Option<UnboundedReceiver<Fault>>,
) {
    let (mut last_delay, mut failing_starts) = (None, 0);
    loop {
        let started = Instant::now();
        let waited = last_delay.unwrap_or_default();
        let heartbeat = Heartbeat::new(name, &timing, &hub, waited);
        let work = async {
            if failing_starts > 0 {
                failing_starts -= 1;
                return Err("injected failure".to_owned());
            }
            tokio::select! {
                ended = controller(&heartbeat) => ended,
                fault = next_fault(&mut injected) => match fault {
                    Fault::Panic => panic!("injected panic"),
                    Fault::Hang => pending().await,
                    Fault::FailStarts(count) => {
                        failing_starts = count;
                        Err("injected failure".to_owned())
                    }
                },
            }
        };
        let exit = tokio::select! {
            biased;
            exit = catching_panics(work) => exit,
            () = heartbeat.is_lost(timing.heartbeat_timeout) => Exit::Hung,
        };
        if matches!(exit, Exit::Finished) {
            return;
        }
        let delay = timing.next_delay(last_delay, started.elapsed());
        last_delay = Some(delay);
        tracing::error!(controller = name, reason = %exit, ?delay, "controller failed, restarting");
        hub.controller_failed(name, exit.to_string());
        sleep(delay).await;
    }
}

async fn next_fault(injected: &mut Option<UnboundedReceiver<Fault>>) -> Fault {
    match injected {
        Some(injected) => match injected.recv().await {
            Some(fault) => fault,
            None => pending().await,
        },
        None => pending().await,
    }
}

/// Turns a panic into an exit. Values that the controller has captured must be usable after a panic.
async fn catching_panics(work: impl Future<Output = Result<(), Failure>>) -> Exit {
    let mut work = pin!(work);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(Ok(()))) => Poll::Ready(Exit::Finished),
        Ok(Poll::Ready(Err(failure))) => Poll::Ready(Exit::Failed(failure)),
        Err(payload) => Poll::Ready(Exit::Panicked(panic_message(&*payload))),
    })
    .await
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn restart_delay_doubles_until_a_stable_run() {
        let timing = Timing::default();
        let (short, long) = (Duration::from_secs(1), timing.stable_after);
        let mut last = None;
        let mut delays = Vec::new();
        for _ in 0..8 {
            last = Some(timing.next_delay(last, short));
            delays.extend(last.map(|delay| delay.as_millis()));
        }
        assert_eq!(delays, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
        assert_eq!(timing.next_delay(last, long), timing.first_delay);
    }

    /// Runs a controller that counts its starts, with a fault, beside one that counts its heartbeats.
    async fn starts_after(fault: Fault, wanted: u32) -> (String, u64) {
        let hub = StatusHub::new("node", "etcd");
        let (injector, faults) = FaultInjector::channel();
        let supervisor = Supervisor::new(&hub, Timing::default(), Some(faults));
        let (starts, other) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (counted, beats) = (starts.clone(), other.clone());
        supervisor.add("faulty", async move |heartbeat| {
            counted.set(counted.get() + 1);
            loop {
                heartbeat.beat();
                heartbeat.tick().await;
            }
        });
        supervisor.add("other", async move |heartbeat| {
            assert_eq!(beats.get(), 0, "started once");
            loop {
                heartbeat.tick().await;
                beats.set(beats.get() + 1);
            }
        });
        let failure = RefCell::new(String::new());
        let is_failed = || {
            let shown = hub.summary().controllers.remove("faulty").and_then(|one| one.failure);
            shown.inspect(|reason| reason.clone_into(&mut failure.borrow_mut())).is_some()
        };
        let watch = async {
            // A fault that comes before the first poll would prevent the first start.
            while starts.get() == 0 {
                sleep(Duration::from_millis(100)).await;
            }
            injector.inject("faulty", fault);
            while starts.get() < wanted || is_failed() {
                sleep(Duration::from_millis(100)).await;
                is_failed();
            }
        };
        tokio::select! {
            never = supervisor.run() => match never {},
            () = watch => {}
        }
        let shown = hub.summary().controllers;
        assert_eq!(shown["faulty"].failure, None, "running again");
        assert_eq!(shown["other"].restarts, 0);
        assert!(other.get() > 0);
        (failure.into_inner(), shown["faulty"].restarts)
    }

    #[tokio::test(start_paused = true)]
    async fn failed_controller_is_restarted_and_others_go_on() {
        assert_eq!(starts_after(Fault::Panic, 2).await, ("panicked: injected panic".into(), 1));
        assert_eq!(starts_after(Fault::Hang, 2).await, ("no heartbeat".into(), 1));
        let failed = ("injected failure".into(), 4);
        assert_eq!(starts_after(Fault::FailStarts(3), 2).await, failed);
    }
}
