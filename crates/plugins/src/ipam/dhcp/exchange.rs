// SPDX-License-Identifier: Apache-2.0
//! What a client and servers have to say to each other, in whichever protocol.

use std::net::IpAddr;
use std::time::Duration;

use super::lease::Terms;

/// What is being asked of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Who has an address for us? (DISCOVER, Solicit)
    Discover,
    /// This server's offer, please. (REQUEST, Request)
    Request,
    /// Is what we had before still ours? (REQUEST after a restart, Confirm)
    Confirm,
    /// The same server for more time. (REQUEST by unicast, Renew)
    Renew,
    /// Any server for more time. (REQUEST by broadcast, Rebind)
    Rebind,
    /// We do not need it any more. (RELEASE, Release)
    Release,
}

/// What a message is about.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    /// What is asked.
    pub phase: Phase,
    /// Tells the answers to this question from others.
    pub xid: u32,
    /// How long we have been asking.
    pub elapsed: Duration,
    /// The offer in [`Phase::Request`], the lease in all others but [`Phase::Discover`].
    pub terms: Option<&'a Terms>,
    /// The address we would like, as we had it before.
    pub hint: Option<IpAddr>,
}

/// What a server said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// We could have this.
    Offered(Terms),
    /// This is ours.
    Granted(Terms),
    /// What we had is still ours, on the same terms.
    Kept,
    /// It is not ours.
    Refused,
    /// It has been taken back.
    Released,
}

/// The messages of one protocol.
pub trait Dialog {
    /// What the protocol is called.
    const NAME: &'static str;
    /// Whether the request for an offer goes under the number of the question that led to it.
    const SAME_XID: bool;
    /// Whether a server confirms that a lease was taken back.
    const ANSWERS_RELEASE: bool;

    /// Whether an address is of its family.
    fn speaks_of(address: IpAddr) -> bool;

    /// The message to send.
    fn message(&self, about: &About) -> Vec<u8>;

    /// What an answer says; `None` where it is not for us, or not to this question.
    fn read(&self, about: &About, answer: &[u8]) -> Option<Heard>;
}
