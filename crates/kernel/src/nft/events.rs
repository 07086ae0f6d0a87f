// SPDX-License-Identifier: Apache-2.0
//! What changes in nf_tables, as it happens. Listen first, then read the state, and nothing is missed
//! between. Our own changes are told as well.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Instant;

use ::netlink::{Attrs, Monitor, Protocol, Received};

use super::dump::HEADER_LEN;
use super::{SUBSYS_NFTABLES, TableFamily};
use crate::error::{Error, Result};

const NFNLGRP_NFTABLES: u32 = 7; // linux/netfilter/nfnetlink.h

// linux/netfilter/nf_tables.h
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_DELCHAIN: u16 = 5;
const NFT_MSG_NEWRULE: u16 = 6;
const NFT_MSG_DELRULE: u16 = 8;
const NFT_MSG_NEWGEN: u16 = 15;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_RULE_CHAIN: u16 = 2;
/// In messages about any object the first attribute is the table's name.
const TABLE_NAME: u16 = 1;

/// Room for some thousand events: iptables and kube-proxy write whole tables anew.
const BUFFER: usize = 4 << 20;

/// Something in a table is new, has changed or was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The packets that the table sees.
    pub family: TableFamily,
    /// The table's name.
    pub table: String,
    /// The chain that is meant, or whose rule; none for the table itself, sets and elements.
    pub chain: Option<String>,
}

/// A socket that listens in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Events {
    monitor: Monitor,
}

impl Events {
    /// Begins to listen in the calling thread's namespace.
    pub fn listen() -> Result<Self> {
        let monitor = Monitor::open(Protocol::Netfilter, &[NFNLGRP_NFTABLES])
            .and_then(|monitor| monitor.set_receive_buffer(BUFFER).map(|()| monitor));
        match monitor {
            Ok(monitor) => Ok(Self { monitor }),
            Err(cause) => Err(Error::new("listen to changes of nf_tables", "", cause)),
        }
    }

    /// Waits for events until `deadline` (a past one: takes only what is there) and hands some of them
    /// to `each`. After [`Received::Overrun`] events are lost for good: read the whole state again.
    pub fn receive(&mut self, deadline: Instant, mut each: impl FnMut(Event)) -> Result<Received> {
        let received = self.monitor.receive(deadline, |kind, payload| {
            if let Some(event) = parse(kind, payload) {
                each(event);
            }
        });
        received.map_err(|cause| Error::new("wait for changes of nf_tables", "", cause))
    }
}

/// For who waits for many things at once.
impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.monitor.as_fd().as_raw_fd()
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }
}

/// None for what is in no table, as the number of the generation, which follows every change.
fn parse(kind: u16, payload: &[u8]) -> Option<Event> {
    if kind >> 8 != SUBSYS_NFTABLES {
        return None;
    }
    let attrs = Attrs::after(payload, HEADER_LEN);
    let text = |kind| attrs.find_kind(kind).and_then(|attr| attr.str()).map(str::to_owned);
    let chain = match kind & 0xff {
        NFT_MSG_NEWCHAIN | NFT_MSG_DELCHAIN => text(NFTA_CHAIN_NAME),
        NFT_MSG_NEWRULE | NFT_MSG_DELRULE => text(NFTA_RULE_CHAIN),
        NFT_MSG_NEWGEN => return None,
        _ => None,
    };
    let family = TableFamily::from_number(*payload.first()?)?;
    Some(Event { family, table: text(TABLE_NAME)?, chain })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(kind in 0xa00_u16..0xa40, bytes: Vec<u8>) {
            let _ = parse(kind, &bytes);
        }
    }
}
