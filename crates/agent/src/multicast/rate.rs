// SPDX-License-Identifier: Apache-2.0
//! So many in a second and no more: a pod that shouts must not take the network from the others.

use std::time::Instant;

/// In a second, for long.
const PER_SECOND: u32 = 20_000;
/// At once.
const BURST: u32 = 5_000;

#[derive(Debug)]
pub struct Rate {
    left: f64,
    at: Instant,
}

impl Rate {
    pub fn new(now: Instant) -> Self {
        Self { left: f64::from(BURST), at: now }
    }

    /// Whether so many may go now.
    pub fn take(&mut self, count: u32, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.left = (self.left + passed * f64::from(PER_SECOND)).min(f64::from(BURST));
        // One packet for very many peers goes when nothing else has gone for a while.
        if self.left < f64::from(count.min(BURST)) {
            return false;
        }
        self.left -= f64::from(count);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn bursts_pass_and_floods_do_not() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let passed = (0..10_000).filter(|_| rate.take(1, start)).count();
        assert_eq!(passed, 5_000);
        let later = start + Duration::from_millis(100);
        let passed = (0..10_000).filter(|_| rate.take(1, later)).count();
        assert_eq!(passed, 2_000);
        assert!(rate.take(9_999, later + Duration::from_secs(9)));
        assert!(!rate.take(1, later + Duration::from_secs(9)));
    }
}
