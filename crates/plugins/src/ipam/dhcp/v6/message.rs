// SPDX-License-Identifier: Apache-2.0
//! Encoding of DHCPv6 messages and options (RFC 8415).

use std::net::Ipv6Addr;

/// Option codes.
pub(crate) mod code {
    pub(crate) const CLIENT_ID: u16 = 1;
    pub(crate) const SERVER_ID: u16 = 2;
    pub(crate) const IA_NA: u16 = 3;
    pub(crate) const IA_ADDRESS: u16 = 5;
    pub(crate) const REQUESTED: u16 = 6;
    pub(crate) const ELAPSED_TIME: u16 = 8;
    pub(crate) const STATUS: u16 = 13;
    pub(crate) const DNS: u16 = 23;
    pub(crate) const DOMAIN_SEARCH: u16 = 24;
}

/// Message types.
pub(crate) mod kind {
    pub(crate) const SOLICIT: u8 = 1;
    pub(crate) const ADVERTISE: u8 = 2;
    pub(crate) const REQUEST: u8 = 3;
    pub(crate) const CONFIRM: u8 = 4;
    pub(crate) const RENEW: u8 = 5;
    pub(crate) const REBIND: u8 = 6;
    pub(crate) const REPLY: u8 = 7;
    pub(crate) const RELEASE: u8 = 8;
}

/// Status code of success. A missing status means success too.
pub(crate) const SUCCESS: u16 = 0;

/// Transaction IDs have 24 bits.
pub(crate) const XID_MASK: u32 = 0xff_ffff;

/// A list of options, each with its code and bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Options(pub Vec<(u16, Vec<u8>)>);

impl Options {
    pub(crate) fn push(&mut self, code: u16, value: Vec<u8>) {
        self.0.push((code, value));
    }

    /// Returns the first option with this code.
    pub(crate) fn get(&self, code: u16) -> Option<&[u8]> {
        self.all(code).next()
    }

    /// Returns all options with this code.
    pub(crate) fn all(&self, code: u16) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(move |(other, _)| *other == code).map(|(_, value)| value.as_slice())
    }

    /// Returns the status code.
    pub(crate) fn status(&self) -> u16 {
        let value = self.get(code::STATUS).and_then(|value| value.first_chunk().copied());
        value.map_or(SUCCESS, u16::from_be_bytes)
    }

    /// Encodes the options. Values over 65,535 bytes are left out.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (code, value) in &self.0 {
            let Ok(length) = u16::try_from(value.len()) else { continue };
            bytes.extend(code.to_be_bytes());
            bytes.extend(length.to_be_bytes());
            bytes.extend(value);
        }
        bytes
    }

    /// Decodes options up to the first one that is cut off.
    pub(crate) fn decode(mut bytes: &[u8]) -> Options {
        let mut options = Options::default();
        while let Some(([a, b, c, d], rest)) = bytes.split_first_chunk() {
            let length = usize::from(u16::from_be_bytes([*c, *d]));
            let Some((value, rest)) = rest.split_at_checked(length) else { break };
            options.push(u16::from_be_bytes([*a, *b]), value.to_vec());
            bytes = rest;
        }
        options
    }
}

/// A message between client and server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    /// Message type, see [`kind`].
    pub kind: u8,
    /// Transaction ID, which replies repeat.
    pub xid: u32,
    pub options: Options,
}

impl Message {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = ((self.xid & XID_MASK) | u32::from(self.kind) << 24).to_be_bytes().to_vec();
        bytes.extend(self.options.encode());
        bytes
    }

    /// Decodes a message. Returns `None` if it is too short.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Message> {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        let xid = u32::from_be_bytes(*head) & XID_MASK;
        Some(Message { kind: head[0], xid, options: Options::decode(rest) })
    }
}

/// An identity association: the addresses of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Association {
    /// Number of the association.
    pub id: u32,
    /// T1, or 0 if not set.
    pub renew: u32,
    /// T2, or 0 if not set.
    pub rebind: u32,
    /// Addresses and an optional status.
    pub options: Options,
}

impl Association {
    /// Encodes the option value.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [self.id, self.renew, self.rebind] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(self.options.encode());
        bytes
    }

    /// Decodes the option value.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Association> {
        let ([id, renew, rebind], rest) = numbers(bytes)?;
        Some(Association { id, renew, rebind, options: Options::decode(rest) })
    }
}

/// An address with its lifetimes in seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub address: Ipv6Addr,
    /// Time during which new connections use the address.
    pub preferred: u32,
    /// Time during which the address may be used.
    pub valid: u32,
    /// An optional status.
    pub options: Options,
}

impl Address {
    /// Encodes the option value.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.address.octets().to_vec();
        bytes.extend(self.preferred.to_be_bytes());
        bytes.extend(self.valid.to_be_bytes());
        bytes.extend(self.options.encode());
        bytes
    }

    /// Decodes the option value.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Address> {
        let (octets, rest) = bytes.split_first_chunk::<16>()?;
        let ([preferred, valid], rest) = numbers(rest)?;
        let address = Ipv6Addr::from(*octets);
        Some(Address { address, preferred, valid, options: Options::decode(rest) })
    }
}

fn numbers<const N: usize>(mut bytes: &[u8]) -> Option<([u32; N], &[u8])> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        let (octets, rest) = bytes.split_first_chunk::<4>()?;
        *number = u32::from_be_bytes(*octets);
        bytes = rest;
    }
    Some((numbers, bytes))
}
