// SPDX-License-Identifier: Apache-2.0
//! Delay before the next attempt.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// Returns the delay after `failures` failures in a row. The delay doubles each time. `random` selects a value between half of
/// it and all of it, so that many nodes do not reconnect at the same instant.
pub(crate) fn delay(failures: u32, random: u64) -> Duration {
    let Some(doublings) = failures.checked_sub(1) else {
        return Duration::ZERO;
    };
    let full = FIRST.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(LONGEST);
    let half = full / 2;
    let spread = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).max(1);
    half + Duration::from_micros(random % (spread + 1))
}

/// Returns a number that differs between calls and processes.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_up_to_a_limit() {
        assert_eq!(delay(0, 7), Duration::ZERO);
        assert_eq!(delay(1, 0), FIRST / 2);
        assert_eq!(delay(2, 0), FIRST);
        assert_eq!(delay(3, 0), FIRST * 2);
        for failures in [8, 32, 33, 34, u32::MAX] {
            assert_eq!(delay(failures, 0), LONGEST / 2, "{failures}");
        }
    }

    #[test]
    fn delay_varies_in_its_upper_half() {
        for random in [0, 1, 12_500, 25_000, 25_001, u64::MAX] {
            let delay = delay(1, random);
            assert!(delay >= FIRST / 2 && delay <= FIRST, "{random}: {delay:?}");
        }
        assert!(delay(1, 25_000) == FIRST);
    }
}
