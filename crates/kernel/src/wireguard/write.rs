// SPDX-License-Identifier: Apache-2.0
//! Encodes changes of a WireGuard link in messages whose attributes fit into 64 KiB.

use std::net::SocketAddr;

use ::netlink::Message;
use ipnet::IpNet;

use super::{
    PresharedKey, PrivateKey, PublicKey, VERSION, WG_CMD_SET_DEVICE, WGALLOWEDIP_A_CIDR_MASK,
    WGALLOWEDIP_A_FAMILY, WGALLOWEDIP_A_IPADDR, WGDEVICE_A_FWMARK, WGDEVICE_A_IFINDEX,
    WGDEVICE_A_IFNAME, WGDEVICE_A_LISTEN_PORT, WGDEVICE_A_PEERS, WGDEVICE_A_PRIVATE_KEY,
    WGPEER_A_ALLOWEDIPS, WGPEER_A_ENDPOINT, WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL,
    WGPEER_A_PRESHARED_KEY, WGPEER_A_PUBLIC_KEY,
};
use crate::genl;
use crate::link::Target;
use crate::netlink_ip::{AF_INET, AF_INET6, put_ip};
use crate::types::Family;

const WGDEVICE_A_FLAGS: u16 = 5; // linux/wireguard.h
const WGDEVICE_F_REPLACE_PEERS: u32 = 1; // linux/wireguard.h
const WGPEER_A_FLAGS: u16 = 3; // linux/wireguard.h
const WGPEER_F_REMOVE_ME: u32 = 1; // linux/wireguard.h
const WGPEER_F_REPLACE_ALLOWEDIPS: u32 = 2; // linux/wireguard.h
const WGPEER_F_UPDATE_ONLY: u32 = 4; // linux/wireguard.h

/// Maximum length of the peers in one message, by the estimates below; an attribute holds at most
/// 64 KiB.
const MAX_BYTES: usize = 32 * 1024;
/// Maximum length of a peer without its allowed addresses.
const PEER_BYTES: usize = 144;
/// Maximum length of an allowed address.
const ALLOWED_IP_BYTES: usize = 40;
/// Maximum number of addresses of one peer per message.
const MAX_ALLOWED_IPS: usize = 500;

/// Changes of a link; `None` leaves a value unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceChange<'a> {
    /// Private key; a key of zeroes removes it.
    pub private_key: Option<&'a PrivateKey>,
    /// UDP port; 0 leaves the choice to the kernel.
    pub listen_port: Option<u16>,
    /// Mark of the packets that the link sends, for policy routing; 0 for none.
    pub fwmark: Option<u32>,
    /// Remove all existing peers first. This ends all sessions, even of peers that are added again.
    /// To keep traffic flowing, change only the peers that differ.
    pub replace_peers: bool,
    /// Peers to add, change or remove.
    pub peers: &'a [PeerChange],
}

/// Changes of a peer; `None` leaves a value unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerChange {
    /// Public key, which identifies the peer.
    pub public_key: PublicKey,
    /// Additional shared secret; a key of zeroes removes it.
    pub preshared_key: Option<PresharedKey>,
    /// Address of the peer.
    pub endpoint: Option<SocketAddr>,
    /// Interval of keepalive packets in seconds; 0 for none.
    pub keepalive: Option<u16>,
    /// Addresses that the peer may send from and that are routed to it. The kernel removes an
    /// address from the peer that had it before.
    pub allowed_ips: Vec<IpNet>,
    /// Remove all existing addresses first.
    pub replace_allowed_ips: bool,
    /// Change the peer only if it exists; otherwise a missing peer is added.
    pub update_only: bool,
    /// Remove the peer; not an error if it does not exist.
    pub remove: bool,
}

impl PeerChange {
    /// Returns a peer with exactly these addresses.
    pub fn new(public_key: PublicKey, allowed_ips: Vec<IpNet>) -> Self {
        Self {
            public_key,
            preshared_key: None,
            endpoint: None,
            keepalive: None,
            allowed_ips,
            replace_allowed_ips: true,
            update_only: false,
            remove: false,
        }
    }

    /// Returns the removal of a peer.
    pub fn remove(public_key: PublicKey) -> Self {
        let unchanged = Self::new(public_key, Vec::new());
        Self { remove: true, replace_allowed_ips: false, ..unchanged }
    }
}

/// A peer with a part of its addresses.
#[derive(Debug, Clone, Copy)]
struct PeerPart<'a> {
    peer: &'a PeerChange,
    allowed_ips: &'a [IpNet],
    is_first: bool,
}

impl<'a> PeerPart<'a> {
    fn split(peer: &'a PeerChange) -> impl Iterator<Item = Self> {
        let at = peer.allowed_ips.len().min(MAX_ALLOWED_IPS);
        let (first, rest) = peer.allowed_ips.split_at(at);
        let rest = rest.chunks(MAX_ALLOWED_IPS);
        std::iter::once(Self { peer, allowed_ips: first, is_first: true })
            .chain(rest.map(move |allowed_ips| Self { peer, allowed_ips, is_first: false }))
    }

    fn max_bytes(&self) -> usize {
        PEER_BYTES + ALLOWED_IP_BYTES * self.allowed_ips.len()
    }

    fn flags(&self) -> u32 {
        let all = [
            (self.peer.remove, WGPEER_F_REMOVE_ME),
            (self.is_first && self.peer.replace_allowed_ips, WGPEER_F_REPLACE_ALLOWEDIPS),
            (self.peer.update_only || !self.is_first, WGPEER_F_UPDATE_ONLY),
        ];
        all.iter().filter(|(on, _)| *on).fold(0, |flags, (_, flag)| flags | flag)
    }
}

/// Encodes a change as messages to send in this order, at least one.
pub(super) fn messages(family: u16, link: Target, change: &DeviceChange<'_>) -> Vec<Message> {
    let parts: Vec<PeerPart<'_>> = change.peers.iter().flat_map(PeerPart::split).collect();
    let mut rest = parts.as_slice();
    let mut messages = Vec::new();
    while messages.is_empty() || !rest.is_empty() {
        let mut message = genl::message(family, WG_CMD_SET_DEVICE, VERSION);
        put_target(&mut message, link);
        if messages.is_empty() {
            put_device(&mut message, change);
        }
        let (now, later) = rest.split_at(fitting(rest));
        if !now.is_empty() {
            message.nest(WGDEVICE_A_PEERS, |list| now.iter().for_each(|part| put_part(list, part)));
        }
        messages.push(message);
        rest = later;
    }
    messages
}

/// Returns the number of parts for the next message. At least one fits, because every part is
/// limited.
fn fitting(parts: &[PeerPart<'_>]) -> usize {
    let mut bytes = 0;
    let fitting = parts.iter().take_while(|part| {
        bytes += part.max_bytes();
        bytes <= MAX_BYTES
    });
    fitting.count()
}

pub(super) fn put_target(message: &mut Message, link: Target) {
    match link {
        Target::Index(index) => message.u32(WGDEVICE_A_IFINDEX, index.0),
        Target::Name(name) => message.str(WGDEVICE_A_IFNAME, name.as_str()),
    };
}

fn put_device(message: &mut Message, change: &DeviceChange<'_>) {
    if change.replace_peers {
        message.u32(WGDEVICE_A_FLAGS, WGDEVICE_F_REPLACE_PEERS);
    }
    if let Some(key) = change.private_key {
        message.bytes(WGDEVICE_A_PRIVATE_KEY, &key.0);
    }
    if let Some(port) = change.listen_port {
        message.u16(WGDEVICE_A_LISTEN_PORT, port);
    }
    if let Some(mark) = change.fwmark {
        message.u32(WGDEVICE_A_FWMARK, mark);
    }
}

/// Appends an element to the list of peers; elements of this list have the type 0.
fn put_part(list: &mut Message, part: &PeerPart<'_>) {
    let peer = part.peer;
    list.nest(0, |m| {
        m.bytes(WGPEER_A_PUBLIC_KEY, &peer.public_key.0);
        if part.flags() != 0 {
            m.u32(WGPEER_A_FLAGS, part.flags());
        }
        if part.is_first {
            put_settings(m, peer);
        }
        if !part.allowed_ips.is_empty() {
            m.nest(WGPEER_A_ALLOWEDIPS, |ips| {
                part.allowed_ips.iter().for_each(|net| put_allowed_ip(ips, *net));
            });
        }
    });
}

fn put_settings(m: &mut Message, peer: &PeerChange) {
    if let Some(key) = &peer.preshared_key {
        m.bytes(WGPEER_A_PRESHARED_KEY, &key.0);
    }
    if let Some(endpoint) = peer.endpoint {
        m.bytes(WGPEER_A_ENDPOINT, &sockaddr(endpoint));
    }
    if let Some(seconds) = peer.keepalive {
        m.u16(WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL, seconds);
    }
}

fn put_allowed_ip(list: &mut Message, net: IpNet) {
    list.nest(0, |m| {
        m.u16(WGALLOWEDIP_A_FAMILY, u16::from(Family::of(net.addr()).number()));
        put_ip(m, WGALLOWEDIP_A_IPADDR, net.network());
        m.u8(WGALLOWEDIP_A_CIDR_MASK, net.prefix_len());
    });
}

/// Encodes a `struct sockaddr_in` or `struct sockaddr_in6`.
fn sockaddr(endpoint: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(28);
    match endpoint {
        SocketAddr::V4(four) => {
            bytes.extend(u16::from(AF_INET).to_ne_bytes());
            bytes.extend(four.port().to_be_bytes());
            bytes.extend(four.ip().octets());
            bytes.extend([0; 8]);
        }
        SocketAddr::V6(six) => {
            bytes.extend(u16::from(AF_INET6).to_ne_bytes());
            bytes.extend(six.port().to_be_bytes());
            bytes.extend(six.flowinfo().to_be_bytes());
            bytes.extend(six.ip().octets());
            bytes.extend(six.scope_id().to_ne_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::read::{Part, join};
    use super::*;
    use crate::types::IfIndex;

    #[test]
    fn change_has_golden_bytes() {
        // wg set <index 3> listen-port 51820 fwmark 9 peer AQEB…
        //   endpoint 192.0.2.7:51820 persistent-keepalive 25 allowed-ips 10.1.2.0/24
        let net = "10.1.2.3/24".parse().unwrap();
        let peer = PeerChange {
            endpoint: Some("192.0.2.7:51820".parse().unwrap()),
            keepalive: Some(25),
            ..PeerChange::new(PublicKey([1; 32]), vec![net])
        };
        let change = DeviceChange {
            listen_port: Some(51820),
            fwmark: Some(9),
            replace_peers: true,
            peers: &[peer],
            ..DeviceChange::default()
        };
        let messages = messages(0x20, IfIndex(3).into(), &change);
        let [message] = messages.as_slice() else { panic!("{messages:?}") };
        let mut expected = vec![
            164, 0, 0, 0, 0x20, 0, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, // nlmsghdr
            1, 1, 0, 0, // genlmsghdr
            8, 0, 1, 0, 3, 0, 0, 0, // WGDEVICE_A_IFINDEX
            8, 0, 5, 0, 1, 0, 0, 0, // WGDEVICE_A_FLAGS
            6, 0, 6, 0, 0x6c, 0xca, 0, 0, // WGDEVICE_A_LISTEN_PORT
            8, 0, 7, 0, 9, 0, 0, 0, // WGDEVICE_A_FWMARK
            112, 0, 8, 0x80, 108, 0, 0, 0x80, // WGDEVICE_A_PEERS, the first
            36, 0, 1, 0, // WGPEER_A_PUBLIC_KEY
        ];
        expected.extend([1; 32]);
        expected.extend([
            8, 0, 3, 0, 2, 0, 0, 0, // WGPEER_A_FLAGS
            20, 0, 4, 0, 2, 0, 0xca, 0x6c, 192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0,
            0, // sockaddr_in
            6, 0, 5, 0, 25, 0, 0, 0, // WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL
            32, 0, 9, 0x80, 28, 0, 0, 0x80, // WGPEER_A_ALLOWEDIPS, the first
            6, 0, 1, 0, 2, 0, 0, 0, // WGALLOWEDIP_A_FAMILY
            8, 0, 2, 0, 10, 1, 2, 0, // WGALLOWEDIP_A_IPADDR, host bits cleared
            5, 0, 3, 0, 24, 0, 0, 0, // WGALLOWEDIP_A_CIDR_MASK
        ]);
        assert_eq!(message.to_bytes(), expected);
    }

    #[test]
    fn removal_has_golden_bytes() {
        // wg set wg0 peer AQEB… remove
        let peers = [PeerChange::remove(PublicKey([1; 32]))];
        let change = DeviceChange { peers: &peers, ..DeviceChange::default() };
        let messages = messages(0x20, Target::Name("wg0".parse().unwrap()), &change);
        let bytes = messages[0].to_bytes();
        assert_eq!(bytes[20..28], [8, 0, 2, 0, b'w', b'g', b'0', 0]);
        assert!(bytes.ends_with(&[8, 0, 3, 0, 1, 0, 0, 0]), "WGPEER_A_FLAGS: {bytes:?}");
    }

    /// Parses the peers of these messages as if a link reported them: requests and reports use the
    /// same attributes.
    fn parse_peers(messages: &[Message], peers: usize) -> Vec<(PublicKey, Vec<IpNet>)> {
        let mut device = crate::genl::message(0, 0, 1);
        put_target(&mut device, Target::Name("wg0".parse().unwrap()));
        put_target(&mut device, IfIndex(3).into());
        device.u16(WGDEVICE_A_LISTEN_PORT, 1).u32(WGDEVICE_A_FWMARK, 0);
        let first = Part::parse(&device.to_bytes()[16..]);
        let rest = messages.iter().map(|message| Part::parse(&message.to_bytes()[16..]));
        let device = join(std::iter::once(first).chain(rest).collect()).unwrap();
        assert_eq!(device.peers.len(), peers);
        device.peers.into_iter().map(|peer| (peer.public_key, peer.allowed_ips)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn any_number_of_peers_fits_into_messages(sizes in prop::collection::vec(0_u32..2500, 0..40)) {
            let key = |n: usize| PublicKey([u8::try_from(n).unwrap(); 32]);
            let nets = |n: u32| (0..n).map(|i| IpNet::new([10, 0, (i >> 8) as u8, i as u8].into(), 32));
            let peers: Vec<_> = sizes.iter().enumerate().map(|(n, size)| {
                PeerChange {
                    preshared_key: Some(PresharedKey([7; 32])),
                    endpoint: Some("[fd00::1]:1".parse().unwrap()),
                    keepalive: Some(1),
                    ..PeerChange::new(key(n), nets(*size).map(|net| net.unwrap()).collect())
                }
            }).collect();
            let change = DeviceChange { peers: &peers, ..DeviceChange::default() };
            let messages = messages(1, IfIndex(3).into(), &change);
            prop_assert!(messages.iter().all(|message| message.to_bytes().len() <= MAX_BYTES + 64));
            let expected: Vec<_> =
                peers.into_iter().map(|peer| (peer.public_key, peer.allowed_ips)).collect();
            prop_assert_eq!(parse_peers(&messages, sizes.len()), expected);
        }
    }
}
