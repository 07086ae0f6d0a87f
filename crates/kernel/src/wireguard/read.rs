// SPDX-License-Identifier: Apache-2.0
//! Parses WireGuard links. The kernel describes a link in several messages: the first one has the
//! link, and a peer with many addresses is spread over several.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::time::{Duration, SystemTime};

use ::netlink::{Attr, Attrs, u16_at, u32_at};
use ipnet::IpNet;

use super::{
    Device, Peer, PresharedKey, PrivateKey, PublicKey, WGALLOWEDIP_A_CIDR_MASK,
    WGALLOWEDIP_A_IPADDR, WGDEVICE_A_FWMARK, WGDEVICE_A_IFINDEX, WGDEVICE_A_IFNAME,
    WGDEVICE_A_LISTEN_PORT, WGDEVICE_A_PEERS, WGDEVICE_A_PRIVATE_KEY, WGPEER_A_ALLOWEDIPS,
    WGPEER_A_ENDPOINT, WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL, WGPEER_A_PRESHARED_KEY,
    WGPEER_A_PUBLIC_KEY,
};
use crate::genl;
use crate::netlink_ip;
use crate::types::{Family, IfIndex, IfName};

const WGDEVICE_A_PUBLIC_KEY: u16 = 4; // linux/wireguard.h
const WGPEER_A_LAST_HANDSHAKE_TIME: u16 = 6; // linux/wireguard.h
const WGPEER_A_RX_BYTES: u16 = 7; // linux/wireguard.h
const WGPEER_A_TX_BYTES: u16 = 8; // linux/wireguard.h

/// Content of one message.
#[derive(Debug)]
pub(super) struct Part {
    /// Only in the first message.
    device: Option<Device>,
    peers: Vec<Peer>,
}

impl Part {
    pub(super) fn parse(payload: &[u8]) -> Self {
        let attrs = Attrs::after(payload, genl::HEADER_LEN);
        let peers = attrs.find_kind(WGDEVICE_A_PEERS).map(|list| list.nested());
        Self {
            device: parse_device(&attrs),
            peers: peers.into_iter().flatten().filter_map(parse_peer).collect(),
        }
    }
}

/// Joins the messages about one link.
pub(super) fn join(parts: Vec<Part>) -> Option<Device> {
    let mut device: Option<Device> = None;
    for part in parts {
        if device.is_none() {
            device = part.device;
        }
        let device = device.as_mut()?;
        for peer in part.peers {
            match device.peers.last_mut() {
                Some(last) if last.public_key == peer.public_key => {
                    last.allowed_ips.extend(peer.allowed_ips);
                }
                _ => device.peers.push(peer),
            }
        }
    }
    device
}

fn parse_device(attrs: &Attrs<'_>) -> Option<Device> {
    let key = |kind| attrs.find_kind(kind).and_then(|attr| attr.fixed());
    Some(Device {
        index: IfIndex(attrs.find_kind(WGDEVICE_A_IFINDEX)?.u32()?),
        name: IfName::from_kernel(attrs.find_kind(WGDEVICE_A_IFNAME)?.text())?,
        private_key: key(WGDEVICE_A_PRIVATE_KEY).map(PrivateKey),
        public_key: key(WGDEVICE_A_PUBLIC_KEY).map(PublicKey),
        listen_port: attrs.find_kind(WGDEVICE_A_LISTEN_PORT)?.u16()?,
        fwmark: attrs.find_kind(WGDEVICE_A_FWMARK)?.u32()?,
        peers: Vec::new(),
    })
}

fn parse_peer(attr: Attr<'_>) -> Option<Peer> {
    let attrs = attr.nested();
    let count = |kind| attrs.find_kind(kind).and_then(|attr| attr.u64()).unwrap_or(0);
    let shared = attrs.find_kind(WGPEER_A_PRESHARED_KEY).and_then(|attr| attr.fixed());
    let keepalive = attrs.find_kind(WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL);
    let handshake = attrs.find_kind(WGPEER_A_LAST_HANDSHAKE_TIME);
    let allowed_ips = attrs.find_kind(WGPEER_A_ALLOWEDIPS).map(|list| list.nested());
    Some(Peer {
        public_key: PublicKey(attrs.find_kind(WGPEER_A_PUBLIC_KEY)?.fixed()?),
        // A key of zeroes means that there is none.
        preshared_key: shared.filter(|key| *key != [0; 32]).map(PresharedKey),
        endpoint: attrs.find_kind(WGPEER_A_ENDPOINT).and_then(|attr| parse_sockaddr(attr.payload)),
        keepalive: keepalive.and_then(|attr| attr.u16()).unwrap_or(0),
        allowed_ips: allowed_ips.into_iter().flatten().filter_map(parse_allowed_ip).collect(),
        last_handshake: handshake.and_then(|attr| parse_time(attr.payload)),
        rx_bytes: count(WGPEER_A_RX_BYTES),
        tx_bytes: count(WGPEER_A_TX_BYTES),
    })
}

fn parse_allowed_ip(attr: Attr<'_>) -> Option<IpNet> {
    let attrs = attr.nested();
    let ip = netlink_ip::ip(attrs.find_kind(WGALLOWEDIP_A_IPADDR)?.payload)?;
    netlink_ip::prefix(ip, attrs.find_kind(WGALLOWEDIP_A_CIDR_MASK)?.u8()?)
}

/// Parses a `struct sockaddr_in` or `struct sockaddr_in6`.
fn parse_sockaddr(bytes: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    match Family::from_number(u8::try_from(u16_at(bytes, 0)?).ok()?)? {
        Family::V4 => {
            let octets: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
            Some(SocketAddrV4::new(Ipv4Addr::from(octets), port).into())
        }
        Family::V6 => {
            let octets: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
            let flow = u32::from_be(u32_at(bytes, 4)?);
            let scope = u32_at(bytes, 24)?;
            Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, flow, scope).into())
        }
    }
}

/// Parses a `struct __kernel_timespec`; 0 means never.
fn parse_time(bytes: &[u8]) -> Option<SystemTime> {
    let seconds = i64::from_ne_bytes(*bytes.first_chunk()?);
    let nanos = i64::from_ne_bytes(*bytes.get(8..)?.first_chunk()?);
    let since = Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanos).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since).filter(|_| !since.is_zero())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn endpoints_and_times_are_parsed() {
        let four = [2, 0, 0xca, 0x6c, 192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(parse_sockaddr(&four), Some("192.0.2.7:51820".parse().unwrap()));
        let mut six = vec![10, 0, 0, 80, 0, 0, 0, 0];
        six.extend("fe80::1".parse::<Ipv6Addr>().unwrap().octets());
        six.extend([5, 0, 0, 0]);
        assert_eq!(parse_sockaddr(&six), Some("[fe80::1%5]:80".parse().unwrap()));
        assert_eq!(parse_sockaddr(&six[..20]), None);
        let at = |seconds: i64| [seconds.to_ne_bytes(), 5_i64.to_ne_bytes()].concat();
        let expected = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 5);
        assert_eq!(parse_time(&at(1_000_000_000)), Some(expected));
        assert_eq!((parse_time(&at(-1)), parse_time(&[0; 16])), (None, None));
    }

    proptest! {
        #[test]
        fn parsers_never_panic(bytes: Vec<u8>, more: Vec<u8>) {
            let _ = join(vec![Part::parse(&bytes), Part::parse(&more)]);
            let _ = (parse_sockaddr(&bytes), parse_time(&bytes));
        }
    }
}
