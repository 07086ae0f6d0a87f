// SPDX-License-Identifier: Apache-2.0
//! Sockets for an interface that may have no address yet: whole IPv4 packets addressed by MAC
//! address, and UDP bound to the interface. Also a socket that only sends ICMP.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::SendFlags;

use super::{attach_filter, check, op, open, set_option};
use crate::error::{Error, Result};
use crate::types::{Family, IfIndex, IfName, MacAddr};

/// MAC address of all stations on a link.
pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

const IPPROTO_UDP: u32 = 17; // linux/in.h
const SOL_RAW: libc::c_int = 255; // linux/socket.h
const ICMP_FILTER: libc::c_int = 1; // linux/icmp.h
const ICMPV6_FILTER: libc::c_int = 1; // linux/icmpv6.h
/// Mask of the fragment offset in the IPv4 header.
const FRAGMENT_OFFSET: u32 = 0x1fff;

/// Socket for whole IPv4 packets to one UDP port of an interface. Receiving does not block.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    index: IfIndex,
}

impl PacketSocket {
    /// Opens a socket that receives UDP packets to this port on this interface only. The kernel
    /// filters, so that a container's other traffic does not wake the reader.
    pub fn open(index: IfIndex, port: u16) -> Result<PacketSocket> {
        let fail =
            |cause: io::Error| Error::from_io("open packet socket", index.to_string(), &cause);
        // Protocol 0: the socket receives nothing until `bind`, when the filter is in place.
        let fd = open(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0).map_err(fail)?;
        attach_filter(fd.as_fd(), &accept_udp_to(port)).map_err(fail)?;
        let address = link_address(index, MacAddr([0; 6]));
        // SAFETY: the address is a `sockaddr_ll` of the length given.
        let bound = unsafe {
            libc::bind(
                fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        check(bound).map_err(fail)?;
        Ok(PacketSocket { fd, index })
    }

    /// Sends a packet, which starts with the IPv4 header, to a MAC address.
    pub fn send(&self, to: MacAddr, packet: &[u8]) -> Result<()> {
        let address = link_address(self.index, to);
        // SAFETY: buffer and address are valid for the lengths given.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        check(sent)
            .map(drop)
            .map_err(|cause| Error::from_io("send packet on", self.index.to_string(), &cause))
    }

    /// Receives the next packet: its length and the sender's MAC address. Returns `None` if no
    /// packet is waiting.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<(usize, MacAddr)>> {
        // SAFETY: all zeroes is a valid `sockaddr_ll`.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: buffer and address are writable for the lengths given.
        let received = unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                0,
                (&raw mut address).cast(),
                &raw mut length,
            )
        };
        let [a, b, c, d, e, f, ..] = address.sll_addr;
        match check(received) {
            Ok(count) => Ok(Some((count.cast_unsigned(), MacAddr([a, b, c, d, e, f])))),
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(cause) => Err(Error::from_io("receive packet on", self.index.to_string(), &cause)),
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a non-blocking UDP socket that sends and receives through this interface only, regardless
/// of routes.
pub fn udp(interface: IfName, local: SocketAddr) -> Result<UdpSocket> {
    let object = || format!("{local} on {interface}");
    let fail = |cause: io::Error| Error::from_io("open UDP socket", object(), &cause);
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let fd = open(family, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0).map_err(fail)?;
    let name = interface.as_str().as_bytes();
    set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name).map_err(fail)?;
    if local.is_ipv6() {
        let only = 1i32.to_ne_bytes();
        set_option(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &only).map_err(fail)?;
    }
    rustix::net::bind(&fd, &local).map_err(|errno| fail(errno.into()))?;
    Ok(fd.into())
}

/// Socket of one address family that sends ICMP messages and receives none.
#[derive(Debug)]
pub struct IcmpSender {
    fd: OwnedFd,
}

impl IcmpSender {
    /// Opens a socket in the calling thread's namespace.
    pub fn open(family: Family) -> Result<IcmpSender> {
        let (domain, protocol) = match family {
            Family::V4 => (libc::AF_INET, libc::IPPROTO_ICMP),
            Family::V6 => (libc::AF_INET6, libc::IPPROTO_ICMPV6),
        };
        let object = if family == Family::V4 { "IPv4" } else { "IPv6" };
        let fail = |cause: io::Error| Error::from_io("open ICMP socket", object, &cause);
        let flags = libc::SOCK_RAW | libc::SOCK_NONBLOCK;
        let fd = open(domain, flags, protocol).map_err(fail)?;
        // One bit blocks one ICMP type. Without the filter the kernel would queue every ping of the
        // host.
        match family {
            Family::V4 => set_option(fd.as_fd(), SOL_RAW, ICMP_FILTER, &[0xff; 4]),
            Family::V6 => set_option(fd.as_fd(), libc::SOL_ICMPV6, ICMPV6_FILTER, &[0xff; 32]),
        }
        .map_err(fail)?;
        Ok(IcmpSender { fd })
    }

    /// Sends a message, which starts with the ICMP header. The kernel chooses the source address
    /// and, for IPv6, fills in the checksum.
    pub fn send(&self, to: IpAddr, message: &[u8]) -> Result<()> {
        rustix::net::sendto(&self.fd, message, SendFlags::empty(), &SocketAddr::new(to, 0))
            .map(drop)
            .map_err(|errno| Error::from_errno("send ICMP to", to.to_string(), errno))
    }
}

fn link_address(index: IfIndex, mac: MacAddr) -> libc::sockaddr_ll {
    // SAFETY: all zeroes is a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_IP as u16).to_be();
    address.sll_ifindex = index.0.cast_signed();
    address.sll_halen = 6;
    address.sll_addr[..6].copy_from_slice(&mac.0);
    address
}

/// Returns a program that accepts unfragmented UDP packets to one port.
fn accept_udp_to(port: u16) -> [libc::sock_filter; 9] {
    let (load, jump) = (libc::BPF_LD, libc::BPF_JMP | libc::BPF_K);
    [
        op(load | libc::BPF_B | libc::BPF_ABS, 0, 0, 9),
        op(jump | libc::BPF_JEQ, 0, 6, IPPROTO_UDP),
        op(load | libc::BPF_H | libc::BPF_ABS, 0, 0, 6),
        op(jump | libc::BPF_JSET, 4, 0, FRAGMENT_OFFSET),
        op(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0),
        op(load | libc::BPF_H | libc::BPF_IND, 0, 0, 2),
        op(jump | libc::BPF_JEQ, 0, 1, u32::from(port)),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, u32::from(u16::MAX)),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ]
}
