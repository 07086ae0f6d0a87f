// SPDX-License-Identifier: Apache-2.0
//! Limits on the size of entries and lists.
//!
//! Anybody who can write to a store could otherwise make every node hold any amount of memory. A lease
//! has 200 to 400 bytes, a Kubernetes node some 600, so the limits leave room for 65 536 nodes.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{Entry, Error, Result};

/// Longest key in bytes. A longer one is shortened in the answer.
pub const MAX_KEY: usize = 1024;

/// Longest value in bytes. A longer one is left out of the answer, see [`Entry::oversized`].
pub const MAX_VALUE: usize = 16 << 10;

/// Most entries in one list.
pub const MAX_ENTRIES: usize = 65_536;

/// Most bytes of keys and values in one list.
pub const MAX_TOTAL: usize = 32 << 20;

/// How much of a key that is too long stays readable.
const SHORTENED: usize = 200;

/// Counts entries against [`MAX_ENTRIES`] and [`MAX_TOTAL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    entries: usize,
    bytes: usize,
}

impl Budget {
    pub fn add(&mut self, entry: &Entry) {
        self.entries += 1;
        self.bytes += entry.key.len() + entry.value.len();
    }

    pub fn remove(&mut self, entry: &Entry) {
        self.entries -= 1;
        self.bytes -= entry.key.len() + entry.value.len();
    }

    /// Explains which limit is exceeded, if one is.
    pub fn exceeded(&self) -> Option<String> {
        let advice = "remove the keys that are no leases";
        if self.entries > MAX_ENTRIES {
            return Some(format!("it has more than {MAX_ENTRIES} entries: {advice}"));
        }
        let megabytes = MAX_TOTAL >> 20;
        (self.bytes > MAX_TOTAL)
            .then(|| format!("its entries have more than {megabytes} MiB in all: {advice}"))
    }
}

/// Collects the entries of a list until it exceeds a limit.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub entries: Vec<Entry>,
    budget: Budget,
}

impl Listed {
    pub fn push(&mut self, entry: Entry) -> std::result::Result<(), String> {
        self.budget.add(&entry);
        self.entries.push(entry);
        self.budget.exceeded().map_or(Ok(()), Err)
    }
}

/// Returns the key, shortened if it is too long. Different keys stay different, and the first characters,
/// by which a prefix selects keys, stay the same.
pub(crate) fn key(key: String) -> String {
    if key.len() <= MAX_KEY {
        return key;
    }
    let mut digest = DefaultHasher::new();
    key.hash(&mut digest);
    let end = (0..=SHORTENED).rfind(|at| key.is_char_boundary(*at)).unwrap_or_default();
    let start = &key[..end];
    format!("{start}… ({} bytes, digest {:016x})", key.len(), digest.finish())
}

/// Refuses to write a value that no node would read.
pub(crate) fn check_value(key: &str, value: &[u8]) -> Result<()> {
    match value.len() {
        0..=MAX_VALUE => Ok(()),
        length => Err(Error::Invalid(format!(
            "the value for the key {key} has {length} bytes; the limit is {MAX_VALUE}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Revision;

    fn entry(key: String, value: Vec<u8>) -> Entry {
        let (revision, created) = (Revision(1), Revision(1));
        Entry { key, value, revision, created, expires: true, oversized: None }
    }

    #[test]
    fn long_keys_are_shortened_and_stay_different() {
        let short = "k".repeat(MAX_KEY);
        assert_eq!(key(short.clone()), short);
        let long = |last: &str| key(format!("/n/{}{last}", "é".repeat(MAX_KEY)));
        assert!(long("a").len() < 300 && long("a").starts_with("/n/éé"), "{}", long("a"));
        assert_ne!(long("a"), long("b"));
        assert_eq!(long("a"), long("a"));
    }

    #[test]
    fn lists_are_bounded_in_number_and_size() {
        let fill = |count: usize, size: usize| {
            let mut listed = Listed::default();
            (0..count).try_for_each(|at| listed.push(entry(format!("{at:08}"), vec![0; size])))
        };
        assert_eq!(fill(MAX_ENTRIES, 0), Ok(()));
        let why = fill(MAX_ENTRIES + 1, 0).unwrap_err();
        assert!(why.contains("more than 65536 entries"), "{why}");
        let count = MAX_TOTAL / (MAX_VALUE + 8);
        assert_eq!(fill(count, MAX_VALUE), Ok(()));
        let why = fill(count + 1, MAX_VALUE).unwrap_err();
        assert!(why.contains("more than 32 MiB"), "{why}");
    }

    #[test]
    fn budget_forgets_what_is_removed() {
        let mut budget = Budget::default();
        let large = entry("k".to_owned(), vec![0; MAX_VALUE]);
        for _ in 0..5000 {
            budget.add(&large);
            budget.remove(&large);
        }
        assert_eq!(budget, Budget::default());
    }

    #[test]
    fn values_that_nobody_would_read_are_not_written() {
        assert!(check_value("k", &vec![0; MAX_VALUE]).is_ok());
        let why = check_value("k", &vec![0; MAX_VALUE + 1]).unwrap_err().to_string();
        assert!(why.contains("the key k has 16385 bytes"), "{why}");
    }
}
