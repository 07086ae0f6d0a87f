// SPDX-License-Identifier: Apache-2.0
//! Kinds of links: their attributes as values, written when a link is created and parsed when it is
//! read, so that the two can be compared.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;

use ::netlink::{Attrs, Message};

use super::create::put_common;
use super::{Detail, IFLA_BR_VLAN_FILTERING, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, ifinfo};
use crate::netlink_ip::{self, put_ip};
use crate::types::{IfIndex, IfName, MacAddr};

const VETH_INFO_PEER: u16 = 1; // linux/veth.h
const IFLA_MACVLAN_MODE: u16 = 1; // linux/if_link.h
const IFLA_MACVLAN_BC_QUEUE_LEN: u16 = 7; // linux/if_link.h
const IFLA_IPVLAN_MODE: u16 = 1; // linux/if_link.h
const IFLA_VLAN_ID: u16 = 1; // linux/if_link.h
const IFLA_VRF_TABLE: u16 = 1; // linux/if_link.h

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

/// Kind of a new link.
#[derive(Debug, Clone, Copy)]
pub enum Kind<'a> {
    /// A veth pair; the value describes the other end.
    Veth(Peer<'a>),
    /// A bridge.
    Bridge {
        /// VLAN filtering; `None` leaves the choice to the kernel.
        vlan_filtering: Option<bool>,
    },
    /// A device that drops everything sent to it.
    Dummy,
    /// An intermediate functional block, for shaping incoming traffic.
    Ifb,
    /// A macvlan on `parent`.
    Macvlan {
        /// Reachability of other macvlans of the same parent.
        mode: MacvlanMode,
        /// Length of the queue of broadcast frames; `None` leaves the choice to the kernel.
        bc_queue_len: Option<u32>,
    },
    /// An ipvlan on `parent`.
    Ipvlan(IpvlanMode),
    /// An 802.1Q VLAN on `parent`.
    Vlan(u16),
    /// A VRF with this routing table.
    Vrf(u32),
    /// A VXLAN.
    Vxlan(Vxlan),
    /// An IPIP tunnel.
    Ipip(Ipip),
    /// A WireGuard tunnel; [`crate::wireguard`] sets its keys and peers.
    Wireguard,
}

/// The other end of a veth pair. The kernel cannot create it up: `veth_open` fails with `ENOTCONN`
/// if its peer is not registered yet.
#[derive(Debug, Clone, Copy)]
pub struct Peer<'a> {
    /// Final name.
    pub name: IfName,
    /// MAC address; `None` leaves the choice to the kernel.
    pub mac: Option<MacAddr>,
    /// MTU; `None` leaves the choice to the kernel.
    pub mtu: Option<u32>,
    /// Namespace; `None` for that of the socket.
    pub netns: Option<BorrowedFd<'a>>,
}

/// Reachability between macvlans of one parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MacvlanMode {
    /// They cannot reach each other.
    Private,
    /// They reach each other through the external switch.
    Vepa,
    /// They reach each other directly.
    Bridge,
    /// The parent has a single macvlan.
    Passthru,
}

impl MacvlanMode {
    pub(super) fn from_number(number: u32) -> Option<Self> {
        let all = [Self::Private, Self::Vepa, Self::Bridge, Self::Passthru];
        all.into_iter().find(|mode| mode.number() == number)
    }

    fn number(self) -> u32 {
        // MACVLAN_MODE_* of linux/if_link.h
        match self {
            Self::Private => 1,
            Self::Vepa => 2,
            Self::Bridge => 4,
            Self::Passthru => 8,
        }
    }
}

/// Layer on which an ipvlan chooses the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpvlanMode {
    /// Ethernet, with broadcast.
    L2,
    /// IP, without broadcast.
    L3,
    /// IP, through the host's netfilter.
    L3s,
}

impl IpvlanMode {
    pub(super) fn from_number(number: u16) -> Option<Self> {
        [Self::L2, Self::L3, Self::L3s].into_iter().find(|mode| mode.number() == number)
    }

    fn number(self) -> u16 {
        // IPVLAN_MODE_* of linux/if_link.h
        match self {
            Self::L2 => 0,
            Self::L3 => 1,
            Self::L3s => 2,
        }
    }
}

impl Kind<'_> {
    /// Returns the kernel's name of the kind.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Veth(_) => "veth",
            Self::Bridge { .. } => "bridge",
            Self::Dummy => "dummy",
            Self::Ifb => "ifb",
            Self::Macvlan { .. } => "macvlan",
            Self::Ipvlan(_) => "ipvlan",
            Self::Vlan(_) => "vlan",
            Self::Vrf(_) => "vrf",
            Self::Vxlan(_) => "vxlan",
            Self::Ipip(_) => "ipip",
            Self::Wireguard => "wireguard",
        }
    }
}

/// Writes the kind of a link. `queues` is for the other end of a veth pair.
pub(super) fn put_kind(info: &mut Message, kind: &Kind<'_>, queues: Option<u32>) {
    info.str(IFLA_INFO_KIND, kind.name());
    match *kind {
        Kind::Veth(peer) => info.nest(IFLA_INFO_DATA, |data| {
            data.nest(VETH_INFO_PEER, |m| {
                m.header(&ifinfo(0, 0, 0)).str(IFLA_IFNAME, peer.name.as_str());
                put_common(m, peer.mac, peer.mtu, queues, peer.netns);
            });
        }),
        Kind::Bridge { vlan_filtering: Some(on) } => info.nest(IFLA_INFO_DATA, |data| {
            data.u8(IFLA_BR_VLAN_FILTERING, u8::from(on));
        }),
        Kind::Bridge { vlan_filtering: None } | Kind::Dummy | Kind::Ifb | Kind::Wireguard => info,
        Kind::Macvlan { mode, bc_queue_len } => info.nest(IFLA_INFO_DATA, |data| {
            data.u32(IFLA_MACVLAN_MODE, mode.number());
            if let Some(len) = bc_queue_len {
                data.u32(IFLA_MACVLAN_BC_QUEUE_LEN, len);
            }
        }),
        Kind::Ipvlan(mode) => info.nest(IFLA_INFO_DATA, |data| {
            data.u16(IFLA_IPVLAN_MODE, mode.number());
        }),
        Kind::Vlan(id) => info.nest(IFLA_INFO_DATA, |data| {
            data.u16(IFLA_VLAN_ID, id);
        }),
        Kind::Vrf(table) => info.nest(IFLA_INFO_DATA, |data| {
            data.u32(IFLA_VRF_TABLE, table);
        }),
        Kind::Vxlan(vxlan) => info.nest(IFLA_INFO_DATA, |data| vxlan.put(data)),
        Kind::Ipip(ipip) => info.nest(IFLA_INFO_DATA, |data| ipip.put(data)),
    };
}

/// UDP port that the kernel and flannel use; the assigned port is 4789.
const VXLAN_PORT: u16 = 8472;

/// Attributes of a VXLAN link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vxlan {
    /// VXLAN network identifier, 24 bits.
    pub id: u32,
    /// Underlay link.
    pub link: Option<IfIndex>,
    /// Local address on the underlay; it determines the address family.
    pub local: Option<IpAddr>,
    /// Destination of frames for unknown MAC addresses: one peer or a multicast group.
    pub group: Option<IpAddr>,
    /// UDP port of all peers.
    pub port: u16,
    /// Learns the peer of a MAC address from received frames.
    pub learning: bool,
    /// Carries packet marks with the frames (group based policy).
    pub gbp: bool,
    /// TTL of the outer packet; 0 leaves the choice to the kernel.
    pub ttl: u8,
    /// The outer packet has a UDP checksum. If not, IPv6 packets without checksum are accepted too.
    pub checksum: bool,
}

impl Vxlan {
    /// Returns the attributes that flannel uses: no learning, no group, the kernel's port,
    /// checksums.
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

    pub(super) fn put_changeable(&self, data: &mut Message) {
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
        // The kernel's default is to learn.
        data.u8(IFLA_VXLAN_LEARNING, u8::from(self.learning));
    }

    fn parse(data: &Attrs<'_>) -> Option<Self> {
        let ip = |kind| data.find_kind(kind).and_then(|attr| netlink_ip::ip(attr.payload));
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

/// Attributes of an IPIP link: IPv4 in IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipip {
    /// Underlay link; `None` follows the route to the peer.
    pub link: Option<IfIndex>,
    /// Local address on the underlay.
    pub local: Option<Ipv4Addr>,
    /// Address of the peer; `None` uses the gateway of each route through this link.
    pub remote: Option<Ipv4Addr>,
    /// TTL of the outer packet; 0 copies that of the inner packet.
    pub ttl: u8,
    /// Forbids fragmentation of the outer packet.
    pub pmtudisc: bool,
}

impl Ipip {
    /// Returns a tunnel from this address to the gateways of its routes, with the kernel's
    /// defaults.
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

    fn parse(data: &Attrs<'_>) -> Self {
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

/// Parses the attributes of a link of this kind.
pub(super) fn parse_detail(kind: &str, data: &Attrs<'_>) -> Detail {
    let number = |id| data.find_kind(id).and_then(|attr| attr.u32());
    let short = |id| data.find_kind(id).and_then(|attr| attr.u16());
    match kind {
        "bridge" => {
            let filtering = data.find_kind(IFLA_BR_VLAN_FILTERING).and_then(|attr| attr.u8());
            Detail::Bridge { vlan_filtering: filtering.is_some_and(|on| on != 0) }
        }
        "macvlan" => Detail::Macvlan(number(IFLA_MACVLAN_MODE).and_then(MacvlanMode::from_number)),
        "ipvlan" => Detail::Ipvlan(short(IFLA_IPVLAN_MODE).and_then(IpvlanMode::from_number)),
        "vlan" => short(IFLA_VLAN_ID).map_or(Detail::None, Detail::Vlan),
        "vrf" => number(IFLA_VRF_TABLE).map_or(Detail::None, Detail::Vrf),
        "vxlan" => Vxlan::parse(data).map_or(Detail::None, Detail::Vxlan),
        "ipip" => Detail::Ipip(Ipip::parse(data)),
        _ => Detail::None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::link::{NewLink, create};

    #[test]
    fn each_kind_has_golden_bytes() {
        let check = |kind: Kind<'_>, word: &str, data: &[u8]| {
            let bytes = create(&NewLink::new("x".parse().unwrap(), kind)).message.to_bytes();
            assert_eq!(kind.name(), word);
            assert!(bytes.ends_with(data), "{word}: {bytes:?}");
        };
        // ip link add x type bridge vlan_filtering 1
        let filtering = Kind::Bridge { vlan_filtering: Some(true) };
        check(filtering, "bridge", &[12, 0, 2, 0x80, 5, 0, 7, 0, 1, 0, 0, 0]);
        check(Kind::Bridge { vlan_filtering: None }, "bridge", b"bridge\0\0");
        // ip link add x type macvlan mode passthru
        let passthru = Kind::Macvlan { mode: MacvlanMode::Passthru, bc_queue_len: None };
        check(passthru, "macvlan", &[12, 0, 2, 0x80, 8, 0, 1, 0, 8, 0, 0, 0]);
        // ip link add x type macvlan mode private bcqueuelen 500
        let queue = Kind::Macvlan { mode: MacvlanMode::Private, bc_queue_len: Some(500) };
        let data = [20, 0, 2, 0x80, 8, 0, 1, 0, 1, 0, 0, 0, 8, 0, 7, 0, 0xf4, 1, 0, 0];
        check(queue, "macvlan", &data);
        // ip link add x type ipvlan mode l3s
        let l3s = Kind::Ipvlan(IpvlanMode::L3s);
        check(l3s, "ipvlan", &[12, 0, 2, 0x80, 6, 0, 1, 0, 2, 0, 0, 0]);
        // ip link add x type vrf table 1000
        check(Kind::Vrf(1000), "vrf", &[12, 0, 2, 0x80, 8, 0, 1, 0, 0xe8, 3, 0, 0]);
        check(Kind::Dummy, "dummy", b"dummy\0\0\0");
        check(Kind::Ifb, "ifb", b"ifb\0");
    }

    fn check(kind: Kind<'_>, data: &[u8]) {
        let bytes = create(&NewLink::new("x".parse().unwrap(), kind)).message.to_bytes();
        assert!(bytes.ends_with(data), "{kind:?}: {bytes:?}");
    }

    #[test]
    fn vxlan_has_golden_bytes() {
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
    fn ipip_has_golden_bytes() {
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

    fn written(put: impl FnOnce(&mut Message)) -> Vec<u8> {
        let mut message = Message::new(0, 0);
        put(&mut message);
        message.to_bytes()
    }

    proptest! {
        #[test]
        fn tunnel_attributes_round_trip(
            id in 0_u32..1 << 24, port: u16, ttl: u8, learning: bool, gbp: bool, checksum: bool,
            link in proptest::option::of(1_u32..), local in proptest::option::of(1_u32..),
            six in proptest::option::of(1_u128..),
        ) {
            let four = local.map(Ipv4Addr::from_bits);
            let six = six.map(|bits| IpAddr::V6(std::net::Ipv6Addr::from_bits(bits)));
            let local = four.map(IpAddr::V4).or(six);
            let link = link.map(IfIndex);
            let vxlan = Vxlan { id, link, local, group: local, port, learning, gbp, ttl, checksum };
            let bytes = written(|message| vxlan.put(message));
            prop_assert_eq!(Vxlan::parse(&Attrs::after(&bytes, 16)), Some(vxlan));
            let ipip = Ipip { link, local: four, remote: None, ttl, pmtudisc: checksum };
            let bytes = written(|message| ipip.put(message));
            prop_assert_eq!(Ipip::parse(&Attrs::after(&bytes, 16)), ipip);
        }
    }
}
