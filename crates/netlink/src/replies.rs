// SPDX-License-Identifier: Apache-2.0
//! Splits a received datagram into messages and parses errors with their explanation.

use rustix::io::Errno;

use crate::attrs::{Attrs, u16_at, u32_at};
use crate::error::Error;
use crate::message::HEADER_LEN;

pub(crate) const NLMSG_ERROR: u16 = 2; // linux/netlink.h
pub(crate) const NLMSG_DONE: u16 = 3; // linux/netlink.h
pub(crate) const NLM_F_DUMP_INTR: u16 = 0x10; // linux/netlink.h
const NLM_F_CAPPED: u16 = 0x100; // linux/netlink.h
const NLM_F_ACK_TLVS: u16 = 0x200; // linux/netlink.h
const NLMSGERR_ATTR_MSG: u16 = 1; // linux/netlink.h

/// One received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// `nlmsg_seq`; 0 for an event.
    pub seq: u32,
    /// Everything after the header.
    pub payload: &'a [u8],
}

impl Reply<'_> {
    /// Returns the result in an `NLMSG_ERROR` or `NLMSG_DONE`; an acknowledgement is `Ok`.
    pub fn outcome(&self) -> Result<(), Error> {
        // Old kernels send NLMSG_DONE without an error number.
        let code = u32_at(self.payload, 0).unwrap_or(0).cast_signed();
        if code >= 0 {
            return Ok(());
        }
        Err(Error { errno: errno(code.wrapping_neg()), ext: self.ext_text() })
    }

    fn ext_text(&self) -> Option<String> {
        if self.flags & NLM_F_ACK_TLVS == 0 {
            return None;
        }
        let attrs_at = match self.kind {
            NLMSG_DONE => 4,
            _ if self.flags & NLM_F_CAPPED != 0 => 4 + HEADER_LEN,
            // Without NETLINK_CAP_ACK the whole request precedes the attributes.
            _ => usize::try_from(u32_at(self.payload, 4)?).ok()?.checked_add(4)?,
        };
        let attrs = Attrs::new(self.payload.get(attrs_at..)?);
        let text = attrs.find_kind(NLMSGERR_ATTR_MSG)?;
        Some(String::from_utf8_lossy(text.text()).into_owned())
    }
}

/// Converts an error number. The kernel's numbers end at 4095 (`MAX_ERRNO`), and rustix panics on
/// others.
fn errno(number: i32) -> Errno {
    match number {
        1..=4095 => Errno::from_raw_os_error(number),
        _ => Errno::IO,
    }
}

/// Iterator over the messages of one datagram. Malformed bytes end the iteration.
#[derive(Debug, Clone)]
pub struct Replies<'a> {
    rest: &'a [u8],
}

impl<'a> Replies<'a> {
    /// Parses the messages in `datagram`.
    pub fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }
}

impl<'a> Iterator for Replies<'a> {
    type Item = Reply<'a>;

    fn next(&mut self) -> Option<Reply<'a>> {
        let len = usize::try_from(u32_at(self.rest, 0)?).ok()?;
        let header = self.rest.get(..HEADER_LEN)?;
        let payload = self.rest.get(HEADER_LEN..len)?;
        let next = len.checked_next_multiple_of(4)?;
        self.rest = self.rest.get(next..).unwrap_or_default();
        Some(Reply {
            kind: u16_at(header, 4)?,
            flags: u16_at(header, 6)?,
            seq: u32_at(header, 8)?,
            payload,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_has_number_and_explanation() {
        // Reply to `ip link add type bridge name lo` with NETLINK_CAP_ACK.
        let mut bytes = vec![0; 36];
        bytes[4] = 2;
        bytes[6..8].copy_from_slice(&(NLM_F_CAPPED | NLM_F_ACK_TLVS).to_ne_bytes());
        bytes[8] = 9;
        bytes[16..20].copy_from_slice(&(-17_i32).to_ne_bytes());
        bytes.extend_from_slice(&[8, 0, 1, 0, b'w', b'h', b'y', 0]);
        bytes[0] = u8::try_from(bytes.len()).unwrap();
        let reply = Replies::new(&bytes).next().unwrap();
        assert_eq!(reply.seq, 9);
        assert_eq!(reply.outcome(), Err(Error::explained(Errno::EXIST, "why")));
    }

    #[test]
    fn error_number_out_of_range_is_eio() {
        for number in [i32::MIN, -4096, -100_000] {
            let payload = number.to_ne_bytes();
            let reply = Reply { kind: NLMSG_ERROR, flags: 0, seq: 1, payload: &payload };
            assert_eq!(reply.outcome(), Err(Errno::IO.into()), "{number}");
        }
    }
}
