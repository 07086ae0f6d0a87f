// SPDX-License-Identifier: Apache-2.0
//! Points in time. This crate has no clock: callers pass the time in.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Milliseconds since 1970. Printed and stored in the form of RFC 3339 with seconds, as Kubernetes stores times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    pub const fn as_millis(self) -> u64 {
        self.0
    }

    pub fn parse(text: &str) -> Option<Self> {
        humantime::parse_rfc3339(text).ok().map(Self::from)
    }

    /// Returns the time that has passed since `earlier`, or zero if that is in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Returns the form of Go's `Time.String()`, which Calico writes into the attribute `timestamp`.
    pub fn to_go_string(self) -> String {
        let text = humantime::format_rfc3339_millis(self.into()).to_string();
        text.replace('T', " ").replace('Z', " +0000 UTC")
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let millis = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Self(u64::try_from(millis).unwrap_or(u64::MAX))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        /// 31 December 9999, the last day that RFC 3339 can express.
        const LAST: u64 = 253_402_214_400_000;
        UNIX_EPOCH + Duration::from_millis(time.0.min(LAST))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_seconds((*self).into()).fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("time {text:?} is not like 2026-01-31T12:00:00Z"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_has_forms_of_kubernetes_and_of_go() {
        let time = Timestamp::from_millis(1_781_524_800_250);
        assert_eq!(time.to_string(), "2026-06-15T12:00:00Z");
        assert_eq!(time.to_go_string(), "2026-06-15 12:00:00.250 +0000 UTC");
        assert_eq!(
            Timestamp::parse("2026-06-15T12:00:00Z").unwrap().as_millis(),
            1_781_524_800_000
        );
        assert_eq!(Timestamp::parse("yesterday"), None);
        assert_eq!(Timestamp(u64::MAX).to_string(), "9999-12-31T00:00:00Z");
    }
}
