// SPDX-License-Identifier: Apache-2.0
//! A clock that all processes of the machine share and that cannot be set.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since boot, including sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(pub i64);

impl Moment {
    pub(super) fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        // Rounded down, so that no entry expires early.
        Self(time.tv_sec.saturating_mul(1000).saturating_add(time.tv_nsec / 1_000_000))
    }

    /// Returns the time at which a time to live ends, never too early.
    pub(super) fn after(self, ttl: i64) -> i64 {
        self.0.saturating_add(ttl).saturating_add(1)
    }

    pub(super) fn until(self, due: i64) -> Duration {
        Duration::from_millis(u64::try_from(due.saturating_sub(self.0)).unwrap_or(0))
    }
}

/// Returns the ID of this boot. Moments of different boots cannot be compared.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Rounds a time to live up to milliseconds.
pub(super) fn millis(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_micros().div_ceil(1000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttl_is_rounded_up_without_overflow() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_secs(2)), 2000);
        assert_eq!(millis(Duration::MAX), i64::MAX);
        assert_eq!(Moment(5).after(i64::MAX), i64::MAX);
        assert_eq!(Moment(5).after(10), 16);
    }

    #[test]
    fn overdue_entry_expires_at_once() {
        assert_eq!(Moment(5).until(7), Duration::from_millis(2));
        assert_eq!(Moment(5).until(3), Duration::ZERO);
        assert_eq!(Moment(i64::MAX).until(i64::MIN), Duration::ZERO);
    }
}
