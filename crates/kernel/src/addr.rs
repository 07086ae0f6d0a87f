// SPDX-License-Identifier: Apache-2.0
//! IP addresses of links.

mod settle;

use std::net::IpAddr;

use ::netlink::{Attrs, Message, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, u32_at};
use ipnet::IpNet;

use crate::error::Result;
use crate::netlink_ip::{self, AF_UNSPEC, put_ip};
use crate::request::{Netlink, Request};
use crate::types::{Family, IfIndex};

pub use self::settle::{Settled, monitor, wait_until_settled};

pub(crate) const RTM_NEWADDR: u16 = 20; // linux/rtnetlink.h
pub(crate) const RTM_DELADDR: u16 = 21; // linux/rtnetlink.h
const RTM_GETADDR: u16 = 22; // linux/rtnetlink.h

const IFA_ADDRESS: u16 = 1; // linux/if_addr.h
const IFA_LOCAL: u16 = 2; // linux/if_addr.h
const IFA_LABEL: u16 = 3; // linux/if_addr.h
const IFA_BROADCAST: u16 = 4; // linux/if_addr.h
const IFA_FLAGS: u16 = 8; // linux/if_addr.h

/// Used at once, without duplicate address detection (`linux/if_addr.h`).
pub const IFA_F_NODAD: u32 = 0x02;
/// Found to be a duplicate (`linux/if_addr.h`).
pub const IFA_F_DADFAILED: u32 = 0x08;
/// Duplicate address detection is going on (`linux/if_addr.h`).
pub const IFA_F_TENTATIVE: u32 = 0x40;
/// Does not expire: not from a router or a lease (`linux/if_addr.h`).
pub const IFA_F_PERMANENT: u32 = 0x80;
/// Comes without the route to its network (`linux/if_addr.h`).
pub const IFA_F_NOPREFIXROUTE: u32 = 0x200;

/// `struct ifaddrmsg`.
const HEADER_LEN: usize = 8;

/// An address as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addr {
    /// The link it is on.
    pub index: IfIndex,
    /// The address itself, with the length of its network.
    pub prefix: IpNet,
    /// The other end, on a point-to-point link.
    pub peer: Option<IpAddr>,
    /// `RT_SCOPE_*`.
    pub scope: u8,
    /// `IFA_F_*`.
    pub flags: u32,
    /// IPv4: the broadcast address.
    pub broadcast: Option<IpAddr>,
    /// IPv4: its label, by default the link's name.
    pub label: Option<String>,
}

/// What is not the same for every address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AddrOptions {
    /// IPv6: use it at once. Right for addresses only we give out; IPv4 has no such wait.
    pub nodad: bool,
    /// Without the route to its network.
    pub no_prefix_route: bool,
    /// `RT_SCOPE_*`; 0 is global.
    pub scope: u8,
}

/// Adds an address; fails if the link has it.
pub fn add(index: IfIndex, prefix: IpNet, options: AddrOptions) -> Request {
    let message = message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, index, prefix, options);
    Request::new("add address", object(index, prefix), message)
}

/// Adds an address, or changes it if the link has it.
pub fn replace(index: IfIndex, prefix: IpNet, options: AddrOptions) -> Request {
    let message = message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, index, prefix, options);
    Request::new("replace address", object(index, prefix), message)
}

/// Removes an address.
pub fn remove(index: IfIndex, prefix: IpNet) -> Request {
    let message = message(RTM_DELADDR, 0, index, prefix, AddrOptions::default());
    Request::new("remove address", object(index, prefix), message)
}

/// The addresses of one link, chosen by the kernel, or of all.
pub fn list(nl: &Netlink, index: Option<IfIndex>) -> Result<Vec<Addr>> {
    let mut message = Message::new(RTM_GETADDR, 0);
    message.header(&header(AF_UNSPEC, 0, 0, index.map_or(0, |index| index.0)));
    match nl.dump("list addresses", &message, parse) {
        // The link was removed meanwhile: the filter names a link that does not exist.
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
    let ip_of = |kind| attrs.find_kind(kind).and_then(|attr| netlink_ip::ip(attr.payload));
    let address = ip_of(IFA_ADDRESS);
    // IPv6 has IFA_LOCAL only on point-to-point links; where both are, LOCAL is ours.
    let local = ip_of(IFA_LOCAL).or(address)?;
    Some(Addr {
        index: IfIndex(u32_at(payload, 4)?),
        prefix: netlink_ip::prefix(local, *payload.get(1)?)?,
        peer: address.filter(|address| *address != local),
        scope: *payload.get(3)?,
        // The header has room for the lowest eight flags only.
        flags: attrs
            .find_kind(IFA_FLAGS)
            .and_then(|attr| attr.u32())
            .or_else(|| payload.get(2).copied().map(u32::from))?,
        broadcast: ip_of(IFA_BROADCAST),
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
    fn ipv4_bytes() {
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
    fn ipv6_bytes() {
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
        fn any_bytes_are_parsed_without_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
