// SPDX-License-Identifier: Apache-2.0
//! Sockets of an interface that may have no address yet: whole IPv4 packets by link-layer address,
//! and UDP that is tied to the interface. Also one that only sends ICMP. Each belongs to the namespace of
//! the thread that opened it.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::SendFlags;

use crate::error::{Error, Result};
use crate::types::{Family, IfIndex, IfName, MacAddr};

/// Everybody on the link.
pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

const IPPROTO_UDP: u32 = 17; // linux/in.h
const SOL_RAW: libc::c_int = 255; // linux/socket.h
const ICMP_FILTER: libc::c_int = 1; // linux/icmp.h
const ICMPV6_FILTER: libc::c_int = 1; // linux/icmpv6.h
/// Offset of the next packet's part, and flags, in the IPv4 header.
const FRAGMENT_OFFSET: u32 = 0x1fff;

/// IPv4 packets that are sent and received as they are, for one UDP port.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    index: IfIndex,
}

impl PacketSocket {
    /// Opens a socket that hears UDP for this port on this interface and nothing else: the kernel
    /// filters, so that a container's other traffic does not wake us.
    pub fn open(index: IfIndex, port: u16) -> Result<PacketSocket> {
        let fail =
            |cause: io::Error| Error::from_io("open packet socket", index.to_string(), &cause);
        // No protocol: nothing is heard before the filter is in place.
        let fd = new_socket(libc::AF_PACKET, libc::SOCK_DGRAM).map_err(fail)?;
        attach_filter(fd.as_fd(), port).map_err(fail)?;
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

    /// Sends a packet, IPv4 header first, to a hardware address.
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

    /// The next packet that is there, and who sent it; `None` where there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<(usize, MacAddr)>> {
        // SAFETY: all zeroes is a valid `sockaddr_ll`.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: buffer and address are valid for the lengths given, and ours to be written to.
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

/// A UDP socket that sends and hears through this interface only, whatever the routes say. It does
/// not wait.
pub fn udp(interface: IfName, local: SocketAddr) -> Result<UdpSocket> {
    let object = || format!("{local} on {interface}");
    let fail = |cause: io::Error| Error::from_io("open UDP socket", object(), &cause);
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let fd = new_socket(family, libc::SOCK_DGRAM).map_err(fail)?;
    let name = interface.as_str().as_bytes();
    set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name).map_err(fail)?;
    if local.is_ipv6() {
        let only = 1i32.to_ne_bytes();
        set_option(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &only).map_err(fail)?;
    }
    rustix::net::bind(&fd, &local).map_err(|errno| fail(errno.into()))?;
    Ok(fd.into())
}

/// Sends ICMP messages and hears none: one for each family.
#[derive(Debug)]
pub struct IcmpSender {
    fd: OwnedFd,
}

impl IcmpSender {
    /// Opens a sender in the calling thread's namespace.
    pub fn open(family: Family) -> Result<IcmpSender> {
        let (domain, protocol) = match family {
            Family::V4 => (libc::AF_INET, libc::IPPROTO_ICMP),
            Family::V6 => (libc::AF_INET6, libc::IPPROTO_ICMPV6),
        };
        let object = if family == Family::V4 { "IPv4" } else { "IPv6" };
        let fail = |cause: io::Error| Error::from_io("open ICMP socket", object, &cause);
        let flags = libc::SOCK_RAW | libc::SOCK_NONBLOCK;
        let fd = socket(domain, flags, protocol).map_err(fail)?;
        // A bit for each type that is not wanted; without it every ping of the host would be queued here.
        match family {
            Family::V4 => set_option(fd.as_fd(), SOL_RAW, ICMP_FILTER, &[0xff; 4]),
            Family::V6 => set_option(fd.as_fd(), libc::SOL_ICMPV6, ICMPV6_FILTER, &[0xff; 32]),
        }
        .map_err(fail)?;
        Ok(IcmpSender { fd })
    }

    /// Sends a message, ICMP header first. The kernel chooses the source and, for IPv6, fills in the
    /// checksum.
    pub fn send(&self, to: IpAddr, message: &[u8]) -> Result<()> {
        rustix::net::sendto(&self.fd, message, SendFlags::empty(), &SocketAddr::new(to, 0))
            .map(drop)
            .map_err(|errno| Error::from_errno("send ICMP to", to.to_string(), errno))
    }
}

fn new_socket(family: libc::c_int, kind: libc::c_int) -> io::Result<OwnedFd> {
    socket(family, kind | libc::SOCK_NONBLOCK, 0)
}

pub(crate) fn new_blocking_socket(family: libc::c_int, kind: libc::c_int) -> io::Result<OwnedFd> {
    socket(family, kind, 0)
}

pub(crate) fn socket(
    family: libc::c_int,
    kind: libc::c_int,
    protocol: libc::c_int,
) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
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

/// Whole UDP packets for one port, by the kernel's classic filter language.
fn attach_filter(fd: BorrowedFd<'_>, port: u16) -> io::Result<()> {
    let (load, jump) = (libc::BPF_LD, libc::BPF_JMP | libc::BPF_K);
    let program = [
        op(load | libc::BPF_B | libc::BPF_ABS, 0, 0, 9),
        op(jump | libc::BPF_JEQ, 0, 6, IPPROTO_UDP),
        op(load | libc::BPF_H | libc::BPF_ABS, 0, 0, 6),
        op(jump | libc::BPF_JSET, 4, 0, FRAGMENT_OFFSET),
        op(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0),
        op(load | libc::BPF_H | libc::BPF_IND, 0, 0, 2),
        op(jump | libc::BPF_JEQ, 0, 1, u32::from(port)),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, u32::from(u16::MAX)),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    attach_program(fd, &program)
}

/// An instruction: what it does, how many to skip if a comparison holds or not, and its number.
pub(crate) fn op(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Lets a socket hear only what a program of the kernel's classic filter language accepts.
pub(crate) fn attach_program(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let length = program.len() as libc::c_ushort;
    let filter = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which lives until the call returns, and writes nothing to it.
    let set = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    check(set).map(drop)
}

pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &[u8],
) -> io::Result<()> {
    // SAFETY: the value is valid for the length given.
    let set = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    check(set).map(drop)
}

pub(crate) fn check<T: PartialOrd + Default>(answer: T) -> io::Result<T> {
    if answer < T::default() { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
