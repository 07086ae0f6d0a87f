// SPDX-License-Identifier: Apache-2.0
//! What may be attached to objects: a comment that `nft` shows, and bytes of our own that it passes
//! over. The kernel keeps both and looks at neither.

/// The comment of `nft`; its numbers are libnftnl's (`NFTNL_UDATA_*_COMMENT`).
const COMMENT: u8 = 0;
/// Sets number their comment differently.
pub(super) const SET_COMMENT: u8 = 7;
/// `NFTNL_UDATA_SET_KEYBYTEORDER`, `NFTNL_UDATA_SET_DATABYTEORDER` and `nft`'s number for the host's order.
const SET_KEY_ORDER: u8 = 0;
const SET_DATA_ORDER: u8 = 1;
const HOST_ENDIAN: u32 = 1;
/// Bytes of ours; far from the numbers that libnftnl gives out.
const OURS: u8 = 200;
/// The longest comment that `nft` reads back from a saved file.
const MAX_COMMENT: usize = 127;
/// Two less than `NFT_USERDATA_MAXLEN` (linux/netfilter/nf_tables.h): the kernel counts an element's bytes,
/// and one more, in a single byte. Of 256 it keeps none, and 255 are EINVAL.
const MAX_LEN: usize = 254;

/// A comment and bytes of the caller's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Userdata {
    /// For people; cut off where it is too long.
    pub comment: String,
    /// For the caller, at most 252 bytes; the comment gives way to it.
    pub bytes: Vec<u8>,
}

impl Userdata {
    pub(super) fn write(&self, comment_kind: u8) -> Vec<u8> {
        let mut written = Vec::new();
        if !self.bytes.is_empty() {
            put(&mut written, OURS, &self.bytes);
        }
        let room = MAX_LEN.saturating_sub(written.len() + 3).min(MAX_COMMENT);
        let mut comment = self.comment.as_bytes()[..floor(&self.comment, room)].to_vec();
        if !comment.is_empty() {
            comment.push(0);
            put(&mut written, comment_kind, &comment);
        }
        written
    }

    pub(super) fn read(mut written: &[u8]) -> Self {
        let mut found = Self::default();
        while let [kind, len, rest @ ..] = written {
            let Some((value, rest)) = rest.split_at_checked(usize::from(*len)) else { break };
            match *kind {
                COMMENT => {
                    let text = value.strip_suffix(&[0]).unwrap_or(value);
                    found.comment = String::from_utf8_lossy(text).into_owned();
                }
                OURS => found.bytes = value.to_vec(),
                _ => {}
            }
            written = rest;
        }
        found
    }
}

/// What `nft` asks of a set, where keys or values are in the host's byte order: without it names of
/// interfaces are printed as nothing, and a saved file cannot be loaded.
pub(super) fn of_set(key_is_of_host: bool, data_is_of_host: bool) -> Vec<u8> {
    let mut written = Vec::new();
    for (kind, is_of_host) in [(SET_KEY_ORDER, key_is_of_host), (SET_DATA_ORDER, data_is_of_host)] {
        if is_of_host {
            put(&mut written, kind, &HOST_ENDIAN.to_ne_bytes());
        }
    }
    written
}

/// A comment alone, as the bytes of most objects.
pub(super) fn comment(text: &str, kind: u8) -> Vec<u8> {
    Userdata { comment: text.to_owned(), bytes: Vec::new() }.write(kind)
}

fn put(written: &mut Vec<u8>, kind: u8, value: &[u8]) {
    let value = &value[..value.len().min(MAX_LEN - 2)];
    written.extend([kind, u8::try_from(value.len()).unwrap_or(u8::MAX)]);
    written.extend_from_slice(value);
}

/// The last place at or before `at` where the text may be cut.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let data = Userdata { comment: "net c1/eth0".into(), bytes: vec![1, 2, 3] };
        assert_eq!(Userdata::read(&data.write(COMMENT)), data);
        assert_eq!(data.write(COMMENT)[..5], [OURS, 3, 1, 2, 3]);
    }

    proptest! {
        #[test]
        fn it_never_outgrows_the_kernel(comment: String, bytes in prop::collection::vec(any::<u8>(), 0..253)) {
            let written = Userdata { comment: comment.clone(), bytes: bytes.clone() }.write(COMMENT);
            prop_assert!(written.len() <= MAX_LEN);
            let read = Userdata::read(&written);
            prop_assert_eq!(read.bytes, bytes);
            prop_assert!(comment.starts_with(&read.comment));
        }

        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            let _ = Userdata::read(&bytes);
        }
    }
}
