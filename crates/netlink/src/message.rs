// SPDX-License-Identifier: Apache-2.0
//! Builder of a netlink message: netlink header, fixed header of the family, attributes. The socket
//! fills in the length, the sequence number and the acknowledgement flag when it sends the message.

/// Length of `struct nlmsghdr`.
pub(crate) const HEADER_LEN: usize = 16;

pub(crate) const NLM_F_REQUEST: u16 = 0x01; // linux/netlink.h
pub(crate) const NLM_F_ACK: u16 = 0x04; // linux/netlink.h

/// Dumps all objects (`linux/netlink.h`).
pub(crate) const NLM_F_DUMP: u16 = 0x300;
/// Replaces an existing object (`linux/netlink.h`).
pub const NLM_F_REPLACE: u16 = 0x100;
/// Fails if the object exists (`linux/netlink.h`).
pub const NLM_F_EXCL: u16 = 0x200;
/// Creates the object if it does not exist (`linux/netlink.h`).
pub const NLM_F_CREATE: u16 = 0x400;
/// Adds the object to the end of the list (`linux/netlink.h`).
pub const NLM_F_APPEND: u16 = 0x800;

const NLA_F_NESTED: u16 = 1 << 15; // linux/netlink.h
const NLA_HEADER_LEN: usize = 4;

/// A netlink message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    bytes: Vec<u8>,
    /// An attribute exceeds its 16-bit length field; the socket does not send such a message.
    oversized: bool,
}

impl Message {
    /// Creates a message without payload. `NLM_F_REQUEST` is always added to `flags`.
    pub fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&[0; HEADER_LEN]);
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        Self { bytes, oversized: false }
    }

    /// Appends a fixed header; some nested attributes, such as `VETH_INFO_PEER`, have one too.
    pub fn header(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self.pad();
        self
    }

    /// Appends an attribute with this payload.
    pub fn bytes(&mut self, kind: u16, payload: &[u8]) -> &mut Self {
        let start = self.open(kind);
        self.bytes.extend_from_slice(payload);
        self.close(start);
        self
    }

    /// Appends an attribute without payload; its presence is its meaning.
    pub fn flag(&mut self, kind: u16) -> &mut Self {
        self.bytes(kind, &[])
    }

    /// Appends an 8-bit attribute.
    pub fn u8(&mut self, kind: u16, value: u8) -> &mut Self {
        self.bytes(kind, &[value])
    }

    /// Appends a 16-bit attribute in host byte order.
    pub fn u16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Appends a 32-bit attribute in host byte order.
    pub fn u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Appends a signed 32-bit attribute in host byte order.
    pub fn i32(&mut self, kind: u16, value: i32) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Appends a 64-bit attribute in host byte order.
    pub fn u64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Appends a 16-bit attribute in network byte order.
    pub fn be16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Appends a 32-bit attribute in network byte order.
    pub fn be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Appends a 64-bit attribute in network byte order.
    pub fn be64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Appends a text attribute, terminated by NUL.
    pub fn str(&mut self, kind: u16, value: &str) -> &mut Self {
        let start = self.open(kind);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.close(start);
        self
    }

    /// Appends an attribute that contains attributes, with the flag `NLA_F_NESTED`.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.open(kind | NLA_F_NESTED);
        fill(self);
        self.close(start);
        self
    }

    /// Returns the encoded message with sequence number 0, for tests and logs.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes.len());
        self.encode(&mut out, 0, 0);
        out
    }

    /// Returns everything after the netlink header: the family's fixed header and the attributes.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[HEADER_LEN..]
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_oversized(&self) -> bool {
        self.oversized
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>, seq: u32, flags: u16) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let header = &mut out[start..];
        let flags = flags | u16::from_ne_bytes([header[6], header[7]]);
        // A message of 4 GiB could not be sent anyway: the socket's buffer is far smaller.
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        header[0..4].copy_from_slice(&len.to_ne_bytes());
        header[6..8].copy_from_slice(&flags.to_ne_bytes());
        header[8..12].copy_from_slice(&seq.to_ne_bytes());
    }

    fn open(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    fn close(&mut self, start: usize) {
        let len = self.bytes.len() - start;
        debug_assert!(len >= NLA_HEADER_LEN);
        match u16::try_from(len) {
            Ok(len) => self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes()),
            Err(_) => self.oversized = true,
        }
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_golden_bytes() {
        let mut message = Message::new(16, NLM_F_CREATE);
        message.header(&[1, 2, 3, 4]).u8(1, 7).nest(18, |m| {
            m.str(1, "veth").flag(2);
        });
        message.be16(3, 0x0102);
        let expected: &[u8] = &[
            52, 0, 0, 0, 16, 0, 0x01, 0x04, 0, 0, 0, 0, 0, 0, 0, 0, // nlmsghdr
            1, 2, 3, 4, // fixed header
            5, 0, 1, 0, 7, 0, 0, 0, // u8, padded
            20, 0, 18, 0x80, 9, 0, 1, 0, b'v', b'e', b't', b'h', 0, 0, 0, 0, 4, 0, 2, 0, 6, 0, 3,
            0, 1, 2, 0, 0, // big endian, padded
        ];
        let mut expected = expected.to_vec();
        expected[0] = u8::try_from(expected.len()).unwrap();
        assert_eq!(message.to_bytes(), expected);
    }

    #[test]
    fn attribute_of_64_kib_is_oversized() {
        let mut message = Message::new(16, 0);
        assert!(!message.bytes(1, &[0; 65_531]).is_oversized());
        assert!(message.bytes(1, &[0; 65_532]).is_oversized());
    }
}
