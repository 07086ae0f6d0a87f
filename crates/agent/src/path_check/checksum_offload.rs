// SPDX-License-Identifier: Apache-2.0
//! What is done about wrong checksums: the tunnel's device gets them filled in before a packet is wrapped,
//! so that nothing is left to the device below. It costs some speed, so it is done only where it helps.

use std::collections::HashSet;

use kernel::ethtool::{Ethtool, TX_CHECKSUM};
use kernel::{IfName, Netlink, link};
use tracing::warn;

/// Devices that were repaired.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// Where it has helped.
    helped: HashSet<IfName>,
}

impl Repairs {
    /// Has checksums filled in early. `false` where that cannot be done, or is so already and did not help.
    pub(super) fn begin(&mut self, device: IfName) -> bool {
        match switch(device, false) {
            Ok(was_on) => was_on || self.helped.contains(&device),
            Err(cause) => {
                warn!(%device, %cause, "checksums cannot be repaired");
                false
            }
        }
    }

    /// Keeps it where it has helped; else all is as it was, for the sake of other peers.
    pub(super) fn end(&mut self, device: IfName, has_helped: bool) {
        if has_helped {
            if self.helped.insert(device) {
                warn!(%device, "wrong checksums: the device no longer leaves them to the one below");
            }
        } else if !self.helped.contains(&device)
            && let Err(cause) = switch(device, true)
        {
            warn!(%device, %cause, "checksums cannot be left to the device again");
        }
    }
}

/// Whether it was on.
fn switch(device: IfName, on: bool) -> kernel::Result<bool> {
    let index = link::index_of(&Netlink::open()?, device)?;
    let ethtool = Ethtool::open()?;
    let was_on = ethtool.is_on(index, TX_CHECKSUM)?;
    if was_on != on {
        ethtool.set(index, TX_CHECKSUM, on)?;
    }
    Ok(was_on)
}
