// SPDX-License-Identifier: Apache-2.0
//! Detects a closed standard output. Before `main`, Rust's runtime opens `/dev/null` in place of a
//! closed descriptor, so that a plugin would succeed although its result is lost.

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Runs as a constructor of the C library, before Rust's runtime.
#[used]
// SAFETY: the section holds pointers to functions without arguments, and this is one.
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = check_stdout;

extern "C" fn check_stdout() {
    // SAFETY: the call only reads the flags of a descriptor.
    if unsafe { libc::fcntl(1, libc::F_GETFD) } == -1 {
        WAS_CLOSED.store(true, Ordering::Relaxed);
    }
}

/// Returns whether the process was started without standard output.
pub fn stdout_was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}
