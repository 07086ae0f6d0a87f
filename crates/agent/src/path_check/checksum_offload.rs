// SPDX-License-Identifier: Apache-2.0
//! Repair of wrong checksums. With checksum offload off, the tunnel device computes checksums before it encapsulates a
//! packet, so that nothing is left to the device below. That costs throughput, so it stays off only if it helps.

use std::collections::{HashSet, VecDeque};
use std::future::pending;

use kernel::ethtool::{Ethtool, TX_CHECKSUM};
use kernel::{IfName, Netlink, link};
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::warn;

use super::Key;

/// Switches checksum offload of devices, one after the other and not on the runtime's thread.
#[derive(Debug, Default)]
pub(super) struct ChecksumOffload {
    /// Devices that send correct checksums since their offload is off.
    helped: HashSet<IfName>,
    queue: VecDeque<Job>,
    running: Option<(Job, JoinHandle<kernel::Result<bool>>)>,
}

#[derive(Debug)]
struct Job {
    device: IfName,
    /// The check that waits; `None` if offload is to be restored.
    key: Option<Key>,
}

/// Checksum offload of a device is off, or cannot be turned off.
#[derive(Debug)]
pub(super) struct Switched {
    pub device: IfName,
    /// The check that waits for it.
    pub key: Key,
    /// `false` if offload cannot be turned off, or was off already and did not help.
    pub can_help: bool,
}

impl ChecksumOffload {
    /// Turns offload off, for this check to see whether that helps. [`Self::next`] reports when it is done.
    pub(super) fn try_off(&mut self, device: IfName, key: Key) {
        self.queue.push_back(Job { device, key: Some(key) });
    }

    /// Ends a repair. Offload stays off if that helped; otherwise it is restored for the sake of other peers.
    pub(super) fn finish(&mut self, device: IfName, has_helped: bool) {
        if has_helped {
            if self.helped.insert(device) {
                warn!(%device, "wrong checksums repaired, checksum offload off");
            }
        } else if !self.helped.contains(&device) {
            self.queue.push_back(Job { device, key: None });
        }
    }

    /// Works on the queue until offload of a device has been turned off. The wait can be dropped and resumed.
    pub(super) async fn next(&mut self) -> Switched {
        loop {
            if self.running.is_none() {
                let Some(job) = self.queue.pop_front() else { return pending().await };
                let (device, on) = (job.device, job.key.is_none());
                self.running = Some((job, spawn_blocking(move || switch(device, on))));
            }
            let Some((_, handle)) = &mut self.running else { continue };
            let done = handle.await;
            let Some((Job { device, key }, _)) = self.running.take() else { continue };
            let was_on = match done {
                Ok(Ok(was_on)) => Some(was_on),
                Ok(Err(error)) => {
                    warn!(%device, %error, "switching checksum offload failed");
                    None
                }
                Err(error) => {
                    warn!(%device, %error, "switching checksum offload failed");
                    None
                }
            };
            if let Some(key) = key {
                let can_help = was_on.is_some_and(|was_on| was_on || self.helped.contains(&device));
                return Switched { device, key, can_help };
            }
        }
    }
}

/// Returns whether offload was on.
fn switch(device: IfName, on: bool) -> kernel::Result<bool> {
    let index = link::index_of(&Netlink::open()?, device)?;
    let ethtool = Ethtool::open()?;
    let was_on = ethtool.is_on(index, TX_CHECKSUM)?;
    if was_on != on {
        ethtool.set(index, TX_CHECKSUM, on)?;
    }
    Ok(was_on)
}
