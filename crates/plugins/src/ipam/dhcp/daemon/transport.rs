// SPDX-License-Identifier: Apache-2.0
//! Sends and receives messages on the container's link. Sockets keep the container's namespace alive, so they are opened
//! for a message and closed after the reply.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use kernel::socket::packet::{self, PacketSocket};
use kernel::{Monitor, Netns, addr};

use super::super::exchange::Phase;
use super::super::lease::Terms;
use super::super::{v4, v6};
use super::interface::ContainerInterface;

/// Maximum size of a received message.
const BUFFER_LEN: usize = 4096;

/// A received message with the MAC address of the sender.
pub(super) type Received = (Vec<u8>, Option<[u8; 6]>);

/// The reason why a message was not sent.
#[derive(Debug)]
pub(super) enum SendError {
    /// The namespace or its interface is gone.
    Gone,
    /// Another error, which may be temporary.
    Other(String),
}

impl From<kernel::Error> for SendError {
    fn from(cause: kernel::Error) -> SendError {
        SendError::Other(cause.to_string())
    }
}

/// The sockets of one address family.
pub(super) trait Transport {
    /// Sends a message and starts to listen for the reply.
    fn send(
        &mut self,
        interface: &ContainerInterface,
        phase: Phase,
        message: &[u8],
        terms: Option<&Terms>,
    ) -> Result<(), SendError>;

    /// Returns the received messages.
    fn receive(&mut self, interface: &ContainerInterface) -> Vec<Received>;

    /// Returns the descriptors to wait for.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Closes the sockets.
    fn close(&mut self);
}

/// DHCPv4 over packet sockets, because the interface may have no address.
#[derive(Debug, Default)]
pub(super) struct Transport4 {
    socket: Option<PacketSocket>,
    /// Keeps the port open while replies go to an address of the interface. Otherwise the kernel would answer them with
    /// "port unreachable".
    port: Option<UdpSocket>,
}

impl Transport for Transport4 {
    fn send(
        &mut self,
        interface: &ContainerInterface,
        phase: Phase,
        message: &[u8],
        terms: Option<&Terms>,
    ) -> Result<(), SendError> {
        let (ns, _) = interface.enter().ok_or(SendError::Gone)?;
        let opened = match self.socket.take() {
            Some(socket) => socket,
            None => {
                ns.enter(|| PacketSocket::open(interface.index(), v4::CLIENT_PORT)).flatten()?
            }
        };
        let socket = self.socket.insert(opened);
        let own = terms.map(|terms| terms.address.addr()).and_then(|own| match own {
            IpAddr::V4(own) => Some(own),
            IpAddr::V6(_) => None,
        });
        let server = terms.and_then(|terms| <[u8; 4]>::try_from(terms.server.as_slice()).ok());
        let server = server.map_or(Ipv4Addr::BROADCAST, Ipv4Addr::from);
        let mac = terms.and_then(Terms::server_mac).unwrap_or(packet::BROADCAST);
        match (phase, own) {
            (Phase::Renew, Some(own)) => {
                self.port = open_port(&ns, interface, own);
                // Send through the kernel's routes. If that fails, send to the stored MAC address of the server.
                let sent = self
                    .port
                    .as_ref()
                    .map(|port| port.send_to(message, SocketAddr::from((server, v4::SERVER_PORT))));
                match sent {
                    Some(Ok(_)) => Ok(()),
                    _ => Ok(socket.send(mac, &v4::frame::wrap(own, server, message))?),
                }
            }
            (Phase::Release, Some(own)) => {
                Ok(socket.send(mac, &v4::frame::wrap(own, server, message))?)
            }
            (Phase::Rebind, Some(own)) => {
                self.port = open_port(&ns, interface, own);
                let packet = v4::frame::wrap(own, Ipv4Addr::BROADCAST, message);
                Ok(socket.send(packet::BROADCAST, &packet)?)
            }
            _ => {
                let (from, to) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
                Ok(socket.send(packet::BROADCAST, &v4::frame::wrap(from, to, message))?)
            }
        }
    }

    fn receive(&mut self, _: &ContainerInterface) -> Vec<Received> {
        let Some(socket) = &self.socket else { return Vec::new() };
        let mut buffer = [0; BUFFER_LEN];
        let mut received = Vec::new();
        // An error concerns the interface, and the next send reports it.
        while let Ok(Some((length, from))) = socket.receive(&mut buffer) {
            let message = v4::frame::unwrap(&buffer[..length.min(BUFFER_LEN)]);
            received.extend(message.map(|message| (message.to_vec(), Some(from.0))));
        }
        received
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.socket.iter().map(AsFd::as_fd).collect()
    }

    fn close(&mut self) {
        (self.socket, self.port) = (None, None);
    }
}

/// Opens the client port. Returns `None` if a client in the container has the port; then the port is open anyway.
fn open_port(ns: &Netns, interface: &ContainerInterface, own: Ipv4Addr) -> Option<UdpSocket> {
    let local = SocketAddr::from((own, v4::CLIENT_PORT));
    ns.enter(|| packet::udp(interface.name()?, local).ok()).ok()?
}

/// DHCPv6 over UDP from the interface's link-local address, as soon as it has one.
#[derive(Debug, Default)]
pub(super) struct Transport6 {
    socket: Option<UdpSocket>,
    /// Message that waits for the link-local address.
    waiting: Option<(Vec<u8>, Monitor)>,
}

impl Transport for Transport6 {
    fn send(
        &mut self,
        interface: &ContainerInterface,
        _: Phase,
        message: &[u8],
        _: Option<&Terms>,
    ) -> Result<(), SendError> {
        let (ns, _) = interface.enter().ok_or(SendError::Gone)?;
        let opened = match self.socket.take() {
            Some(socket) => socket,
            None => {
                let name = interface.name().ok_or(SendError::Gone)?;
                let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, v6::CLIENT_PORT));
                ns.enter(|| packet::udp(name, local)).flatten()?
            }
        };
        let socket = self.socket.insert(opened);
        if !has_no_address(&send_to_servers(socket, interface, message)) {
            self.waiting = None;
            return Ok(());
        }
        // Watch for addresses first, then try again: the address may appear in between.
        let monitor = ns.enter(addr::monitor).flatten()?;
        if has_no_address(&send_to_servers(socket, interface, message)) {
            self.waiting = Some((message.to_vec(), monitor));
        }
        Ok(())
    }

    fn receive(&mut self, interface: &ContainerInterface) -> Vec<Received> {
        let Some(socket) = &self.socket else { return Vec::new() };
        if let Some((message, monitor)) = &mut self.waiting {
            let events = monitor.receive(Instant::now(), |_, _| {});
            if events.is_err() || !has_no_address(&send_to_servers(socket, interface, message)) {
                self.waiting = None;
            }
        }
        let mut buffer = [0; BUFFER_LEN];
        let mut received = Vec::new();
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            if from.port() == v6::SERVER_PORT {
                received.push((buffer[..length].to_vec(), None));
            }
        }
        received
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let monitor = self.waiting.iter().map(|(_, monitor)| monitor.as_fd());
        self.socket.iter().map(AsFd::as_fd).chain(monitor).collect()
    }

    fn close(&mut self) {
        (self.socket, self.waiting) = (None, None);
    }
}

fn send_to_servers(
    socket: &UdpSocket,
    interface: &ContainerInterface,
    message: &[u8],
) -> io::Result<usize> {
    let to = SocketAddrV6::new(v6::SERVERS, v6::SERVER_PORT, 0, interface.index().0);
    socket.send_to(message, to)
}

/// Returns whether the link-local address is not ready yet. Any other error counts as a lost packet.
fn has_no_address(sent: &io::Result<usize>) -> bool {
    let kind = sent.as_ref().err().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::AddrNotAvailable | io::ErrorKind::NetworkUnreachable))
}
