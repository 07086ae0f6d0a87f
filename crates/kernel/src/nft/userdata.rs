// SPDX-License-Identifier: Apache-2.0
//! User data of an object: a comment that `nft` shows, and bytes of podwire that `nft` ignores. The
//! kernel stores user data without interpreting it.

/// Type of the comment, from libnftnl (`NFTNL_UDATA_*_COMMENT`).
const COMMENT: u8 = 0;
/// Type of the comment of a set (`NFTNL_UDATA_SET_COMMENT`).
pub(super) const SET_COMMENT: u8 = 7;
const SET_KEY_ORDER: u8 = 0; // NFTNL_UDATA_SET_KEYBYTEORDER
const SET_DATA_ORDER: u8 = 1; // NFTNL_UDATA_SET_DATABYTEORDER
/// Host byte order, in the numbers of `nft`.
const HOST_ENDIAN: u32 = 1;
/// Type of podwire's own bytes, far from the numbers that libnftnl assigns.
const OWN_BYTES: u8 = 200;
/// Maximum length of a comment that `nft` reads back from a saved file.
const MAX_COMMENT: usize = 127;
/// Maximum length, two less than `NFT_USERDATA_MAXLEN` (linux/netfilter/nf_tables.h): the kernel
/// stores an element's length plus one in a single byte. It discards 256 bytes, and rejects 255
/// with EINVAL.
const MAX_LEN: usize = 254;

/// A comment and bytes chosen by the caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Userdata {
    /// Text for operators; truncated if it is too long.
    pub comment: String,
    /// Data of the caller, at most 252 bytes. The comment is truncated to make room for it.
    pub bytes: Vec<u8>,
}

impl Userdata {
    pub(super) fn write(&self, comment_kind: u8) -> Vec<u8> {
        let mut written = Vec::new();
        if !self.bytes.is_empty() {
            put(&mut written, OWN_BYTES, &self.bytes);
        }
        let room = MAX_LEN.saturating_sub(written.len() + 3).min(MAX_COMMENT);
        let mut comment = self.comment.as_bytes()[..floor(&self.comment, room)].to_vec();
        if !comment.is_empty() {
            comment.push(0);
            put(&mut written, comment_kind, &comment);
        }
        written
    }

    pub(super) fn parse(mut written: &[u8]) -> Self {
        let mut parsed = Self::default();
        while let [kind, len, rest @ ..] = written {
            let Some((value, rest)) = rest.split_at_checked(usize::from(*len)) else { break };
            match *kind {
                COMMENT => {
                    let text = value.strip_suffix(&[0]).unwrap_or(value);
                    parsed.comment = String::from_utf8_lossy(text).into_owned();
                }
                OWN_BYTES => parsed.bytes = value.to_vec(),
                _ => {}
            }
            written = rest;
        }
        parsed
    }
}

/// Encodes the byte orders of a set's keys and values. Without them `nft` prints interface names as
/// empty, and cannot load a saved file.
pub(super) fn byte_orders(key_is_host_order: bool, data_is_host_order: bool) -> Vec<u8> {
    let mut written = Vec::new();
    for (kind, is_host_order) in
        [(SET_KEY_ORDER, key_is_host_order), (SET_DATA_ORDER, data_is_host_order)]
    {
        if is_host_order {
            put(&mut written, kind, &HOST_ENDIAN.to_ne_bytes());
        }
    }
    written
}

/// Encodes a comment without other data.
pub(super) fn comment(text: &str, kind: u8) -> Vec<u8> {
    Userdata { comment: text.to_owned(), bytes: Vec::new() }.write(kind)
}

fn put(written: &mut Vec<u8>, kind: u8, value: &[u8]) {
    let value = &value[..value.len().min(MAX_LEN - 2)];
    written.extend([kind, u8::try_from(value.len()).unwrap_or(u8::MAX)]);
    written.extend_from_slice(value);
}

/// Returns the last character boundary at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn userdata_round_trips() {
        let data = Userdata { comment: "net c1/eth0".into(), bytes: vec![1, 2, 3] };
        assert_eq!(Userdata::parse(&data.write(COMMENT)), data);
        assert_eq!(data.write(COMMENT)[..5], [OWN_BYTES, 3, 1, 2, 3]);
    }

    proptest! {
        #[test]
        fn userdata_fits_the_kernel_limit(comment: String, bytes in prop::collection::vec(any::<u8>(), 0..253)) {
            let written = Userdata { comment: comment.clone(), bytes: bytes.clone() }.write(COMMENT);
            prop_assert!(written.len() <= MAX_LEN);
            let parsed = Userdata::parse(&written);
            prop_assert_eq!(parsed.bytes, bytes);
            prop_assert!(comment.starts_with(&parsed.comment));
        }

        #[test]
        fn parser_never_panics(bytes: Vec<u8>) {
            let _ = Userdata::parse(&bytes);
        }
    }
}
