// SPDX-License-Identifier: Apache-2.0
//! Who takes part in what is for many: multicast and broadcast between pods of different nodes.

use overlay::lease::Lease;

use super::Session;
use crate::multicast::{Command, Peer};
use crate::run::Worker;

impl Worker {
    /// This session's subnets and peers, and no others.
    pub(super) fn begin_multicast<'a>(
        &self,
        session: &Session,
        peers: impl Iterator<Item = (&'a str, &'a Lease)>,
    ) {
        if self.multicast.is_none() {
            return;
        }
        let subnets = session.held.lease.subnets.iter().collect();
        let peers = peers.map(|(name, lease)| peer(name, lease)).collect();
        self.tell_multicast(Command::Begin { subnets, peers });
    }

    /// A peer has come or is another.
    pub(super) fn add_to_multicast(&self, name: &str, lease: &Lease) {
        if self.multicast.is_some() {
            self.tell_multicast(Command::Set(peer(name, lease)));
        }
    }

    /// A peer has left.
    pub(super) fn remove_from_multicast(&self, name: &str) {
        self.tell_multicast(Command::Remove(name.to_owned()));
    }

    /// Where it is switched off nobody listens.
    fn tell_multicast(&self, command: Command) {
        if let Some(multicast) = &self.multicast {
            let _ = multicast.send(command);
        }
    }
}

fn peer(name: &str, lease: &Lease) -> Peer {
    Peer { name: name.to_owned(), subnets: lease.subnets.iter().collect() }
}
