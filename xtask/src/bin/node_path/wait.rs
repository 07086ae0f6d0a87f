// SPDX-License-Identifier: Apache-2.0
//! Waiting for what others do and tell nobody.

use std::thread;
use std::time::{Duration, Instant};

use super::Outcome;

const PATIENCE: Duration = Duration::from_secs(20);

/// Looks again and again, `every` so long, until there is something.
#[expect(clippy::disallowed_methods, reason = "who is measured must not know of it")]
pub fn until<T>(
    what: &str,
    every: Duration,
    mut look: impl FnMut() -> Outcome<Option<T>>,
) -> Outcome<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            return Err(format!("{what}: not within {PATIENCE:?}").into());
        }
        thread::sleep(every);
    }
}
