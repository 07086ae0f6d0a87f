// SPDX-License-Identifier: Apache-2.0
//! WireGuard: keys and peers of a link of kind `wireguard`. The link itself, its addresses and its
//! routes are made as those of any other.
//!
//! The kernel computes the public key: give a link its private key and read the other one.

mod key;
mod read;
mod write;

use std::net::SocketAddr;
use std::time::SystemTime;

use ::netlink::{Errno, Protocol, Socket};
use ipnet::IpNet;

pub use self::key::{KeyError, PresharedKey, PrivateKey, PublicKey};
pub use self::write::{DeviceChange, PeerChange};
use crate::error::{Error, Result};
use crate::genl;
use crate::link::Target;
use crate::types::{IfIndex, IfName};

const FAMILY: &str = "wireguard"; // linux/wireguard.h, WG_GENL_NAME
const VERSION: u8 = 1; // linux/wireguard.h, WG_GENL_VERSION
const WG_CMD_GET_DEVICE: u8 = 0; // linux/wireguard.h
const WG_CMD_SET_DEVICE: u8 = 1; // linux/wireguard.h

const WGDEVICE_A_IFINDEX: u16 = 1; // linux/wireguard.h
const WGDEVICE_A_IFNAME: u16 = 2; // linux/wireguard.h
const WGDEVICE_A_PRIVATE_KEY: u16 = 3; // linux/wireguard.h
const WGDEVICE_A_LISTEN_PORT: u16 = 6; // linux/wireguard.h
const WGDEVICE_A_FWMARK: u16 = 7; // linux/wireguard.h
const WGDEVICE_A_PEERS: u16 = 8; // linux/wireguard.h

const WGPEER_A_PUBLIC_KEY: u16 = 1; // linux/wireguard.h
const WGPEER_A_PRESHARED_KEY: u16 = 2; // linux/wireguard.h
const WGPEER_A_ENDPOINT: u16 = 4; // linux/wireguard.h
const WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL: u16 = 5; // linux/wireguard.h
const WGPEER_A_ALLOWEDIPS: u16 = 9; // linux/wireguard.h

const WGALLOWEDIP_A_FAMILY: u16 = 1; // linux/wireguard.h
const WGALLOWEDIP_A_IPADDR: u16 = 2; // linux/wireguard.h
const WGALLOWEDIP_A_CIDR_MASK: u16 = 3; // linux/wireguard.h

/// A WireGuard link as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its index.
    pub index: IfIndex,
    /// Its name.
    pub name: IfName,
    /// None until it is set.
    pub private_key: Option<PrivateKey>,
    /// What the private key makes it.
    pub public_key: Option<PublicKey>,
    /// The UDP port; the kernel's choice while it is up and none was set.
    pub listen_port: u16,
    /// The mark of the packets it sends; 0 is none.
    pub fwmark: u32,
    /// Whom it talks to.
    pub peers: Vec<Peer>,
}

/// A peer as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Who it is.
    pub public_key: PublicKey,
    /// A secret that both know in addition.
    pub preshared_key: Option<PresharedKey>,
    /// Where it was last heard from, or set to be; none until one of both.
    pub endpoint: Option<SocketAddr>,
    /// Seconds between packets that keep paths through NAT open; 0 is none.
    pub keepalive: u16,
    /// What it may send, and what is sent to it. Unordered.
    pub allowed_ips: Vec<IpNet>,
    /// When both last agreed on a session.
    pub last_handshake: Option<SystemTime>,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
}

/// A socket for WireGuard in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Wireguard {
    socket: Socket,
    family: u16,
}

impl Wireguard {
    /// Opens a socket in the calling thread's namespace. A kernel without WireGuard is
    /// [`Error::is_unsupported`].
    pub fn open() -> Result<Self> {
        let fail = |cause| Error::new("open WireGuard socket", "", cause);
        let socket = Socket::open(Protocol::Generic).map_err(fail)?;
        let none = "this kernel has no WireGuard";
        match genl::number_of(&socket, FAMILY).map_err(fail)? {
            Some(family) => Ok(Self { socket, family }),
            None => Err(fail(::netlink::Error::explained(Errno::OPNOTSUPP, none))),
        }
    }

    /// Changes a link and some or all of its peers. More peers than fit into one message (some hundred)
    /// go in several, one after the other; the first refusal is returned.
    pub fn set(&self, link: impl Into<Target>, change: &DeviceChange<'_>) -> Result<()> {
        let link = link.into();
        let fail = |cause| Error::new("set WireGuard keys and peers of", link.to_string(), cause);
        let messages = write::messages(self.family, link, change);
        match self.socket.request(&messages).map_err(fail)?.into_iter().next() {
            Some(failure) => Err(fail(failure.error)),
            None => Ok(()),
        }
    }

    /// A link with its keys and peers; none if there is no link of this name.
    pub fn get(&self, link: impl Into<Target>) -> Result<Option<Device>> {
        let link = link.into();
        let mut message = genl::message(self.family, WG_CMD_GET_DEVICE, VERSION);
        write::put_target(&mut message, link);
        match self.socket.dump(&message, |_, payload| Some(read::Part::parse(payload))) {
            Ok(parts) => Ok(read::join(parts)),
            Err(cause) if cause.errno == Errno::NODEV => Ok(None),
            Err(cause) => {
                Err(Error::new("read WireGuard keys and peers of", link.to_string(), cause))
            }
        }
    }
}
