// SPDX-License-Identifier: Apache-2.0
//! A thread of its own for a reconciler: it does what it is asked, hears of changes that others make, and
//! repairs. While nothing happens it does nothing.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kernel::Received;
use kernel::events::{Events, Topic};
use kernel::poll::Waker;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::events::EventImpact;
use super::outcome::Outcome;
use super::reconciler::{Options, Reconciler};
use super::schedule::Schedule;

/// What the thread tells without being asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// It has repaired something, or tried to; or what is wrong has changed.
    Repaired(Outcome),
    /// It has tried again what had failed before: nobody has broken that.
    TriedAgain(Outcome),
    /// It has compared all of the kernel with what is wanted, and made this many changes.
    Compared { took: Duration, changes: usize },
    /// The interface to other nodes has changed: look at it again.
    Underlay,
    /// Rules of ours may not be as they should: forwarding was turned off or on, or a blackhole has gone.
    Rules,
    /// It no longer hears of changes, and only the comparisons at intervals repair.
    Deaf(String),
}

/// The thread could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Sockets could not be opened, or nothing could be read.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    /// There is no thread.
    #[error("start the kernel thread")]
    Thread(#[source] io::Error),
}

/// The thread has ended, as by a panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the kernel thread has ended")]
pub struct Stopped;

type Command = Box<dyn FnOnce(&mut Reconciler) + Send>;

/// The thread. Dropping it ends it, and leaves the kernel as it is.
pub struct KernelThread {
    commands: Option<Sender<Command>>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for KernelThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelThread").finish_non_exhaustive()
    }
}

impl KernelThread {
    /// Starts it in the calling thread's network namespace. All is compared at least once in
    /// `compare_every`.
    pub fn start(
        options: Options,
        compare_every: Duration,
    ) -> Result<(Self, UnboundedReceiver<Report>), StartError> {
        let (commands, queue) = channel();
        let (reports, heard) = unbounded_channel();
        let waker = Arc::new(Waker::new()?);
        let rung = Arc::clone(&waker);
        let (start, started) = channel();
        let thread = thread::Builder::new().name("kernel".to_owned()).spawn(move || {
            let opened = Events::listen(&Topic::ALL)
                .and_then(|events| Reconciler::open(options).map(|one| (events, one)));
            let (events, reconciler) = match opened {
                Ok(both) => both,
                Err(error) => return drop(start.send(Err(error))),
            };
            let _ = start.send(Ok(()));
            let schedule = Schedule::new(compare_every, Instant::now());
            let events = Some(events);
            let wants_on_link = false;
            Worker { reconciler, events, queue, waker: rung, reports, schedule, wants_on_link }
                .run();
        });
        let thread = thread.map_err(StartError::Thread)?;
        match started.recv() {
            Ok(result) => result?,
            Err(_) => return Err(StartError::Thread(io::Error::other("it has panicked"))),
        }
        Ok((Self { commands: Some(commands), waker, thread: Some(thread) }, heard))
    }

    /// Does something with the reconciler, after what was asked before.
    pub async fn run<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Reconciler) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let (answer, answered) = oneshot::channel();
        let command: Command = Box::new(move |reconciler| {
            // Whoever asked may have gone.
            let _ = answer.send(command(reconciler));
        });
        let commands = self.commands.as_ref().ok_or(Stopped)?;
        commands.send(command).map_err(|_| Stopped)?;
        self.waker.wake();
        answered.await.map_err(|_| Stopped)
    }
}

impl Drop for KernelThread {
    fn drop(&mut self) {
        drop(self.commands.take());
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}

struct Worker {
    reconciler: Reconciler,
    /// None once it is deaf.
    events: Option<Events>,
    queue: Receiver<Command>,
    waker: Arc<Waker>,
    reports: UnboundedSender<Report>,
    schedule: Schedule,
    /// The next comparison has to look up which peers are on a link.
    wants_on_link: bool,
}

impl Worker {
    fn run(mut self) {
        loop {
            if !self.do_commands() {
                return;
            }
            let nudge = self.hear();
            self.act(nudge);
            self.wait();
        }
    }

    /// Whether there is still somebody who may ask.
    fn do_commands(&mut self) -> bool {
        loop {
            match self.queue.try_recv() {
                Ok(command) => {
                    command(&mut self.reconciler);
                    let (failures, conflicts) = self.reconciler.wrong();
                    self.schedule.reported(failures, conflicts);
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        if !self.reconciler.is_settled() {
            self.schedule.failed(Instant::now());
        }
        true
    }

    /// What has happened since the last time.
    fn hear(&mut self) -> EventImpact {
        let mut nudge = EventImpact::default();
        let Some(events) = &mut self.events else { return nudge };
        loop {
            let reconciler = &self.reconciler;
            let received = events.receive(Instant::now(), |event| {
                nudge = nudge.and(reconciler.interest(&event));
            });
            match received {
                Ok(Received::Events) => {}
                Ok(Received::Deadline) => return nudge,
                Ok(Received::Overrun) => {
                    return EventImpact {
                        compare: true,
                        underlay: true,
                        on_link: true,
                        rules: true,
                    };
                }
                Err(error) => {
                    let _ = self.reports.send(Report::Deaf(error.to_string()));
                    self.events = None;
                    return nudge;
                }
            }
        }
    }

    fn act(&mut self, nudge: EventImpact) {
        if nudge.underlay {
            let _ = self.reports.send(Report::Underlay);
        }
        if nudge.rules {
            let _ = self.reports.send(Report::Rules);
        }
        self.wants_on_link |= nudge.on_link;
        let now = Instant::now();
        if nudge.compare || nudge.on_link {
            self.schedule.nudge(now);
        }
        if self.schedule.due() > now {
            return;
        }
        let is_regular = !self.schedule.is_nudged();
        let report = match is_regular && !self.reconciler.is_settled() {
            true => Report::TriedAgain,
            false => Report::Repaired,
        };
        let outcome = match std::mem::take(&mut self.wants_on_link) || is_regular {
            true => self.reconciler.compare(),
            false => self.reconciler.repair(),
        };
        if self.reconciler.network().is_some() {
            let (took, changes) = (now.elapsed(), outcome.changes.len());
            let _ = self.reports.send(Report::Compared { took, changes });
        }
        if self.schedule.done(Instant::now(), &outcome) {
            let _ = self.reports.send(report(outcome));
        }
    }

    fn wait(&mut self) {
        let deadline = Some(self.schedule.due());
        let waited = match &self.events {
            Some(events) => self.waker.wait(events, deadline),
            None => self.waker.wait(&*self.waker, deadline),
        };
        if let Err(error) = waited {
            let _ = self.reports.send(Report::Deaf(error.to_string()));
            self.events = None;
        }
    }
}
