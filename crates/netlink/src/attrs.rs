// SPDX-License-Identifier: Apache-2.0
//! Parser of netlink attributes. It never panics: malformed bytes end the iteration, and a payload
//! of the wrong size is `None`.

const NLA_TYPE_MASK: u16 = 0x3fff; // linux/netlink.h, without NLA_F_NESTED, NLA_F_NET_BYTEORDER
const NLA_HEADER_LEN: usize = 4;

/// A netlink attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr<'a> {
    /// Type without flag bits.
    pub kind: u16,
    /// Payload without padding.
    pub payload: &'a [u8],
}

impl<'a> Attr<'a> {
    /// Returns an 8-bit value.
    pub fn u8(&self) -> Option<u8> {
        self.payload.first().copied()
    }

    /// Returns a 16-bit value in host byte order.
    pub fn u16(&self) -> Option<u16> {
        self.fixed().map(u16::from_ne_bytes)
    }

    /// Returns a 32-bit value in host byte order.
    pub fn u32(&self) -> Option<u32> {
        self.fixed().map(u32::from_ne_bytes)
    }

    /// Returns a signed 32-bit value in host byte order.
    pub fn i32(&self) -> Option<i32> {
        self.fixed().map(i32::from_ne_bytes)
    }

    /// Returns a 64-bit value in host byte order.
    pub fn u64(&self) -> Option<u64> {
        self.fixed().map(u64::from_ne_bytes)
    }

    /// Returns a 16-bit value in network byte order.
    pub fn be16(&self) -> Option<u16> {
        self.fixed().map(u16::from_be_bytes)
    }

    /// Returns a 32-bit value in network byte order.
    pub fn be32(&self) -> Option<u32> {
        self.fixed().map(u32::from_be_bytes)
    }

    /// Returns a 64-bit value in network byte order.
    pub fn be64(&self) -> Option<u64> {
        self.fixed().map(u64::from_be_bytes)
    }

    /// Returns the text up to the first NUL, if it is UTF-8.
    pub fn str(&self) -> Option<&'a str> {
        std::str::from_utf8(self.text()).ok()
    }

    /// Returns the bytes up to the first NUL.
    pub fn text(&self) -> &'a [u8] {
        self.payload.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// Returns the nested attributes.
    pub fn nested(&self) -> Attrs<'a> {
        Attrs::new(self.payload)
    }

    /// Returns the payload if it has exactly `N` bytes.
    pub fn fixed<const N: usize>(&self) -> Option<[u8; N]> {
        self.payload.try_into().ok()
    }
}

/// Iterator over attributes.
#[derive(Debug, Clone)]
pub struct Attrs<'a> {
    rest: &'a [u8],
}

impl<'a> Attrs<'a> {
    /// Parses the attributes in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Parses the attributes after a fixed header of `header_len` bytes; empty if the header is
    /// truncated.
    pub fn after(payload: &'a [u8], header_len: usize) -> Self {
        Self::new(payload.get(header_len.next_multiple_of(4)..).unwrap_or_default())
    }

    /// Returns the first attribute of this type, without consuming the iterator.
    pub fn find_kind(&self, kind: u16) -> Option<Attr<'a>> {
        self.clone().find(|attr| attr.kind == kind)
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = Attr<'a>;

    fn next(&mut self) -> Option<Attr<'a>> {
        let len = usize::from(u16_at(self.rest, 0)?);
        let kind = u16_at(self.rest, 2)? & NLA_TYPE_MASK;
        let Some(payload) = self.rest.get(NLA_HEADER_LEN..len) else {
            self.rest = &[];
            return None;
        };
        self.rest = self.rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Attr { kind, payload })
    }
}

/// Returns the 16-bit field at `offset` of a fixed header, in host byte order.
pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    let field = bytes.get(offset..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*field))
}

/// Returns the 32-bit field at `offset` of a fixed header, in host byte order.
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let field = bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*field))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Message, Replies};

    #[test]
    fn written_attributes_are_parsed() {
        let mut message = Message::new(1, 0);
        message.u8(1, 7).u16(2, 8).u32(3, 9).i32(4, -1).u64(5, 10).be16(6, 11).be32(7, 12);
        message.str(8, "eth0").nest(9, |m| {
            m.u32(1, 13);
        });
        let bytes = message.to_bytes();
        let attrs = Attrs::after(&bytes, 16);
        let attr = |kind| attrs.find_kind(kind).unwrap();
        assert_eq!(attr(1).u8(), Some(7));
        assert_eq!(attr(2).u16(), Some(8));
        assert_eq!(attr(3).u32(), Some(9));
        assert_eq!(attr(4).i32(), Some(-1));
        assert_eq!(attr(5).u64(), Some(10));
        assert_eq!(attr(6).be16(), Some(11));
        assert_eq!(attr(7).be32(), Some(12));
        assert_eq!(attr(8).str(), Some("eth0"));
        assert_eq!(attr(9).nested().find_kind(1).unwrap().u32(), Some(13));
        assert_eq!(attr(1).u32(), None);
        assert_eq!(attrs.count(), 9);
    }

    #[test]
    fn invalid_length_ends_the_iteration() {
        assert_eq!(Attrs::new(&[0, 0, 1, 0, 8, 0, 2, 0, 1, 2, 3, 4]).count(), 0);
        assert_eq!(Attrs::new(&[9, 0, 1, 0, 1, 2, 3, 4]).count(), 0);
        assert_eq!(Attrs::new(&[5, 0, 1, 0, 1]).count(), 1);
    }

    fn walk(attrs: Attrs<'_>, depth: usize) {
        for attr in attrs {
            let _ = (attr.u8(), attr.u16(), attr.u32(), attr.i32(), attr.u64(), attr.str());
            let _ = (attr.be16(), attr.be32(), attr.be64(), attr.fixed::<6>());
            if depth < 8 {
                walk(attr.nested(), depth + 1);
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>, header in 0_usize..64) {
            walk(Attrs::new(&bytes), 0);
            walk(Attrs::after(&bytes, header), 0);
            for reply in Replies::new(&bytes) {
                let _ = reply.outcome();
                walk(Attrs::new(reply.payload), 0);
            }
        }

        #[test]
        fn arbitrary_lengths_cause_no_panic(lengths in prop::collection::vec(0_u16..40, 0..20)) {
            let bytes: Vec<u8> = lengths.iter().flat_map(|len| len.to_ne_bytes()).collect();
            walk(Attrs::new(&bytes), 0);
            for reply in Replies::new(&bytes) {
                let _ = reply.outcome();
            }
        }
    }
}
