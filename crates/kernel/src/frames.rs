// SPDX-License-Identifier: Apache-2.0
//! Packets for many on an interface, such as a bridge of pods: multicast and broadcast of one family are
//! heard as they are sent, and can be sent under any source address. Also the UDP sockets that carry them
//! elsewhere. Nothing waits.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::RecvFlags;

use crate::error::{Error, Result};
use crate::packet::{attach_program, check, op, set_option, socket};
use crate::types::{Family, IfIndex, MacAddr};

const PACKET_VNET_HDR: libc::c_int = 15; // linux/if_packet.h
const SKF_AD_OFF: u32 = (-0x1000_i32).cast_unsigned(); // linux/filter.h
const SKF_AD_PKTTYPE: u32 = 4; // linux/filter.h
const SKF_AD_IFINDEX: u32 = 8; // linux/filter.h
const PACKET_BROADCAST: u32 = 1; // linux/if_packet.h
const PACKET_MULTICAST: u32 = 2; // linux/if_packet.h

/// `struct virtio_net_hdr`, before every frame. The kernel has it for whole frames only.
const HEADER: usize = 10;
const ETHERNET: usize = 14;
const NEEDS_CSUM: u8 = 1; // linux/virtio_net.h, VIRTIO_NET_HDR_F_NEEDS_CSUM
/// What a buffer for one packet must have.
pub const ROOM: usize = HEADER + ETHERNET + 65_536;

/// What is sent to many on one interface, in one family.
#[derive(Debug)]
pub struct Frames {
    fd: OwnedFd,
    index: IfIndex,
    mac: MacAddr,
    family: Family,
}

/// A packet in a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// Where it is, IP header first. Its checksum is filled in.
    pub packet: Range<usize>,
    /// It is several packets in one, still to be cut.
    pub is_uncut: bool,
}

impl Frames {
    /// Listens to an interface of the calling thread's namespace, which has this hardware address. The
    /// kernel sorts out what is for one receiver only, so that other traffic does not wake us.
    pub fn open(index: IfIndex, mac: MacAddr, family: Family) -> Result<Self> {
        let open = || {
            // No protocol: nothing is heard before the filter is in place.
            let fd = socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, 0)?;
            attach_program(fd.as_fd(), &for_many())?;
            set_option(fd.as_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, &1i32.to_ne_bytes())?;
            let address = link_address(index, family, MacAddr([0; 6]));
            // SAFETY: the address is a `sockaddr_ll` of the length given.
            check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), ADDRESS_LEN) })?;
            hear_all_groups(fd.as_fd(), index)?;
            Ok(fd)
        };
        match open() {
            Ok(fd) => Ok(Self { fd, index, mac, family }),
            Err(cause) => Err(Error::from_io("listen for multicast on", index.to_string(), &cause)),
        }
    }

    /// The next packet that is there, in a buffer of [`ROOM`] bytes.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Heard>> {
        let len = match rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::empty()) {
            Ok((len, _)) => len,
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        if len < HEADER + ETHERNET {
            return Ok(Some(Heard { packet: len..len, is_uncut: false }));
        }
        let (header, frame) = buffer[..len].split_at_mut(HEADER);
        if header[0] & NEEDS_CSUM != 0 {
            let at = |offset| usize::from(u16::from_ne_bytes([header[offset], header[offset + 1]]));
            fill_in(frame, at(6), at(8));
        }
        Ok(Some(Heard { packet: HEADER + ETHERNET..len, is_uncut: header[1] != 0 }))
    }

    /// Sends a packet, IP header first, to a hardware address, that of a group or of all.
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

impl AsFd for Frames {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Frames {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// A UDP socket whose datagrams may be cut into pieces on the way: they are as large as packets of pods,
/// and more.
pub fn carrier(local: SocketAddr) -> Result<UdpSocket> {
    let open = || {
        let domain = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let fd = socket(domain, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0)?;
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
    open().map_err(|cause| Error::from_io("open UDP socket", local.to_string(), &cause))
}

/// Lets a socket hear nothing that comes through an interface: pods there could say that they are anybody.
pub fn be_deaf_to(socket: &impl AsFd, index: IfIndex) -> Result<()> {
    let ancillary = |field| op(LOAD_WORD, 0, 0, SKF_AD_OFF + field);
    let program = [
        ancillary(SKF_AD_IFINDEX),
        op(JUMP_IF_EQUAL, 0, 1, index.0),
        op(RETURN, 0, 0, 0),
        op(RETURN, 0, 0, u32::MAX),
    ];
    attach_program(socket.as_fd(), &program)
        .map_err(|cause| Error::from_io("be deaf to", index.to_string(), &cause))
}

const ADDRESS_LEN: libc::socklen_t = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// Multicast and broadcast that others send.
fn for_many() -> [libc::sock_filter; 5] {
    [
        op(LOAD_WORD, 0, 0, SKF_AD_OFF + SKF_AD_PKTTYPE),
        op(JUMP_IF_EQUAL, 1, 0, PACKET_BROADCAST),
        op(JUMP_IF_EQUAL, 0, 1, PACKET_MULTICAST),
        op(RETURN, 0, 0, u32::MAX),
        op(RETURN, 0, 0, 0),
    ]
}

/// A bridge that snoops would keep groups from us that this host has not joined.
fn hear_all_groups(fd: BorrowedFd<'_>, index: IfIndex) -> io::Result<()> {
    let wanted = libc::packet_mreq {
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
            (&raw const wanted).cast(),
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

/// Fills in a checksum that was left to a device: of all from `start`, at `start + offset`, where the sum of
/// what is not in the packet stands.
fn fill_in(packet: &mut [u8], start: usize, offset: usize) {
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
    // Zero would be no checksum at all.
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
    fn checksums_are_filled_in_where_there_is_room() {
        // A pseudo header's sum of 0x0102, and two words.
        let mut packet = [9, 9, 0x01, 0x02, 0x00, 0x10, 0x7f];
        fill_in(&mut packet, 2, 0);
        assert_eq!(packet[2..4], (!(0x0102_u16 + 0x0010 + 0x7f00)).to_be_bytes());
        let before = packet;
        fill_in(&mut packet, 4, 2);
        assert_eq!(packet, before);
    }
}
