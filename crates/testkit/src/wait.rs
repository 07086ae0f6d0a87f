// SPDX-License-Identifier: Apache-2.0
//! Waits for a condition with a deadline. No other module of the tests sleeps.

use std::thread;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` holds; panics with `what` if it does not hold within `deadline`.
#[track_caller]
pub fn wait_for(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    let held = wait_some(deadline, || condition().then_some(()));
    assert!(held.is_some(), "timed out after {deadline:?} waiting for: {what}");
}

/// Calls `attempt` until it returns a value: at least once, and once more after the deadline, so that a
/// machine that is too busy to try in time does not cause a failure.
#[expect(
    clippy::disallowed_methods,
    reason = "outside tools send no events; the deadline bounds the wait"
)]
pub fn wait_some<T>(deadline: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    while start.elapsed() < deadline {
        if let Some(value) = attempt() {
            return Some(value);
        }
        thread::sleep(INTERVAL);
    }
    attempt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_repeats_until_there_is_a_value() {
        let mut tries = 0;
        let value = wait_some(Duration::from_secs(60), || {
            tries += 1;
            (tries == 3).then_some("there")
        });
        assert_eq!((value, tries), (Some("there"), 3));
    }

    #[test]
    fn wait_ends_at_the_deadline() {
        assert_eq!(wait_some(Duration::from_millis(20), || None::<()>), None);
        assert_eq!(wait_some(Duration::ZERO, || Some(1)), Some(1));
    }
}
