// SPDX-License-Identifier: Apache-2.0
//! IP addresses of links.

mod wait;

use std::net::IpAddr;

use ::netlink::{Attrs, Message, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, u32_at};
use ipnet::IpNet;

use crate::error::Result;
use crate::netlink_ip::{self, AF_UNSPEC, put_ip};
use crate::request::{Netlink, Request};
use crate::types::{Family, IfIndex};

pub use self::wait::{DadResult, monitor, wait_for_dad};

pub(crate) const RTM_NEWADDR: u16 = 20; // linux/rtnetlink.h
pub(crate) const RTM_DELADDR: u16 = 21; // linux/rtnetlink.h
const RTM_GETADDR: u16 = 22; // linux/rtnetlink.h

const IFA_ADDRESS: u16 = 1; // linux/if_addr.h
const IFA_LOCAL: u16 = 2; // linux/if_addr.h
const IFA_LABEL: u16 = 3; // linux/if_addr.h
const IFA_BROADCAST: u16 = 4; // linux/if_addr.h
const IFA_FLAGS: u16 = 8; // linux/if_addr.h

/// The address is used at once, without duplicate address detection (`linux/if_addr.h`).
pub const IFA_F_NODAD: u32 = 0x02;
/// Duplicate address detection found another owner (`linux/if_addr.h`).
pub(crate) const IFA_F_DADFAILED: u32 = 0x08;
/// Duplicate address detection has not finished (`linux/if_addr.h`).
pub const IFA_F_TENTATIVE: u32 = 0x40;
/// The address does not expire: it comes from neither a router nor a lease (`linux/if_addr.h`).
pub const IFA_F_PERMANENT: u32 = 0x80;
/// The kernel adds no route to the address's network (`linux/if_addr.h`).
pub const IFA_F_NOPREFIXROUTE: u32 = 0x200;

/// Length of `struct ifaddrmsg`.
const HEADER_LEN: usize = 8;

/// An address as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addr {
    /// Link that has the address.
    pub index: IfIndex,
    /// Address with its prefix length; host bits are kept.
    pub prefix: IpNet,
    /// Address of the peer on a point-to-point link.
    pub peer: Option<IpAddr>,
    /// Scope (`RT_SCOPE_*`).
    pub scope: u8,
    /// Flags (`IFA_F_*`).
    pub flags: u32,
    /// Broadcast address (IPv4).
    pub broadcast: Option<IpAddr>,
    /// Label (IPv4), by default the link's name.
    pub label: Option<String>,
}

/// Options of a new address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AddrOptions {
    /// Skip duplicate address detection (IPv6). Correct for addresses that only podwire assigns;
    /// IPv4 has no such detection.
    pub nodad: bool,
    /// Add no route to the address's network.
    pub no_prefix_route: bool,
    /// Scope (`RT_SCOPE_*`); 0 is global.
    pub scope: u8,
}

/// Adds an address; fails if the link already has it.
pub fn add(index: IfIndex, prefix: IpNet, options: AddrOptions) -> Request {
    let message = message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, index, prefix, options);
    Request::new("add address", object(index, prefix), message)
}

/// Adds an address, or changes it if the link already has it.
pub fn replace(index: IfIndex, prefix: IpNet, options: AddrOptions) -> Request {
    let message = message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, index, prefix, options);
    Request::new("replace address", object(index, prefix), message)
}

/// Removes an address.
pub fn remove(index: IfIndex, prefix: IpNet) -> Request {
    let message = message(RTM_DELADDR, 0, index, prefix, AddrOptions::default());
    Request::new("remove address", object(index, prefix), message)
}

/// Lists the addresses of one link, filtered by the kernel, or of all links.
pub fn list(nl: &Netlink, index: Option<IfIndex>) -> Result<Vec<Addr>> {
    let mut message = Message::new(RTM_GETADDR, 0);
    message.header(&header(AF_UNSPEC, 0, 0, index.map_or(0, |index| index.0)));
    match nl.dump("list addresses", &message, parse) {
        // The link of the filter was removed in the meantime.
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        other => other,
    }
}

fn object(index: IfIndex, prefix: IpNet) -> String {
    format!("{prefix} on {index}")
}

fn header(family: u8, prefix_len: u8, scope: u8, index: u32) -> [u8; HEADER_LEN] {
    let [a, b, c, d] = index.to_ne_bytes();
    [family, prefix_len, 0, scope, a, b, c, d]
}

fn message(
    kind: u16,
    nlm_flags: u16,
    index: IfIndex,
    prefix: IpNet,
    options: AddrOptions,
) -> Message {
    let mut message = Message::new(kind, nlm_flags);
    let family = Family::of(prefix.addr()).number();
    message.header(&header(family, prefix.prefix_len(), options.scope, index.0));
    put_ip(&mut message, IFA_LOCAL, prefix.addr());
    put_ip(&mut message, IFA_ADDRESS, prefix.addr());
    if let IpNet::V4(net) = prefix
        && net.prefix_len() < 31
        && kind == RTM_NEWADDR
    {
        put_ip(&mut message, IFA_BROADCAST, net.broadcast().into());
    }
    let nodad = if options.nodad && prefix.addr().is_ipv6() { IFA_F_NODAD } else { 0 };
    let flags = nodad | if options.no_prefix_route { IFA_F_NOPREFIXROUTE } else { 0 };
    if flags != 0 {
        message.u32(IFA_FLAGS, flags);
    }
    message
}

pub(crate) fn parse(payload: &[u8]) -> Option<Addr> {
    let attrs = Attrs::after(payload, HEADER_LEN);
    let ip = |kind| attrs.find_kind(kind).and_then(|attr| netlink_ip::ip(attr.payload));
    let address = ip(IFA_ADDRESS);
    // IPv6 has IFA_LOCAL only on point-to-point links. If both exist, IFA_LOCAL is the link's own
    // address.
    let local = ip(IFA_LOCAL).or(address)?;
    Some(Addr {
        index: IfIndex(u32_at(payload, 4)?),
        prefix: netlink_ip::prefix(local, *payload.get(1)?)?,
        peer: address.filter(|address| *address != local),
        scope: *payload.get(3)?,
        // The header holds only the lowest eight flags.
        flags: attrs
            .find_kind(IFA_FLAGS)
            .and_then(|attr| attr.u32())
            .or_else(|| payload.get(2).copied().map(u32::from))?,
        broadcast: ip(IFA_BROADCAST),
        label: attrs.find_kind(IFA_LABEL).and_then(|attr| attr.str().map(str::to_owned)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(request: &Request, expected: &[u8]) {
        assert_eq!(request.message.to_bytes(), expected);
    }

    #[test]
    fn ipv4_address_has_golden_bytes() {
        // ip address add 10.1.2.3/24 broadcast + dev <index 7>
        check(
            &add(IfIndex(7), "10.1.2.3/24".parse().unwrap(), AddrOptions::default()),
            &[
                48, 0, 0, 0, 20, 0, 0x01, 0x06, 0, 0, 0, 0, 0, 0, 0, 0, //
                2, 24, 0, 0, 7, 0, 0, 0, // ifaddrmsg
                8, 0, 2, 0, 10, 1, 2, 3, // IFA_LOCAL
                8, 0, 1, 0, 10, 1, 2, 3, // IFA_ADDRESS
                8, 0, 4, 0, 10, 1, 2, 255, // IFA_BROADCAST
            ],
        );
        // ip address del 10.1.2.3/31 dev <index 7>
        check(
            &remove(IfIndex(7), "10.1.2.3/31".parse().unwrap()),
            &[
                40, 0, 0, 0, 21, 0, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
                2, 31, 0, 0, 7, 0, 0, 0, //
                8, 0, 2, 0, 10, 1, 2, 3, 8, 0, 1, 0, 10, 1, 2, 3,
            ],
        );
    }

    #[test]
    fn ipv6_address_has_golden_bytes() {
        // ip address add fd00::1/64 dev <index 7> nodad
        let options = AddrOptions { nodad: true, ..AddrOptions::default() };
        let request = add(IfIndex(7), "fd00::1/64".parse().unwrap(), options);
        let bytes = request.message.to_bytes();
        assert_eq!(bytes[16..24], [10, 64, 0, 0, 7, 0, 0, 0]);
        assert_eq!(bytes[64..], [8, 0, 8, 0, 2, 0, 0, 0]); // IFA_FLAGS = IFA_F_NODAD
        assert_eq!(request.object(), "fd00::1/64 on #7");
    }

    proptest! {
        #[test]
        fn parser_never_panics(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
