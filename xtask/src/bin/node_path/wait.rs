// SPDX-License-Identifier: Apache-2.0
//! Waits for a condition by polling.

use std::thread;
use std::time::{Duration, Instant};

use super::Outcome;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Calls `look` every `every` until it returns a value.
#[expect(clippy::disallowed_methods, reason = "the measured program must not be involved")]
pub(crate) fn until<T>(
    what: &str,
    every: Duration,
    mut look: impl FnMut() -> Outcome<Option<T>>,
) -> Outcome<T> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = look()? {
            return Ok(value);
        }
        if Instant::now() > deadline {
            return Err(format!("{what}: not within {TIMEOUT:?}").into());
        }
        thread::sleep(every);
    }
}
