// SPDX-License-Identifier: Apache-2.0
//! Messages on the container's link. Sockets live in its namespace, and so keep it alive: they are
//! opened for a question and closed with its answer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use kernel::socket::packet::{self, PacketSocket};
use kernel::{Monitor, Netns, addr};

use super::super::exchange::Phase;
use super::super::lease::Terms;
use super::super::{v4, v6};
use super::interface::Spot;

/// The largest message we take.
const BUFFER_LEN: usize = 4096;

/// A message as it came, and the hardware address that it came from.
pub type Received = (Vec<u8>, Option<[u8; 6]>);

/// Why a message did not go out.
#[derive(Debug)]
pub enum Failure {
    /// The namespace or its interface is not there any more.
    Gone,
    /// Something else, which may pass.
    Problem(String),
}

impl From<kernel::Error> for Failure {
    fn from(cause: kernel::Error) -> Failure {
        Failure::Problem(cause.to_string())
    }
}

/// The sockets of one family.
pub trait Wire {
    /// Sends a message, and listens for the answer.
    fn send(
        &mut self,
        spot: &Spot,
        phase: Phase,
        message: &[u8],
        terms: Option<&Terms>,
    ) -> Result<(), Failure>;

    /// What has come.
    fn receive(&mut self, spot: &Spot) -> Vec<Received>;

    /// What to wait for.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Stops listening.
    fn close(&mut self);
}

/// DHCPv4: an interface without an address can send and hear whole packets only.
#[derive(Debug, Default)]
pub struct Wire4 {
    socket: Option<PacketSocket>,
    /// Holds the port while answers come to an address that the kernel knows: it would tell the server
    /// that nobody is there.
    port: Option<UdpSocket>,
}

impl Wire for Wire4 {
    fn send(
        &mut self,
        spot: &Spot,
        phase: Phase,
        message: &[u8],
        terms: Option<&Terms>,
    ) -> Result<(), Failure> {
        let (ns, _) = spot.enter().ok_or(Failure::Gone)?;
        let opened = match self.socket.take() {
            Some(socket) => socket,
            None => ns.enter(|| PacketSocket::open(spot.index(), v4::CLIENT_PORT)).flatten()?,
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
                self.port = hold_port(&ns, spot, own);
                // By the kernel's routes and neighbours; where those fail, by what we know ourselves.
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
                self.port = hold_port(&ns, spot, own);
                let packet = v4::frame::wrap(own, Ipv4Addr::BROADCAST, message);
                Ok(socket.send(packet::BROADCAST, &packet)?)
            }
            _ => {
                let (from, to) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
                Ok(socket.send(packet::BROADCAST, &v4::frame::wrap(from, to, message))?)
            }
        }
    }

    fn receive(&mut self, _: &Spot) -> Vec<Received> {
        let Some(socket) = &self.socket else { return Vec::new() };
        let mut buffer = [0; BUFFER_LEN];
        let mut received = Vec::new();
        // An error is of the interface, and the next attempt to send tells of it.
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

/// None where a client in the container has the port, which then answers to the kernel as well.
fn hold_port(ns: &Netns, spot: &Spot, own: Ipv4Addr) -> Option<UdpSocket> {
    let local = SocketAddr::from((own, v4::CLIENT_PORT));
    ns.enter(|| packet::udp(spot.name()?, local).ok()).ok()?
}

/// DHCPv6: plain UDP from the interface's link-local address, once it has one.
#[derive(Debug, Default)]
pub struct Wire6 {
    socket: Option<UdpSocket>,
    waiting: Option<(Vec<u8>, Monitor)>,
}

impl Wire for Wire6 {
    fn send(
        &mut self,
        spot: &Spot,
        _: Phase,
        message: &[u8],
        _: Option<&Terms>,
    ) -> Result<(), Failure> {
        let (ns, _) = spot.enter().ok_or(Failure::Gone)?;
        let opened = match self.socket.take() {
            Some(socket) => socket,
            None => {
                let name = spot.name().ok_or(Failure::Gone)?;
                let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, v6::CLIENT_PORT));
                ns.enter(|| packet::udp(name, local)).flatten()?
            }
        };
        let socket = self.socket.insert(opened);
        if !has_no_address(&send_to_servers(socket, spot, message)) {
            self.waiting = None;
            return Ok(());
        }
        // Listen first, then look again: the address may come in between.
        let monitor = ns.enter(addr::monitor).flatten()?;
        if has_no_address(&send_to_servers(socket, spot, message)) {
            self.waiting = Some((message.to_vec(), monitor));
        }
        Ok(())
    }

    fn receive(&mut self, spot: &Spot) -> Vec<Received> {
        let Some(socket) = &self.socket else { return Vec::new() };
        if let Some((message, monitor)) = &mut self.waiting {
            let heard = monitor.receive(Instant::now(), |_, _| {});
            if heard.is_err() || !has_no_address(&send_to_servers(socket, spot, message)) {
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

fn send_to_servers(socket: &UdpSocket, spot: &Spot, message: &[u8]) -> io::Result<usize> {
    let to = SocketAddrV6::new(v6::SERVERS, v6::SERVER_PORT, 0, spot.index().0);
    socket.send_to(message, to)
}

/// The kernel is not done with the link-local address; any other failure is like a lost packet.
fn has_no_address(sent: &io::Result<usize>) -> bool {
    let kind = sent.as_ref().err().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::AddrNotAvailable | io::ErrorKind::NetworkUnreachable))
}
