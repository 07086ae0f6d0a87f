// SPDX-License-Identifier: Apache-2.0
//! Tunnels between nodes: what a VXLAN and an IPIP link are told at birth, and what they say of
//! themselves in the same terms, so that the two can be compared.

use std::net::{IpAddr, Ipv4Addr};

use ::netlink::{Attrs, Message};

use super::{IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, RTM_NEWLINK, Target, message_for};
use crate::netlink_ip::{self, put_ip};
use crate::request::Request;
use crate::types::IfIndex;

const IFLA_VXLAN_ID: u16 = 1; // linux/if_link.h
const IFLA_VXLAN_GROUP: u16 = 2; // linux/if_link.h
const IFLA_VXLAN_LINK: u16 = 3; // linux/if_link.h
const IFLA_VXLAN_LOCAL: u16 = 4; // linux/if_link.h
const IFLA_VXLAN_TTL: u16 = 5; // linux/if_link.h
const IFLA_VXLAN_LEARNING: u16 = 7; // linux/if_link.h
const IFLA_VXLAN_PORT: u16 = 15; // linux/if_link.h
const IFLA_VXLAN_GROUP6: u16 = 16; // linux/if_link.h
const IFLA_VXLAN_LOCAL6: u16 = 17; // linux/if_link.h
const IFLA_VXLAN_UDP_CSUM: u16 = 18; // linux/if_link.h
const IFLA_VXLAN_UDP_ZERO_CSUM6_TX: u16 = 19; // linux/if_link.h
const IFLA_VXLAN_UDP_ZERO_CSUM6_RX: u16 = 20; // linux/if_link.h
const IFLA_VXLAN_GBP: u16 = 23; // linux/if_link.h

const IFLA_IPTUN_LINK: u16 = 1; // linux/if_tunnel.h
const IFLA_IPTUN_LOCAL: u16 = 2; // linux/if_tunnel.h
const IFLA_IPTUN_REMOTE: u16 = 3; // linux/if_tunnel.h
const IFLA_IPTUN_TTL: u16 = 4; // linux/if_tunnel.h
const IFLA_IPTUN_PMTUDISC: u16 = 10; // linux/if_tunnel.h

/// Where the kernel sends, and flannel with it; the assigned port is 4789.
pub const VXLAN_PORT: u16 = 8472;

/// A VXLAN link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vxlan {
    /// The network's number, 24 bits.
    pub id: u32,
    /// The link underneath.
    pub link: Option<IfIndex>,
    /// Our address there; it settles the family.
    pub local: Option<IpAddr>,
    /// Where a frame for an unknown address goes: one peer or a multicast group.
    pub group: Option<IpAddr>,
    /// UDP port, of all peers.
    pub port: u16,
    /// Whether it learns where addresses are from what comes in.
    pub learning: bool,
    /// Whether marks travel with the frames (group based policy).
    pub gbp: bool,
    /// Hops of the outer packet; 0 is the kernel's choice.
    pub ttl: u8,
    /// Whether the outer packet has a checksum; without, those of IPv6 are accepted likewise.
    pub checksum: bool,
}

impl Vxlan {
    /// As flannel makes it: no learning, no group, the kernel's port, checksums.
    pub fn new(id: u32) -> Self {
        Self {
            id,
            link: None,
            local: None,
            group: None,
            port: VXLAN_PORT,
            learning: false,
            gbp: false,
            ttl: 0,
            checksum: true,
        }
    }

    pub(super) fn put(&self, data: &mut Message) {
        self.put_changeable(data);
        data.u8(IFLA_VXLAN_TTL, self.ttl);
        data.be16(IFLA_VXLAN_PORT, self.port);
        if !self.checksum {
            data.u8(IFLA_VXLAN_UDP_CSUM, 0);
            data.u8(IFLA_VXLAN_UDP_ZERO_CSUM6_TX, 1).u8(IFLA_VXLAN_UDP_ZERO_CSUM6_RX, 1);
        }
        if self.gbp {
            data.flag(IFLA_VXLAN_GBP);
        }
    }

    fn put_changeable(&self, data: &mut Message) {
        data.u32(IFLA_VXLAN_ID, self.id);
        if let Some(link) = self.link {
            data.u32(IFLA_VXLAN_LINK, link.0);
        }
        for (four, six, ip) in [
            (IFLA_VXLAN_LOCAL, IFLA_VXLAN_LOCAL6, self.local),
            (IFLA_VXLAN_GROUP, IFLA_VXLAN_GROUP6, self.group),
        ] {
            if let Some(ip) = ip {
                put_ip(data, if ip.is_ipv4() { four } else { six }, ip);
            }
        }
        // The kernel learns unless told not to.
        data.u8(IFLA_VXLAN_LEARNING, u8::from(self.learning));
    }

    pub(super) fn read(data: &Attrs<'_>) -> Option<Self> {
        let ip = |kind| data.find_kind(kind).and_then(|attr| net::ip(attr.payload));
        let byte = |kind| data.find_kind(kind).and_then(|attr| attr.u8());
        let link = data.find_kind(IFLA_VXLAN_LINK).and_then(|attr| attr.u32());
        let is_given = |ip: &IpAddr| !ip.is_unspecified();
        let local = ip(IFLA_VXLAN_LOCAL).or_else(|| ip(IFLA_VXLAN_LOCAL6)).filter(is_given);
        let no_checksum = match local {
            Some(IpAddr::V6(_)) => byte(IFLA_VXLAN_UDP_ZERO_CSUM6_TX).is_some_and(|on| on != 0),
            _ => byte(IFLA_VXLAN_UDP_CSUM) == Some(0),
        };
        Some(Self {
            id: data.find_kind(IFLA_VXLAN_ID)?.u32()?,
            link: link.filter(|index| *index != 0).map(IfIndex),
            local,
            group: ip(IFLA_VXLAN_GROUP).or_else(|| ip(IFLA_VXLAN_GROUP6)).filter(is_given),
            port: data.find_kind(IFLA_VXLAN_PORT)?.be16()?,
            learning: byte(IFLA_VXLAN_LEARNING).is_some_and(|on| on != 0),
            gbp: data.find_kind(IFLA_VXLAN_GBP).is_some(),
            ttl: byte(IFLA_VXLAN_TTL).unwrap_or(0),
            checksum: !no_checksum,
        })
    }
}

/// Changes a VXLAN's link underneath, local address, group and learning: the kernel changes nothing
/// else, and refuses to be told its port again.
pub fn set_vxlan(link: impl Into<Target>, vxlan: &Vxlan) -> Request {
    change(link.into(), "vxlan", |data| vxlan.put_changeable(data))
}

/// Changes an IPIP link. Whether it has a remote end cannot be changed.
pub fn set_ipip(link: impl Into<Target>, ipip: &Ipip) -> Request {
    change(link.into(), "ipip", |data| ipip.put(data))
}

fn change(link: Target, kind: &str, put: impl FnOnce(&mut Message)) -> Request {
    // RTM_SETLINK does not look into IFLA_LINKINFO.
    let mut message = message_for(RTM_NEWLINK, link, 0, 0);
    message.nest(IFLA_LINKINFO, |info| {
        info.str(IFLA_INFO_KIND, kind).nest(IFLA_INFO_DATA, put);
    });
    Request::new("change tunnel", link.to_string(), message)
}

/// An IPIP link: IPv4 in IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipip {
    /// The link underneath; where the route to the peer leads if none.
    pub link: Option<IfIndex>,
    /// Our address there.
    pub local: Option<Ipv4Addr>,
    /// The other end; if none, the gateway of each route through this link.
    pub remote: Option<Ipv4Addr>,
    /// Hops of the outer packet; 0 takes over those of the inner one.
    pub ttl: u8,
    /// Whether the outer packet must not be cut into pieces.
    pub pmtudisc: bool,
}

impl Ipip {
    /// From here to whom a route says, all else the kernel's choice.
    pub fn new(local: Ipv4Addr) -> Self {
        Self { link: None, local: Some(local), remote: None, ttl: 0, pmtudisc: true }
    }

    pub(super) fn put(&self, data: &mut Message) {
        if let Some(link) = self.link {
            data.u32(IFLA_IPTUN_LINK, link.0);
        }
        for (kind, ip) in [(IFLA_IPTUN_LOCAL, self.local), (IFLA_IPTUN_REMOTE, self.remote)] {
            if let Some(ip) = ip {
                put_ip(data, kind, ip.into());
            }
        }
        data.u8(IFLA_IPTUN_TTL, self.ttl).u8(IFLA_IPTUN_PMTUDISC, u8::from(self.pmtudisc));
    }

    pub(super) fn read(data: &Attrs<'_>) -> Self {
        let ip = |kind| {
            let octets: [u8; 4] = data.find_kind(kind)?.fixed()?;
            Some(Ipv4Addr::from(octets)).filter(|ip| !ip.is_unspecified())
        };
        let byte = |kind| data.find_kind(kind).and_then(|attr| attr.u8());
        let link = data.find_kind(IFLA_IPTUN_LINK).and_then(|attr| attr.u32());
        Self {
            link: link.filter(|index| *index != 0).map(IfIndex),
            local: ip(IFLA_IPTUN_LOCAL),
            remote: ip(IFLA_IPTUN_REMOTE),
            ttl: byte(IFLA_IPTUN_TTL).unwrap_or(0),
            pmtudisc: byte(IFLA_IPTUN_PMTUDISC).is_some_and(|on| on != 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::link::{Kind, NewLink, create};

    fn check(kind: Kind<'_>, data: &[u8]) {
        let bytes = create(&NewLink::new("x".parse().unwrap(), kind)).message.to_bytes();
        assert!(bytes.ends_with(data), "{kind:?}: {bytes:?}");
    }

    #[test]
    fn bytes_of_vxlan() {
        // ip link add x type vxlan id 1 dev <index 2> local 192.0.2.1 dstport 8472 nolearning
        let plain = Vxlan {
            link: Some(IfIndex(2)),
            local: Some("192.0.2.1".parse().unwrap()),
            ..Vxlan::new(1)
        };
        check(
            Kind::Vxlan(plain),
            &[
                10, 0, 1, 0, b'v', b'x', b'l', b'a', b'n', 0, 0, 0, // IFLA_INFO_KIND
                52, 0, 2, 0x80, 8, 0, 1, 0, 1, 0, 0, 0, // IFLA_VXLAN_ID
                8, 0, 3, 0, 2, 0, 0, 0, // IFLA_VXLAN_LINK
                8, 0, 4, 0, 192, 0, 2, 1, // IFLA_VXLAN_LOCAL
                5, 0, 7, 0, 0, 0, 0, 0, // IFLA_VXLAN_LEARNING
                5, 0, 5, 0, 0, 0, 0, 0, // IFLA_VXLAN_TTL
                6, 0, 15, 0, 0x21, 0x18, 0, 0, // IFLA_VXLAN_PORT, big endian
            ],
        );
        // ip link add x type vxlan id 1 local fd00::1 dstport 4789 ttl 9 learning noudpcsum gbp
        //   udp6zerocsumtx udp6zerocsumrx
        let local = "fd00::1".parse().unwrap();
        let other = Vxlan {
            local: Some(local),
            port: 4789,
            learning: true,
            gbp: true,
            ttl: 9,
            checksum: false,
            ..Vxlan::new(1)
        };
        check(
            Kind::Vxlan(other),
            &[
                20, 0, 17, 0, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, // LOCAL6
                5, 0, 7, 0, 1, 0, 0, 0, 5, 0, 5, 0, 9, 0, 0, 0, // LEARNING, TTL
                6, 0, 15, 0, 0x12, 0xb5, 0, 0, // PORT
                5, 0, 18, 0, 0, 0, 0, 0, 5, 0, 19, 0, 1, 0, 0, 0, 5, 0, 20, 0, 1, 0, 0, 0, //
                4, 0, 23, 0, // IFLA_VXLAN_GBP
            ],
        );
    }

    #[test]
    fn bytes_of_ipip() {
        // ip link add x type ipip local 192.0.2.1
        check(
            Kind::Ipip(Ipip::new(Ipv4Addr::new(192, 0, 2, 1))),
            &[
                9, 0, 1, 0, b'i', b'p', b'i', b'p', 0, 0, 0, 0, // IFLA_INFO_KIND
                28, 0, 2, 0x80, 8, 0, 2, 0, 192, 0, 2, 1, // IFLA_IPTUN_LOCAL
                5, 0, 4, 0, 0, 0, 0, 0, 5, 0, 10, 0, 1, 0, 0, 0, // TTL, PMTUDISC
            ],
        );
        check(Kind::Wireguard, b"wireguard\0\0\0");
    }

    #[test]
    fn bytes_of_a_change() {
        // ip link set <index 7> type vxlan id 1 dev <index 2> local 192.0.2.1 nolearning
        let vxlan = Vxlan {
            link: Some(IfIndex(2)),
            local: Some("192.0.2.1".parse().unwrap()),
            ..Vxlan::new(1)
        };
        assert_eq!(
            set_vxlan(IfIndex(7), &vxlan).message.to_bytes()[4..],
            [
                16, 0, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, // RTM_NEWLINK
                0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // ifinfomsg
                52, 0, 18, 0x80, 10, 0, 1, 0, b'v', b'x', b'l', b'a', b'n', 0, 0, 0, //
                36, 0, 2, 0x80, 8, 0, 1, 0, 1, 0, 0, 0, // IFLA_VXLAN_ID
                8, 0, 3, 0, 2, 0, 0, 0, // IFLA_VXLAN_LINK
                8, 0, 4, 0, 192, 0, 2, 1, // IFLA_VXLAN_LOCAL
                5, 0, 7, 0, 0, 0, 0, 0, // IFLA_VXLAN_LEARNING
            ]
        );
    }

    fn read_back(put: impl FnOnce(&mut Message)) -> Vec<u8> {
        let mut message = Message::new(0, 0);
        put(&mut message);
        message.to_bytes()
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            id in 0_u32..1 << 24, port: u16, ttl: u8, learning: bool, gbp: bool, checksum: bool,
            link in proptest::option::of(1_u32..), local in proptest::option::of(1_u32..),
            six in proptest::option::of(1_u128..),
        ) {
            let four = local.map(Ipv4Addr::from_bits);
            let six = six.map(|bits| IpAddr::V6(std::net::Ipv6Addr::from_bits(bits)));
            let local = four.map(IpAddr::V4).or(six);
            let link = link.map(IfIndex);
            let vxlan = Vxlan { id, link, local, group: local, port, learning, gbp, ttl, checksum };
            let bytes = read_back(|message| vxlan.put(message));
            prop_assert_eq!(Vxlan::read(&Attrs::after(&bytes, 16)), Some(vxlan));
            let ipip = Ipip { link, local: four, remote: None, ttl, pmtudisc: checksum };
            let bytes = read_back(|message| ipip.put(message));
            prop_assert_eq!(Ipip::read(&Attrs::after(&bytes, 16)), ipip);
        }
    }
}
