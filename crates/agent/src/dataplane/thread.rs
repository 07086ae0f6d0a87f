// SPDX-License-Identifier: Apache-2.0
//! The thread of a dataplane: it executes commands in order, listens to netlink events, and repairs. It
//! sleeps while nothing happens.

use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kernel::poll::Waker;
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;

use crate::supervisor::Fault;

/// Kernel state that one thread maintains. A plane acts in the network namespace of the thread that
/// opened it, and stays on that thread.
pub trait Plane: 'static {
    /// Name of the thread.
    const NAME: &'static str;

    /// The state that commands read and change.
    type State;

    fn state(&mut self) -> &mut Self::State;

    /// Called after each batch of commands.
    fn after_commands(&mut self);

    /// Receives events, and repairs if a repair is due.
    fn repair_if_due(&mut self);

    /// Waits for an event, for the waker, or until the next repair is due.
    fn wait(&mut self, waker: &Waker);
}

/// The thread could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Sockets could not be opened, or nothing could be read.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    /// There is no thread.
    #[error("start a dataplane thread")]
    Thread(#[source] io::Error),
}

/// The thread has ended, because it panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the dataplane thread {0} has ended")]
pub struct Stopped(&'static str);

type Command<P> = Box<dyn FnOnce(&mut <P as Plane>::State) + Send>;
type Open<P> = Arc<dyn Fn() -> kernel::Result<P> + Send + Sync>;

/// A handle of the thread. Dropping it ends the thread, and leaves the kernel state as it is.
pub struct Dataplane<P: Plane> {
    open: Open<P>,
    running: Mutex<Running<P>>,
}

struct Running<P: Plane> {
    commands: Option<Sender<Command<P>>>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread ends.
    alive: watch::Receiver<()>,
}

impl<P: Plane> fmt::Debug for Dataplane<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dataplane").field("name", &P::NAME).finish_non_exhaustive()
    }
}

impl<P: Plane> Dataplane<P> {
    /// Starts the thread in the network namespace of the caller. `open` is called on the new thread.
    pub fn start(
        open: impl Fn() -> kernel::Result<P> + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let open: Open<P> = Arc::new(open);
        let running = Mutex::new(Running::start(&open)?);
        Ok(Self { open, running })
    }

    /// Starts the thread again if it has ended. The new thread knows nothing of earlier commands.
    pub async fn restart_if_stopped(&self) -> Result<(), StartError> {
        if !self.lock().thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return Ok(());
        }
        let open = Arc::clone(&self.open);
        // On another thread, because opening a plane reads kernel state.
        let started = spawn_blocking(move || Running::start(&open)).await;
        let started = started.map_err(|error| StartError::Thread(io::Error::other(error)))?;
        *self.lock() = started?;
        Ok(())
    }

    /// Waits until the thread ends. It ends by itself only if it panics.
    pub async fn stopped(&self) -> Stopped {
        let mut alive = self.lock().alive.clone();
        while alive.changed().await.is_ok() {}
        Stopped(P::NAME)
    }

    /// Executes a command after the earlier ones, and returns its result.
    pub async fn run<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut P::State) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let (answer, answered) = oneshot::channel();
        let command: Command<P> = Box::new(move |state| {
            // The caller may have stopped waiting.
            let _ = answer.send(command(state));
        });
        self.send(command)?;
        answered.await.map_err(|_| Stopped(P::NAME))
    }

    /// Makes the thread panic, or hang for this long. For tests.
    pub(crate) fn inject(&self, fault: Fault, hang: Duration) {
        // A thread that has ended needs no further fault.
        let _ = self.send(Box::new(move |_| match fault {
            Fault::Panic | Fault::FailStarts(_) => panic!("injected panic"),
            Fault::Hang => thread::park_timeout(hang),
        }));
    }

    fn send(&self, command: Command<P>) -> Result<(), Stopped> {
        let running = self.lock();
        let commands = running.commands.as_ref().ok_or(Stopped(P::NAME))?;
        commands.send(command).map_err(|_| Stopped(P::NAME))?;
        running.waker.wake();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Running<P>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Plane> Running<P> {
    fn start(open: &Open<P>) -> Result<Self, StartError> {
        let (commands, queue) = channel();
        let waker = Arc::new(Waker::new()?);
        let (woken, open) = (Arc::clone(&waker), Arc::clone(open));
        let (start, started) = channel();
        let (running, alive) = watch::channel(());
        let thread = thread::Builder::new().name(P::NAME.to_owned()).spawn(move || {
            // Dropped when the thread ends, also by a panic.
            let _running = running;
            match open() {
                Ok(plane) => {
                    let _ = start.send(Ok(()));
                    run(plane, &queue, &woken);
                }
                Err(error) => drop(start.send(Err(error))),
            }
        });
        let thread = thread.map_err(StartError::Thread)?;
        match started.recv() {
            Ok(result) => result?,
            Err(_) => return Err(StartError::Thread(io::Error::other("it panicked"))),
        }
        Ok(Self { commands: Some(commands), waker, thread: Some(thread), alive })
    }
}

impl<P: Plane> Drop for Running<P> {
    fn drop(&mut self) {
        drop(self.commands.take());
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic.
            let _ = thread.join();
        }
    }
}

/// The loop of the thread. Ends when all senders of commands are gone.
fn run<P: Plane>(mut plane: P, queue: &Receiver<Command<P>>, waker: &Waker) {
    loop {
        loop {
            match queue.try_recv() {
                Ok(command) => {
                    command(plane.state());
                    plane.after_commands();
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        plane.repair_if_due();
        plane.wait(waker);
    }
}
