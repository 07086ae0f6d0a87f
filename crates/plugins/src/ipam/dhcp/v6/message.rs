// SPDX-License-Identifier: Apache-2.0
//! A DHCPv6 message and its bytes (RFC 8415).

use std::net::Ipv6Addr;

/// Numbers of options.
pub mod code {
    pub const CLIENT_ID: u16 = 1;
    pub const SERVER_ID: u16 = 2;
    pub const IA_NA: u16 = 3;
    pub const IA_ADDRESS: u16 = 5;
    pub const REQUESTED: u16 = 6;
    pub const ELAPSED_TIME: u16 = 8;
    pub const STATUS: u16 = 13;
    pub const DNS: u16 = 23;
    pub const DOMAIN_SEARCH: u16 = 24;
}

/// Kinds of messages.
pub mod kind {
    pub const SOLICIT: u8 = 1;
    pub const ADVERTISE: u8 = 2;
    pub const REQUEST: u8 = 3;
    pub const CONFIRM: u8 = 4;
    pub const RENEW: u8 = 5;
    pub const REBIND: u8 = 6;
    pub const REPLY: u8 = 7;
    pub const RELEASE: u8 = 8;
}

/// The status that means success; also where none is told.
pub const SUCCESS: u16 = 0;

/// Transaction numbers have 24 bits.
pub const XID_MASK: u32 = 0xff_ffff;

/// A list of options, each as its number and bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options(pub Vec<(u16, Vec<u8>)>);

impl Options {
    /// Adds an option.
    pub fn push(&mut self, code: u16, value: Vec<u8>) {
        self.0.push((code, value));
    }

    /// The first option with this number.
    pub fn get(&self, code: u16) -> Option<&[u8]> {
        self.all(code).next()
    }

    /// All options with this number.
    pub fn all(&self, code: u16) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(move |(other, _)| *other == code).map(|(_, value)| value.as_slice())
    }

    /// The status that is told in them.
    pub fn status(&self) -> u16 {
        let value = self.get(code::STATUS).and_then(|value| value.first_chunk().copied());
        value.map_or(SUCCESS, u16::from_be_bytes)
    }

    /// The bytes. A value that is too long for its length is left out.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (code, value) in &self.0 {
            let Ok(length) = u16::try_from(value.len()) else { continue };
            bytes.extend(code.to_be_bytes());
            bytes.extend(length.to_be_bytes());
            bytes.extend(value);
        }
        bytes
    }

    /// Reads options, up to the first that does not fit.
    pub fn decode(mut bytes: &[u8]) -> Options {
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
pub struct Message {
    /// What it is.
    pub kind: u8,
    /// Tells the answers to this question from others.
    pub xid: u32,
    /// The rest.
    pub options: Options,
}

impl Message {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = ((self.xid & XID_MASK) | u32::from(self.kind) << 24).to_be_bytes().to_vec();
        bytes.extend(self.options.encode());
        bytes
    }

    /// Reads a message; `None` where it is too short for one.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        let xid = u32::from_be_bytes(*head) & XID_MASK;
        Some(Message { kind: head[0], xid, options: Options::decode(rest) })
    }
}

/// The identity association: the addresses of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Association {
    /// Which interface.
    pub id: u32,
    /// T1, or 0.
    pub renew: u32,
    /// T2, or 0.
    pub rebind: u32,
    /// Addresses and a status.
    pub options: Options,
}

impl Association {
    /// The value of the option.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [self.id, self.renew, self.rebind] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(self.options.encode());
        bytes
    }

    /// Reads the value of the option.
    pub fn decode(bytes: &[u8]) -> Option<Association> {
        let ([id, renew, rebind], rest) = numbers(bytes)?;
        Some(Association { id, renew, rebind, options: Options::decode(rest) })
    }
}

/// An address with its lifetimes in seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub address: Ipv6Addr,
    /// How long it is to be used for new connections.
    pub preferred: u32,
    /// How long it may be used at all.
    pub valid: u32,
    /// A status.
    pub options: Options,
}

impl Address {
    /// The value of the option.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.address.octets().to_vec();
        bytes.extend(self.preferred.to_be_bytes());
        bytes.extend(self.valid.to_be_bytes());
        bytes.extend(self.options.encode());
        bytes
    }

    /// Reads the value of the option.
    pub fn decode(bytes: &[u8]) -> Option<Address> {
        let (octets, rest) = bytes.split_first_chunk::<16>()?;
        let ([preferred, valid], rest) = numbers(rest)?;
        let address = Ipv6Addr::from(*octets);
        Some(Address { address, preferred, valid, options: Options::decode(rest) })
    }
}

fn numbers<const N: usize>(mut bytes: &[u8]) -> Option<([u32; N], &[u8])> {
    let mut found = [0; N];
    for number in &mut found {
        let (octets, rest) = bytes.split_first_chunk::<4>()?;
        *number = u32::from_be_bytes(*octets);
        bytes = rest;
    }
    Some((found, bytes))
}
