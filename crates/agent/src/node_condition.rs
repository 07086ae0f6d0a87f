// SPDX-License-Identifier: Apache-2.0
//! The node condition controller: tells Kubernetes that the network of this node works. Kubernetes keeps
//! pods away from a node until then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use text::ErrorChain;
use tokio::sync::watch;

use crate::lease::LeaseBackend;
use crate::membership::at;
use crate::overlay::Programmed;
use crate::supervisor::{Failure, Heartbeat};

/// Delay before a failed request is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Sets the condition each time the node has joined through the store.
pub(crate) async fn run(
    leases: &dyn LeaseBackend,
    network: &mut watch::Receiver<Option<Arc<Programmed>>>,
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
        let is_member =
            network.borrow_and_update().as_ref().is_some_and(|one| !one.joined.from_cache);
        if !is_member {
            continue;
        }
        if let Err(error) = heartbeat.during(leases.set_network_available()).await {
            tracing::warn!(error = %ErrorChain(&error), "node condition not set, retrying");
            retry_at = Some(Instant::now() + RETRY_INTERVAL);
        }
    }
}
