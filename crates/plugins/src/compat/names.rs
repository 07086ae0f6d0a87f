// SPDX-License-Identifier: Apache-2.0
//! Names that the Go plugins derive from an attachment.

use sha2::{Digest, Sha512};

/// Returns `prefix` and the start of the hexadecimal SHA-512 of the words, `len` characters in
/// total.
pub(crate) fn hashed(prefix: &str, words: &[&str], len: usize) -> String {
    let hash = words.iter().fold(Sha512::new(), |hash, word| hash.chain_update(word));
    let digits = hash.finalize().into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let digits = digits.filter_map(|digit| char::from_digit(digit.into(), 16));
    prefix.chars().chain(digits).take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From `printf netcid | sha512sum`.
    #[test]
    fn hashed_matches_the_go_plugins() {
        assert_eq!(hashed("CNI-", &["net", "cid"], 28), "CNI-f74d2f3ccf98e525d41d0c61");
        assert_eq!(hashed("bwp", &["net", "cid"], 15).len(), 15);
    }
}
