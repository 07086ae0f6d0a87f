// SPDX-License-Identifier: Apache-2.0
//! Versions of the specification.

use std::fmt;

/// A version of the CNI specification that this library supports, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are the versions")]
pub enum Version {
    V0_1_0,
    V0_2_0,
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

/// Layout of a result in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// 0.1.0 and 0.2.0: one object for each address family.
    PerFamily,
    /// 0.3.0 to 0.4.0: lists, and every address states its family.
    VersionedList,
    /// 1.0.0 and later: lists.
    List,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: &[Version] = &[
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];
    /// The newest version.
    pub const LATEST: Version = Version::V1_1_0;

    /// Parses a version. As in the reference library, an empty text means 0.1.0.
    pub fn parse(text: &str) -> Option<Version> {
        if text.is_empty() {
            return Some(Version::V0_1_0);
        }
        Version::ALL.iter().copied().find(|version| version.as_str() == text)
    }

    /// Returns the text that configurations use.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// Returns the layout of results in this version.
    pub(crate) fn shape(self) -> Shape {
        match self {
            Version::V0_1_0 | Version::V0_2_0 => Shape::PerFamily,
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => Shape::VersionedList,
            Version::V1_0_0 | Version::V1_1_0 => Shape::List,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Parses any version of one to three numbers, so that versions newer than [`Version::LATEST`] can be compared too. An
/// empty text means 0.1.0.
pub(crate) fn parse_numbers(text: &str) -> Option<[u32; 3]> {
    if text.is_empty() {
        return Some([0, 1, 0]);
    }
    let mut numbers = [0; 3];
    for (at, part) in text.split('.').enumerate() {
        *numbers.get_mut(at)? = part.parse().ok()?;
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_printed_and_parsed_is_unchanged() {
        for version in Version::ALL {
            assert_eq!(Version::parse(version.as_str()), Some(*version));
        }
        assert_eq!(Version::parse(""), Some(Version::V0_1_0));
        assert_eq!(Version::parse("1.1"), None);
        assert_eq!(Version::parse("9.9.9"), None);
    }

    #[test]
    fn unknown_versions_are_compared_by_number() {
        assert!(parse_numbers("1.10.0") > parse_numbers("1.9.3"));
        assert_eq!(parse_numbers("1"), Some([1, 0, 0]));
        assert_eq!(parse_numbers("1.0.0.0"), None);
        assert_eq!(parse_numbers("one"), None);
    }
}
