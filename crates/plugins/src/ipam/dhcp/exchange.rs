// SPDX-License-Identifier: Apache-2.0
//! The messages between a client and servers, independent of the DHCP version.

use std::net::IpAddr;
use std::time::Duration;

use super::lease::Terms;

/// The phase of a lease, which decides the message to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Find servers (DISCOVER, Solicit).
    Discover,
    /// Accept the offer of a server (REQUEST, Request).
    Request,
    /// Confirm a lease after a restart (REQUEST, Confirm).
    Confirm,
    /// Ask the same server to extend the lease (REQUEST by unicast, Renew).
    Renew,
    /// Ask any server to extend the lease (REQUEST by broadcast, Rebind).
    Rebind,
    /// Give up the lease (RELEASE, Release).
    Release,
}

/// Values that a message depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageContext<'a> {
    pub phase: Phase,
    /// Transaction ID, which replies repeat.
    pub xid: u32,
    /// Time since the first message of the phase.
    pub elapsed: Duration,
    /// The offer in [`Phase::Request`], nothing in [`Phase::Discover`], the lease in all other phases.
    pub terms: Option<&'a Terms>,
    /// Preferred address, which the client had before.
    pub hint: Option<IpAddr>,
}

/// The meaning of a server's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// The server offers these terms.
    Offered(Terms),
    /// The server grants the lease.
    Granted(Terms),
    /// The lease is valid on the same terms.
    Confirmed,
    /// The server rejects the lease.
    Rejected,
    /// The server has received the release.
    Released,
}

/// A client of one DHCP version.
pub(super) trait DhcpClient {
    /// Name of the protocol.
    const NAME: &'static str;
    /// Whether a request has the transaction ID of the message that led to the offer.
    const REQUEST_KEEPS_XID: bool;
    /// Whether a server confirms a release.
    const SERVER_CONFIRMS_RELEASE: bool;

    /// Returns whether an address belongs to this family.
    fn is_own_family(address: IpAddr) -> bool;

    /// Returns the message to send.
    fn encode(&self, context: &MessageContext) -> Vec<u8>;

    /// Parses a reply. Returns `None` if it is for another client or another message.
    fn parse_reply(&self, context: &MessageContext, reply: &[u8]) -> Option<Reply>;
}
