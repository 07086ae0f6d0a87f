// SPDX-License-Identifier: Apache-2.0
//! Standard output as the process was given it. Before `main`, Rust's runtime opens `/dev/null` in
//! place of a closed descriptor, so that a plugin would write its result to nowhere and succeed.

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Runs with the constructors of the C library, before Rust's runtime.
#[used]
// SAFETY: the section holds pointers to functions without arguments, and this is one.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: the request only reads the flags of a descriptor number.
    if unsafe { libc::fcntl(1, libc::F_GETFD) } == -1 {
        WAS_CLOSED.store(true, Ordering::Relaxed);
    }
}

/// Whether the process was started without standard output.
pub fn stdout_was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}
