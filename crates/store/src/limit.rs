// SPDX-License-Identifier: Apache-2.0
//! Limits on the size of entries and lists.
//!
//! Without them, anyone who can write to a store could make every node hold any amount of memory. A lease has 200 to
//! 400 bytes, so the limits leave room for 65,536 nodes.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{Entry, Error, Result};

/// Maximum length of a key in bytes. A longer key is shortened in answers.
pub const MAX_KEY: usize = 1024;

/// Maximum length of a value in bytes, except below [`CALICO`]. A longer value is left out of answers, see
/// [`Entry::oversized`].
pub const MAX_VALUE: usize = 16 << 10;

/// Prefix of Calico's objects. A block has up to 4096 addresses, each with 200 to 400 bytes.
pub const CALICO: &str = "/calico/";

/// Maximum length of the value of an object of Calico in bytes. etcd itself allows 1.5 MiB.
pub const MAX_CALICO_VALUE: usize = 2 << 20;

/// Maximum number of entries in a list.
pub const MAX_ENTRIES: usize = 65_536;

/// Maximum size of all keys and values in a list, in bytes.
pub const MAX_TOTAL: usize = 32 << 20;

/// The same for a list of Calico's objects: room for half a million addresses.
pub const MAX_CALICO_TOTAL: usize = 256 << 20;

/// Length of the readable part of a shortened key.
const READABLE: usize = 200;

/// Returns the maximum length of the value of a key.
pub fn max_value(key: &str) -> usize {
    if key.starts_with(CALICO) { MAX_CALICO_VALUE } else { MAX_VALUE }
}

/// Counts the entries of one list against [`MAX_ENTRIES`] and [`MAX_TOTAL`] or [`MAX_CALICO_TOTAL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    entries: usize,
    bytes: usize,
    is_calico: bool,
}

impl Budget {
    pub fn add(&mut self, entry: &Entry) {
        self.entries += 1;
        self.bytes += entry.key.len() + entry.value.len();
        self.is_calico = entry.key.starts_with(CALICO);
    }

    pub fn remove(&mut self, entry: &Entry) {
        self.entries -= 1;
        self.bytes -= entry.key.len() + entry.value.len();
    }

    /// Returns which limit is exceeded, if one is.
    pub fn exceeded(&self) -> Option<String> {
        let hint = "remove keys that are not leases";
        if self.entries > MAX_ENTRIES {
            return Some(format!("the store has more than {MAX_ENTRIES} entries: {hint}"));
        }
        let limit = if self.is_calico { MAX_CALICO_TOTAL } else { MAX_TOTAL };
        let megabytes = limit >> 20;
        (self.bytes > limit)
            .then(|| format!("the entries have more than {megabytes} MiB in all: {hint}"))
    }
}

/// Collects the entries of a list until it exceeds a limit.
#[derive(Debug, Default)]
pub(crate) struct BoundedList {
    pub entries: Vec<Entry>,
    budget: Budget,
}

impl BoundedList {
    pub(crate) fn push(&mut self, entry: Entry) -> std::result::Result<(), String> {
        self.budget.add(&entry);
        self.entries.push(entry);
        self.budget.exceeded().map_or(Ok(()), Err)
    }
}

/// Shortens a key that exceeds [`MAX_KEY`]. Different keys stay different because of a digest, and the beginning stays,
/// so that prefixes still match.
pub(crate) fn shorten_key(key: String) -> String {
    if key.len() <= MAX_KEY {
        return key;
    }
    let mut digest = DefaultHasher::new();
    key.hash(&mut digest);
    let end = (0..=READABLE).rfind(|at| key.is_char_boundary(*at)).unwrap_or_default();
    let start = &key[..end];
    format!("{start}… ({} bytes, digest {:016x})", key.len(), digest.finish())
}

/// Rejects a value that every reader would drop because of its size.
pub(crate) fn check_value(key: &str, value: &[u8]) -> Result<()> {
    let (length, limit) = (value.len(), max_value(key));
    if length <= limit {
        return Ok(());
    }
    let problem = format!("the value for the key {key} has {length} bytes; the limit is {limit}");
    Err(Error::Invalid(problem))
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
    fn shortened_keys_stay_different() {
        let short = "k".repeat(MAX_KEY);
        assert_eq!(shorten_key(short.clone()), short);
        let long = |last: &str| shorten_key(format!("/n/{}{last}", "é".repeat(MAX_KEY)));
        assert!(long("a").len() < 300 && long("a").starts_with("/n/éé"), "{}", long("a"));
        assert_ne!(long("a"), long("b"));
        assert_eq!(long("a"), long("a"));
    }

    #[test]
    fn lists_are_limited_in_count_and_size() {
        let fill = |count: usize, size: usize| {
            let mut listed = BoundedList::default();
            (0..count).try_for_each(|at| listed.push(entry(format!("{at:08}"), vec![0; size])))
        };
        assert_eq!(fill(MAX_ENTRIES, 0), Ok(()));
        let limit = fill(MAX_ENTRIES + 1, 0).unwrap_err();
        assert!(limit.contains("more than 65536 entries"), "{limit}");
        let count = MAX_TOTAL / (MAX_VALUE + 8);
        assert_eq!(fill(count, MAX_VALUE), Ok(()));
        let limit = fill(count + 1, MAX_VALUE).unwrap_err();
        assert!(limit.contains("more than 32 MiB"), "{limit}");
    }

    #[test]
    fn budget_subtracts_removed_entries() {
        let mut budget = Budget::default();
        let large = entry("k".to_owned(), vec![0; MAX_VALUE]);
        for _ in 0..5000 {
            budget.add(&large);
            budget.remove(&large);
        }
        assert_eq!(budget, Budget::default());
    }

    #[test]
    fn oversized_values_are_not_written() {
        assert!(check_value("k", &vec![0; MAX_VALUE]).is_ok());
        let error = check_value("k", &vec![0; MAX_VALUE + 1]).unwrap_err().to_string();
        assert!(error.contains("the key k has 16385 bytes"), "{error}");
    }
}
