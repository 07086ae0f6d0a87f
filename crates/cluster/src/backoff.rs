// SPDX-License-Identifier: Apache-2.0
//! Delay before the next attempt.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// Returns the delay after `failures` failures in a row. The delay doubles each time. Half of it is random, so that many
/// nodes do not reconnect at the same instant.
pub(crate) fn delay(failures: u32) -> Duration {
    let Some(doublings) = failures.checked_sub(1) else {
        return Duration::ZERO;
    };
    let full = FIRST.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(LONGEST);
    let half = full / 2;
    let random = RandomState::new().hash_one(0_u8);
    let spread = u64::try_from(half.as_micros()).unwrap_or(u64::MAX);
    half + Duration::from_micros(random % (spread + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_up_to_a_limit() {
        assert_eq!(delay(0), Duration::ZERO);
        let check = |failures: u32, full: Duration| {
            let delay = delay(failures);
            assert!(delay >= full / 2 && delay <= full, "{failures}: {delay:?}");
        };
        check(1, FIRST);
        check(2, FIRST * 2);
        check(3, FIRST * 4);
        for failures in [8, 32, 33, 34, u32::MAX] {
            check(failures, LONGEST);
        }
    }
}
