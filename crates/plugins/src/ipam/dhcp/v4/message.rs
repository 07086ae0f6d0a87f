// SPDX-License-Identifier: Apache-2.0
//! Encoding of DHCPv4 messages and options (RFC 2131, 2132, 3396).

use std::net::Ipv4Addr;

use kernel::MacAddr;

/// Option codes (RFC 2132 and later).
pub(crate) mod code {
    pub(crate) const PAD: u8 = 0;
    pub(crate) const SUBNET_MASK: u8 = 1;
    pub(crate) const ROUTER: u8 = 3;
    pub(crate) const DNS: u8 = 6;
    pub(crate) const HOST_NAME: u8 = 12;
    pub(crate) const DOMAIN: u8 = 15;
    pub(crate) const STATIC_ROUTE: u8 = 33;
    pub(crate) const REQUESTED_ADDRESS: u8 = 50;
    pub(crate) const LEASE_TIME: u8 = 51;
    pub(crate) const OVERLOAD: u8 = 52;
    pub(crate) const MESSAGE_TYPE: u8 = 53;
    pub(crate) const SERVER_ID: u8 = 54;
    pub(crate) const PARAMETERS: u8 = 55;
    pub(crate) const MAX_SIZE: u8 = 57;
    pub(crate) const RENEWAL_TIME: u8 = 58;
    pub(crate) const REBINDING_TIME: u8 = 59;
    pub(crate) const VENDOR_CLASS: u8 = 60;
    pub(crate) const CLIENT_ID: u8 = 61;
    pub(crate) const USER_CLASS: u8 = 77;
    pub(crate) const DOMAIN_SEARCH: u8 = 119;
    pub(crate) const CLASSLESS_ROUTE: u8 = 121;
    pub(crate) const END: u8 = 255;
}

/// Values of [`code::MESSAGE_TYPE`].
pub(crate) mod kind {
    pub(crate) const DISCOVER: u8 = 1;
    pub(crate) const OFFER: u8 = 2;
    pub(crate) const REQUEST: u8 = 3;
    pub(crate) const ACK: u8 = 5;
    pub(crate) const NAK: u8 = 6;
    pub(crate) const RELEASE: u8 = 7;
}

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const ETHERNET: u8 = 1;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const BROADCAST_FLAG: u16 = 0x8000;

/// Offsets of client MAC address, server name, boot file, cookie and options.
const CHADDR: usize = 28;
const SNAME: usize = 44;
const FILE: usize = 108;
const MAGIC: usize = 236;
const OPTIONS: usize = 240;

/// Minimum length of a message that old relays accept (RFC 1542).
const MIN_LEN: usize = 300;

/// A DHCPv4 message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    /// Sent by a server.
    pub is_reply: bool,
    /// Transaction ID, which replies repeat.
    pub xid: u32,
    /// Seconds since the client's first message.
    pub secs: u16,
    /// Ask the server to broadcast its reply.
    pub broadcast: bool,
    /// Address at which the client is reachable (ciaddr).
    pub client: Ipv4Addr,
    /// Address assigned to the client (yiaddr).
    pub yours: Ipv4Addr,
    /// MAC address of the client.
    pub mac: MacAddr,
    /// Options in their order, each code once.
    pub options: Vec<(u8, Vec<u8>)>,
}

impl Message {
    /// Creates a client's message without options.
    pub(crate) fn from_client(xid: u32, mac: MacAddr) -> Message {
        let unset = Ipv4Addr::UNSPECIFIED;
        let (client, yours, options) = (unset, unset, Vec::new());
        Message { is_reply: false, xid, secs: 0, broadcast: false, client, yours, mac, options }
    }

    /// Sets or replaces an option.
    pub(crate) fn set(&mut self, code: u8, value: &[u8]) {
        match self.options.iter_mut().find(|(other, _)| *other == code) {
            Some((_, old)) => *old = value.to_vec(),
            None => self.options.push((code, value.to_vec())),
        }
    }

    /// Returns the value of an option.
    pub(crate) fn option(&self, code: u8) -> Option<&[u8]> {
        self.options.iter().find(|(other, _)| *other == code).map(|(_, value)| value.as_slice())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; OPTIONS];
        bytes[0] = if self.is_reply { REPLY } else { REQUEST };
        bytes[1] = ETHERNET;
        bytes[2] = 6;
        bytes[4..8].copy_from_slice(&self.xid.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.secs.to_be_bytes());
        let flags = if self.broadcast { BROADCAST_FLAG } else { 0 };
        bytes[10..12].copy_from_slice(&flags.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.client.octets());
        bytes[16..20].copy_from_slice(&self.yours.octets());
        bytes[CHADDR..CHADDR + 6].copy_from_slice(&self.mac.0);
        bytes[MAGIC..OPTIONS].copy_from_slice(&COOKIE);
        for (code, value) in &self.options {
            put(&mut bytes, *code, value);
        }
        bytes.push(code::END);
        bytes.resize(bytes.len().max(MIN_LEN), code::PAD);
        bytes
    }

    /// Decodes a message. Returns `None` if it is invalid or not for Ethernet.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Message> {
        if bytes.get(MAGIC..OPTIONS)? != COOKIE || bytes[1] != ETHERNET || bytes[2] != 6 {
            return None;
        }
        let is_reply = match bytes[0] {
            REPLY => true,
            REQUEST => false,
            _ => return None,
        };
        let address = |at: usize| Some(Ipv4Addr::from(chunk::<4>(bytes, at)?));
        let flags = u16::from_be_bytes(chunk(bytes, 10)?);
        let mut message = Message {
            is_reply,
            xid: u32::from_be_bytes(chunk(bytes, 4)?),
            secs: u16::from_be_bytes(chunk(bytes, 8)?),
            broadcast: flags & BROADCAST_FLAG != 0,
            client: address(12)?,
            yours: address(16)?,
            mac: MacAddr(chunk(bytes, CHADDR)?),
            options: Vec::new(),
        };
        take(&mut message.options, &bytes[OPTIONS..]);
        let overload = message.option(code::OVERLOAD).and_then(|value| value.first().copied());
        let overload = overload.unwrap_or(0);
        if overload & 1 != 0 {
            take(&mut message.options, &bytes[FILE..MAGIC]);
        }
        if overload & 2 != 0 {
            take(&mut message.options, &bytes[SNAME..FILE]);
        }
        Some(message)
    }
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Encodes an option. A long value is split into several options (RFC 3396).
fn put(bytes: &mut Vec<u8>, code: u8, value: &[u8]) {
    let parts = value.chunks(usize::from(u8::MAX));
    let parts: Vec<&[u8]> = if value.is_empty() { vec![&[]] } else { parts.collect() };
    for part in parts {
        bytes.extend([code, part.len() as u8]);
        bytes.extend(part);
    }
}

/// Decodes options. Parts of one option are joined, even if other options are between them.
fn take(options: &mut Vec<(u8, Vec<u8>)>, mut bytes: &[u8]) {
    loop {
        bytes = match bytes {
            [] | [code::END, ..] => return,
            [code::PAD, rest @ ..] => rest,
            [code, length, rest @ ..] => {
                let Some((value, rest)) = rest.split_at_checked(usize::from(*length)) else {
                    return;
                };
                match options.iter_mut().find(|(other, _)| other == code) {
                    Some((_, joined)) => joined.extend(value),
                    None => options.push((*code, value.to_vec())),
                }
                rest
            }
            [_] => return,
        }
    }
}

/// Decodes option values that are more than bytes. Invalid parts are ignored: a lease with an invalid route is still a
/// lease.
pub(crate) mod options {
    use std::net::{IpAddr, Ipv4Addr};

    use ipnet::Ipv4Net;

    use crate::ipam::dhcp::lease::LeaseRoute;

    /// Decodes a number of four bytes.
    pub(crate) fn number(value: &[u8]) -> Option<u32> {
        value.try_into().ok().map(u32::from_be_bytes)
    }

    /// Decodes a list of addresses.
    pub(crate) fn addresses(value: &[u8]) -> Vec<Ipv4Addr> {
        let (chunks, _) = value.as_chunks::<4>();
        chunks.iter().map(|octets| Ipv4Addr::from(*octets)).collect()
    }

    /// Converts a subnet mask to a prefix length. Returns `None` if ones follow zeros.
    pub(crate) fn prefix_len(mask: &[u8]) -> Option<u8> {
        let mask = number(mask)?;
        (mask.leading_ones() + mask.trailing_zeros() == 32 || mask == 0)
            .then(|| mask.leading_ones() as u8)
    }

    /// Returns the prefix length of a classful network.
    pub(crate) fn classful(address: Ipv4Addr) -> u8 {
        match address.octets()[0] {
            0..=127 => 8,
            128..=191 => 16,
            _ => 24,
        }
    }

    /// Decodes pairs of network and router. The class determines the prefix length (RFC 2132).
    pub(crate) fn static_routes(value: &[u8]) -> Vec<LeaseRoute> {
        let pairs = addresses(value);
        let (pairs, _) = pairs.as_chunks::<2>();
        pairs.iter().filter_map(|[dst, router]| via(*dst, classful(*dst), *router)).collect()
    }

    /// Decodes entries of prefix length, significant bytes of the network, and router (RFC 3442).
    pub(crate) fn classless_routes(mut value: &[u8]) -> Vec<LeaseRoute> {
        let mut routes = Vec::new();
        while let Some((length, rest)) = value.split_first() {
            let used = usize::from(length.div_ceil(8));
            let Some((network, rest)) = rest.split_at_checked(used) else { break };
            let Some((router, rest)) = rest.split_first_chunk::<4>() else { break };
            let mut octets = [0; 4];
            let Some(to) = octets.get_mut(..used) else { break };
            to.copy_from_slice(network);
            routes.extend(via(octets.into(), *length, (*router).into()));
            value = rest;
        }
        routes
    }

    fn via(dst: Ipv4Addr, length: u8, router: Ipv4Addr) -> Option<LeaseRoute> {
        let dst = Ipv4Net::new(dst, length).ok()?.trunc();
        Some(LeaseRoute { dst: dst.into(), gateway: IpAddr::V4(router) })
    }

    /// Decodes a text. Servers may append zero bytes.
    pub(crate) fn text(value: &[u8]) -> String {
        String::from_utf8_lossy(value).trim_end_matches('\0').trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::options::*;
    use crate::ipam::dhcp::lease::LeaseRoute;

    fn texts(routes: &[LeaseRoute]) -> Vec<String> {
        routes.iter().map(|via| format!("{} via {}", via.dst, via.gateway)).collect()
    }

    #[test]
    fn classless_and_static_routes_are_decoded() {
        let classless = [
            &[0, 10, 0, 0, 1][..],
            &[8, 10, 10, 0, 0, 2],
            &[25, 192, 168, 1, 128, 0, 0, 0, 0],
            &[33, 1, 2, 3, 4, 5, 1, 1, 1, 1],
        ];
        assert_eq!(
            texts(&classless_routes(&classless.concat())),
            ["0.0.0.0/0 via 10.0.0.1", "10.0.0.0/8 via 10.0.0.2", "192.168.1.128/25 via 0.0.0.0"]
        );
        let classful = [172, 16, 0, 0, 10, 0, 0, 1, 192, 0, 2, 0, 10, 0, 0, 2, 9];
        assert_eq!(
            texts(&static_routes(&classful)),
            ["172.16.0.0/16 via 10.0.0.1", "192.0.2.0/24 via 10.0.0.2"]
        );
    }

    #[test]
    fn invalid_masks_are_rejected() {
        assert_eq!(prefix_len(&[255, 255, 255, 0]), Some(24));
        assert_eq!(prefix_len(&[255, 255, 255, 255]), Some(32));
        assert_eq!(prefix_len(&[0, 0, 0, 0]), Some(0));
        assert_eq!(prefix_len(&[255, 0, 255, 0]), None);
        assert_eq!(prefix_len(&[255]), None);
    }

    proptest! {
        #[test]
        fn decoding_options_never_panics(value: Vec<u8>) {
            let _ = (classless_routes(&value), static_routes(&value));
            let _ = (text(&value), prefix_len(&value), number(&value));
        }
    }
}
