// SPDX-License-Identifier: Apache-2.0
//! Multicast and broadcast packets of an interface, such as a bridge of pods: receives them as they
//! are sent, and sends them with any source address. Also the UDP sockets that carry them to other
//! nodes. No call blocks.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::RecvFlags;

use super::{attach_filter, check, op, open, set_option};
use crate::error::{Error, Result};
use crate::types::{Family, IfIndex, MacAddr};

const PACKET_VNET_HDR: libc::c_int = 15; // linux/if_packet.h
const SKF_AD_OFF: u32 = (-0x1000_i32).cast_unsigned(); // linux/filter.h
const SKF_AD_PKTTYPE: u32 = 4; // linux/filter.h
const SKF_AD_IFINDEX: u32 = 8; // linux/filter.h
const PACKET_BROADCAST: u32 = 1; // linux/if_packet.h
const PACKET_MULTICAST: u32 = 2; // linux/if_packet.h

/// Length of `struct virtio_net_hdr`, which precedes every frame. The kernel adds it only on
/// SOCK_RAW sockets.
const HEADER: usize = 10;
const ETHERNET: usize = 14;
const NEEDS_CSUM: u8 = 1; // linux/virtio_net.h, VIRTIO_NET_HDR_F_NEEDS_CSUM
/// Required length of a receive buffer.
pub const BUFFER_LEN: usize = HEADER + ETHERNET + 65_536;

/// Socket for the multicast and broadcast packets of one interface and address family.
#[derive(Debug)]
pub struct MulticastSocket {
    fd: OwnedFd,
    index: IfIndex,
    mac: MacAddr,
    family: Family,
}

/// A received packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedPacket {
    /// Position in the buffer, starting with the IP header. The transport checksum is filled in.
    pub packet: Range<usize>,
    /// The packet is a GSO packet that still has to be segmented.
    pub is_unsegmented: bool,
}

impl MulticastSocket {
    /// Opens a socket on an interface of the calling thread's namespace; `mac` is the interface's
    /// MAC address. The kernel drops unicast packets, so that other traffic does not wake the
    /// reader.
    pub fn open(index: IfIndex, mac: MacAddr, family: Family) -> Result<Self> {
        let try_open = || {
            // Protocol 0: the socket receives nothing until `bind`, when the filter is in place.
            let fd = open(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, 0)?;
            attach_filter(fd.as_fd(), &accept_multicast())?;
            set_option(fd.as_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, &1i32.to_ne_bytes())?;
            let address = link_address(index, family, MacAddr([0; 6]));
            // SAFETY: the address is a `sockaddr_ll` of the length given.
            check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), ADDRESS_LEN) })?;
            join_all_groups(fd.as_fd(), index)?;
            Ok(fd)
        };
        match try_open() {
            Ok(fd) => Ok(Self { fd, index, mac, family }),
            Err(cause) => Err(Error::from_io("listen for multicast on", index.to_string(), &cause)),
        }
    }

    /// Receives the next packet into a buffer of [`BUFFER_LEN`] bytes, or returns `None` if none is
    /// waiting.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<ReceivedPacket>> {
        let len = match rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::empty()) {
            Ok((len, _)) => len,
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        if len < HEADER + ETHERNET {
            return Ok(Some(ReceivedPacket { packet: len..len, is_unsegmented: false }));
        }
        let (header, frame) = buffer[..len].split_at_mut(HEADER);
        if header[0] & NEEDS_CSUM != 0 {
            let at = |offset| usize::from(u16::from_ne_bytes([header[offset], header[offset + 1]]));
            fill_in_checksum(frame, at(6), at(8));
        }
        let is_unsegmented = header[1] != 0;
        Ok(Some(ReceivedPacket { packet: HEADER + ETHERNET..len, is_unsegmented }))
    }

    /// Sends a packet, which starts with the IP header, to the MAC address of a group or to
    /// broadcast.
    pub fn send(&self, to: MacAddr, packet: &[u8]) -> io::Result<()> {
        let address = link_address(self.index, self.family, to);
        let kind = ethertype(self.family).to_be_bytes();
        let bytes = [&[0; HEADER][..], &to.0, &self.mac.0, &kind, packet].concat();
        // SAFETY: buffer and address are valid for the lengths given.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                0,
                (&raw const address).cast(),
                ADDRESS_LEN,
            )
        };
        check(sent).map(drop)
    }
}

impl AsFd for MulticastSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for MulticastSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Opens a UDP socket whose datagrams may be fragmented: each carries a whole packet of a pod, so
/// it can exceed the MTU.
pub fn fragmenting_udp(local: SocketAddr) -> Result<UdpSocket> {
    let try_open = || {
        let domain = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let fd = open(domain, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0)?;
        let (level, option, mode) = match local {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT),
            SocketAddr::V6(_) => {
                (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT)
            }
        };
        set_option(fd.as_fd(), level, option, &mode.to_ne_bytes())?;
        if local.is_ipv6() {
            let only = 1i32.to_ne_bytes();
            set_option(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &only)?;
        }
        rustix::net::bind(&fd, &local)?;
        Ok(fd.into())
    };
    try_open().map_err(|cause| Error::from_io("open UDP socket", local.to_string(), &cause))
}

/// Makes a socket ignore packets that arrive through an interface: pods on that interface could
/// forge the source address.
pub fn ignore_interface(socket: &impl AsFd, index: IfIndex) -> Result<()> {
    let ancillary = |field| op(LOAD_WORD, 0, 0, SKF_AD_OFF + field);
    let program = [
        ancillary(SKF_AD_IFINDEX),
        op(JUMP_IF_EQUAL, 0, 1, index.0),
        op(RETURN, 0, 0, 0),
        op(RETURN, 0, 0, u32::MAX),
    ];
    attach_filter(socket.as_fd(), &program)
        .map_err(|cause| Error::from_io("ignore packets from", index.to_string(), &cause))
}

const ADDRESS_LEN: libc::socklen_t = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// Returns a program that accepts received multicast and broadcast packets, not those that this
/// host sends.
fn accept_multicast() -> [libc::sock_filter; 5] {
    [
        op(LOAD_WORD, 0, 0, SKF_AD_OFF + SKF_AD_PKTTYPE),
        op(JUMP_IF_EQUAL, 1, 0, PACKET_BROADCAST),
        op(JUMP_IF_EQUAL, 0, 1, PACKET_MULTICAST),
        op(RETURN, 0, 0, u32::MAX),
        op(RETURN, 0, 0, 0),
    ]
}

/// Requests all multicast groups: a bridge with multicast snooping does not deliver groups that
/// this host has not joined.
fn join_all_groups(fd: BorrowedFd<'_>, index: IfIndex) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: index.0.cast_signed(),
        mr_type: libc::PACKET_MR_ALLMULTI as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    // SAFETY: the kernel reads one `packet_mreq`, which lives until the call returns.
    let set = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const request).cast(),
            size_of::<libc::packet_mreq>() as libc::socklen_t,
        )
    };
    check(set).map(drop)
}

fn link_address(index: IfIndex, family: Family, mac: MacAddr) -> libc::sockaddr_ll {
    // SAFETY: all zeroes is a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ethertype(family).to_be();
    address.sll_ifindex = index.0.cast_signed();
    address.sll_halen = 6;
    address.sll_addr[..6].copy_from_slice(&mac.0);
    address
}

fn ethertype(family: Family) -> u16 {
    match family {
        Family::V4 => libc::ETH_P_IP as u16,
        Family::V6 => libc::ETH_P_IPV6 as u16,
    }
}

/// Fills in a checksum that the sender left to the device. The checksum covers the bytes from
/// `start` on; its field is at `start + offset` and already holds the sum of the pseudo header.
fn fill_in_checksum(packet: &mut [u8], start: usize, offset: usize) {
    let at = start + offset;
    if at + 2 > packet.len() {
        return;
    }
    let words = packet[start..].chunks(2);
    let mut sum: u64 =
        words.map(|w| u64::from(w[0]) << 8 | u64::from(w.get(1).copied().unwrap_or(0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // UDP uses 0 for "no checksum", and 0xffff means the same sum.
    let checksum = match !(sum as u16) {
        0 => 0xffff,
        checksum => checksum,
    };
    packet[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_filled_in_unless_out_of_bounds() {
        // A pseudo header with the sum 0x0102, then one word and one odd byte.
        let mut packet = [9, 9, 0x01, 0x02, 0x00, 0x10, 0x7f];
        fill_in_checksum(&mut packet, 2, 0);
        assert_eq!(packet[2..4], (!(0x0102_u16 + 0x0010 + 0x7f00)).to_be_bytes());
        let before = packet;
        fill_in_checksum(&mut packet, 4, 2);
        assert_eq!(packet, before);
    }
}
