// SPDX-License-Identifier: Apache-2.0
//! Sockets whose closing waits for the kernel: kept open until a child takes them along, or until the
//! end, when one is started for them.
//!
//! The kernel frees what was removed from nf_tables after a grace period, and whoever closes a netfilter
//! socket before waits for it, also one that has removed nothing.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::detached;

static PARKED: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Whether this process has removed something from nf_tables.
static HAS_REMOVED: AtomicBool = AtomicBool::new(false);

pub(crate) fn note_removal() {
    HAS_REMOVED.store(true, Ordering::Relaxed);
}

/// Keeps a netfilter socket that is about to be closed open, by another descriptor, until
/// [`hand_over`] or the next child, where this process has removed something.
pub(crate) fn park_after_removal(socket: impl AsFd) {
    if !HAS_REMOVED.load(Ordering::Relaxed) {
        return;
    }
    // Without a descriptor to spare nothing is lost but time.
    if let Ok(kept) = socket.as_fd().try_clone_to_owned() {
        PARKED.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
    }
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
