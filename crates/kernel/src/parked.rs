// SPDX-License-Identifier: Apache-2.0
//! Sockets whose closing waits for the kernel: kept open until a child takes them along, or until the
//! end, when one is started for them.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use crate::detached;

static PARKED: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Keeps a socket open until [`hand_over`] or the next child.
pub(crate) fn park(socket: OwnedFd) {
    PARKED.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
}

pub(crate) fn take() -> Vec<OwnedFd> {
    std::mem::take(&mut *PARKED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Leaves the sockets that are parked to a child. Where there is none, or where no child can be
/// started, nothing is lost but the time that closing takes.
pub fn hand_over() {
    let parked = take();
    if !parked.is_empty() {
        // Best effort: without a child we close them ourselves.
        let _ = detached::hold(&parked);
    }
}
