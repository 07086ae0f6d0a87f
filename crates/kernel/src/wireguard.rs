// SPDX-License-Identifier: Apache-2.0
//! WireGuard: keys and peers of a link of kind `wireguard`. [`crate::link`], [`crate::addr`] and
//! [`crate::route`] create the link, its addresses and its routes.
//!
//! The kernel computes the public key: set the private key of a link and read the public one.

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

/// A WireGuard link as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Device {
    pub index: IfIndex,
    pub name: IfName,
    /// Private key; `None` until it is set.
    pub private_key: Option<PrivateKey>,
    /// Public key, computed from the private key.
    pub public_key: Option<PublicKey>,
    /// UDP port. If none was set, the kernel chooses one while the link is up.
    pub listen_port: u16,
    /// Mark of the packets that the link sends; 0 for none.
    pub fwmark: u32,
    pub peers: Vec<Peer>,
}

/// A peer as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Public key, which identifies the peer.
    pub public_key: PublicKey,
    /// Additional shared secret.
    pub preshared_key: Option<PresharedKey>,
    /// Last known address of the peer, received or configured; `None` if there is none yet.
    pub endpoint: Option<SocketAddr>,
    /// Interval of keepalive packets in seconds; 0 for none.
    pub keepalive: u16,
    /// Addresses that the peer may send from and that are routed to it, in no particular order.
    pub allowed_ips: Vec<IpNet>,
    /// Time of the last handshake.
    pub last_handshake: Option<SystemTime>,
    /// Number of received bytes.
    pub rx_bytes: u64,
    /// Number of sent bytes.
    pub tx_bytes: u64,
}

/// A WireGuard socket in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Wireguard {
    socket: Socket,
    family: u16,
}

impl Wireguard {
    /// Opens a socket in the calling thread's namespace. Fails with [`Error::is_unsupported`] on a
    /// kernel without WireGuard.
    pub fn open() -> Result<Self> {
        let fail = |cause| Error::new("open WireGuard socket", "", cause);
        let socket = Socket::open(Protocol::Generic).map_err(fail)?;
        let none = "this kernel has no WireGuard";
        match genl::family_id(&socket, FAMILY).map_err(fail)? {
            Some(family) => Ok(Self { socket, family }),
            None => Err(fail(::netlink::Error::explained(Errno::OPNOTSUPP, none))),
        }
    }

    /// Changes a link and its peers. A message holds some hundred peers; more are sent in several
    /// messages. Returns the first error.
    pub fn set(&self, link: impl Into<Target>, change: &DeviceChange<'_>) -> Result<()> {
        let link = link.into();
        let fail = |cause| Error::new("set WireGuard keys and peers of", link.to_string(), cause);
        let messages = write::messages(self.family, link, change);
        match self.socket.request(&messages).map_err(fail)?.into_iter().next() {
            Some(failure) => Err(fail(failure.error)),
            None => Ok(()),
        }
    }

    /// Reads a link with its keys and peers; `None` if the link does not exist.
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
