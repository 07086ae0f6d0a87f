// SPDX-License-Identifier: Apache-2.0
//! The node condition controller: tells Kubernetes that the network of this node works. Kubernetes keeps
//! pods away from a node until then.

use std::fmt::Display;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::membership::at;
use crate::supervisor::{Failure, Heartbeat};

/// Delay before a failed request is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Sets the condition each time the node has joined through the store.
pub(crate) async fn run<N, E: Display>(
    network: &mut watch::Receiver<Option<N>>,
    is_member: impl Fn(&N) -> bool,
    set: impl AsyncFn() -> Result<(), E>,
    heartbeat: &Heartbeat,
) -> Result<(), Failure> {
    network.mark_changed();
    let mut retry_at = None;
    loop {
        tokio::select! {
            changed = network.changed() => if changed.is_err() { return Ok(()) },
            () = at(retry_at) => {}
            () = heartbeat.tick() => continue,
        }
        heartbeat.beat();
        retry_at = None;
        if !network.borrow_and_update().as_ref().is_some_and(&is_member) {
            continue;
        }
        if let Err(error) = heartbeat.during(set()).await {
            tracing::warn!(%error, "node condition not set, retrying");
            retry_at = Some(Instant::now() + RETRY_INTERVAL);
        }
    }
}
