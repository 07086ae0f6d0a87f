// SPDX-License-Identifier: Apache-2.0
//! Waiting for a condition, with a deadline: the one place of the tests that pauses.

use std::thread;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `condition` holds; panics with `what` if it does not within `deadline`.
#[track_caller]
pub fn wait_for(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    let held = wait_some(deadline, || condition().then_some(()));
    assert!(held.is_some(), "waited {deadline:?} in vain for: {what}");
}

/// Waits until `attempt` gives a value. It is tried at least once, and once more after the
/// deadline, so that a machine too busy to try in time is not taken for a failure.
#[expect(clippy::disallowed_methods, reason = "outside tools cannot be waited on; bounded")]
pub fn wait_some<T>(deadline: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    while start.elapsed() < deadline {
        if let Some(value) = attempt() {
            return Some(value);
        }
        thread::sleep(PAUSE);
    }
    attempt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_until_there_is_a_value() {
        let mut tries = 0;
        let found = wait_some(Duration::from_secs(60), || {
            tries += 1;
            (tries == 3).then_some("there")
        });
        assert_eq!((found, tries), (Some("there"), 3));
    }

    #[test]
    fn gives_up_at_the_deadline() {
        assert_eq!(wait_some(Duration::from_millis(20), || None::<()>), None);
        assert_eq!(wait_some(Duration::ZERO, || Some(1)), Some(1));
    }
}
