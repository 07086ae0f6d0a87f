// SPDX-License-Identifier: Apache-2.0
//! Keys and the ranges of keys that prefixes select. Keys are ordered by their bytes, which for UTF-8 is the order of
//! their characters.

use crate::limit::MAX_KEY;
use crate::{Error, Result};

/// Returns the smallest key after all keys with this prefix. `None` means that the range has no end.
pub(crate) fn end_of(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        if let Some(next) = successor(last) {
            end.push(next);
            return Some(end);
        }
    }
    None
}

fn successor(c: char) -> Option<char> {
    match c {
        // Surrogates between these two are not characters.
        '\u{d7ff}' => Some('\u{e000}'),
        _ => char::from_u32(u32::from(c) + 1),
    }
}

/// Rejects keys that not every store accepts.
pub(crate) fn check(key: &str) -> Result<()> {
    if key.is_empty() {
        return Err(Error::Invalid("a key must not be empty".to_owned()));
    }
    if key.len() > MAX_KEY {
        let length = key.len();
        return Err(Error::Invalid(format!("a key has {length} bytes; the limit is {MAX_KEY}")));
    }
    if key.contains('\0') {
        return Err(Error::Invalid(format!("the key {key:?} contains a zero byte")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn range_end_follows_the_last_key() {
        fn check(prefix: &str, expected: Option<&str>) {
            assert_eq!(end_of(prefix).as_deref(), expected, "{prefix:?}");
        }
        check("/coreos.com/network/subnets/", Some("/coreos.com/network/subnets0"));
        check("a", Some("b"));
        check("", None);
        check("a\u{10ffff}", Some("b"));
        check("\u{10ffff}\u{10ffff}", None);
        check("\u{d7ff}", Some("\u{e000}"));
        check("a\u{7f}", Some("a\u{80}"));
    }

    #[test]
    fn invalid_keys_are_rejected() {
        assert!(check("a/b").is_ok());
        assert!(matches!(check(""), Err(Error::Invalid(_))));
        assert!(matches!(check("a\0b"), Err(Error::Invalid(_))));
    }

    proptest! {
        #[test]
        fn range_contains_exactly_the_prefix(prefix in "\\PC{0,4}", key in "\\PC{0,6}", tail in "\\PC{0,3}") {
            let in_range = |key: &str| {
                key >= prefix.as_str() && end_of(&prefix).is_none_or(|end| key < end.as_str())
            };
            prop_assert_eq!(in_range(&key), key.starts_with(&prefix));
            let with_prefix = format!("{prefix}{tail}");
            prop_assert!(in_range(&with_prefix));
        }
    }
}
