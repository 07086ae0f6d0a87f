// SPDX-License-Identifier: Apache-2.0
//! Watches the bridge while the agent runs.

use std::io;
use std::time::{Duration, Instant};

use kernel::Received;
use kernel::events::{Event, Events, Object, Topic};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::sleep;

use super::{Error, Expected, NAME, settle};
use crate::async_fd::register;
use crate::file_watcher::LOOK_AGAIN;
use crate::status::{ConditionKind, StatusHub};

/// Delay between a change and the next look at the bridge: many pods may go at once.
const PAUSE: Duration = Duration::from_millis(50);

/// Keeps the bridge's address in line with the node's subnets until dropped, and reports pods that stand in the way.
pub(crate) async fn keep(mut expected: watch::Receiver<Option<Expected>>, hub: &StatusHub) {
    let mut changes = hub.changes();
    let mut events = listen();
    loop {
        let wanted = expected.borrow_and_update().clone();
        // Plugins must know the new subnet first: one that still connects a pod of the old subnet needs the address.
        let is_published = |wanted: &Expected| {
            hub.session().is_some_and(|session| session.lease.subnets == wanted.subnets)
        };
        let is_stale = match wanted.filter(is_published) {
            Some(wanted) => report(hub, settle(&wanted)),
            None => false,
        };
        tokio::select! {
            Ok(()) = expected.changed() => {}
            () = changes.next() => {}
            () = relevant(&mut events, is_stale) => sleep(PAUSE).await,
            () = sleep(LOOK_AGAIN) => {}
        }
    }
}

/// Whether the bridge still has addresses of other subnets.
fn report(hub: &StatusHub, settled: Result<Vec<String>, Error>) -> bool {
    if let Ok(changes) = &settled {
        for change in changes {
            tracing::info!(%change, "changed");
        }
    }
    let is_stale = matches!(settled, Err(Error::Stale { .. }));
    hub.report(ConditionKind::Bridge, settled.map(drop));
    is_stale
}

/// None if the kernel refuses: then the bridge is checked at intervals only.
fn listen() -> Option<AsyncFd<Events>> {
    let events = Events::listen(&[Topic::Links, Topic::Addrs]).and_then(register);
    events.inspect_err(|error| tracing::warn!(%error, "changes of {NAME} are noticed late")).ok()
}

/// Waits for an event that can change what [`settle`] finds. While pods stand in the way, any link can be theirs.
async fn relevant(events: &mut Option<AsyncFd<Events>>, is_stale: bool) {
    let Some(socket) = events else { return std::future::pending().await };
    loop {
        match next(socket, is_stale).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "changes of {NAME} are noticed late");
                *events = None;
                return;
            }
        }
    }
}

async fn next(socket: &mut AsyncFd<Events>, is_stale: bool) -> io::Result<bool> {
    socket.readable().await?.clear_ready();
    let mut is_relevant = false;
    loop {
        let received = socket
            .get_mut()
            .receive(Instant::now(), |event| is_relevant |= concerns(&event, is_stale))
            .map_err(io::Error::other)?;
        match received {
            Received::Events => {}
            Received::Overrun => is_relevant = true,
            Received::Deadline => return Ok(is_relevant),
        }
    }
}

fn concerns(event: &Event, is_stale: bool) -> bool {
    match &event.object {
        Object::Link(link) => is_stale || link.name.as_str() == NAME,
        // Addresses of interfaces in this namespace change rarely.
        Object::Addr(_) => true,
        _ => false,
    }
}
