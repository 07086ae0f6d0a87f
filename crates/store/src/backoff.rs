// SPDX-License-Identifier: Apache-2.0
//! How long to wait before trying again.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// The pause after so many failures in a row: none, then twice as long each time, and between half of
/// that and all of it as `noise` has it, so that a thousand nodes do not come back at one instant.
pub(crate) fn pause(failures: u32, noise: u64) -> Duration {
    let Some(doublings) = failures.checked_sub(1) else {
        return Duration::ZERO;
    };
    let full = FIRST.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(LONGEST);
    let half = full / 2;
    let spread = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).max(1);
    half + Duration::from_micros(noise % (spread + 1))
}

/// Something that differs from one process, and one call, to the next.
pub(crate) fn noise() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_doubles_up_to_a_limit() {
        assert_eq!(pause(0, 7), Duration::ZERO);
        assert_eq!(pause(1, 0), FIRST / 2);
        assert_eq!(pause(2, 0), FIRST);
        assert_eq!(pause(3, 0), FIRST * 2);
        for failures in [8, 32, 33, 34, u32::MAX] {
            assert_eq!(pause(failures, 0), LONGEST / 2, "{failures}");
        }
    }

    #[test]
    fn noise_spreads_over_the_upper_half() {
        for noise in [0, 1, 12_500, 25_000, 25_001, u64::MAX] {
            let pause = pause(1, noise);
            assert!(pause >= FIRST / 2 && pause <= FIRST, "{noise}: {pause:?}");
        }
        assert!(pause(1, 25_000) == FIRST);
    }
}
