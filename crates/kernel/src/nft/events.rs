// SPDX-License-Identifier: Apache-2.0
//! Events of nf_tables, including those of the program's own changes. Open the socket before
//! reading the state: then no change is missed in between.

use ::netlink::{Attrs, Protocol};

use super::TableFamily;
use super::uapi::{
    HEADER_LEN, NFT_MSG_DELCHAIN, NFT_MSG_DELRULE, NFT_MSG_NEWCHAIN, NFT_MSG_NEWGEN,
    NFT_MSG_NEWRULE, NFTA_CHAIN_NAME, NFTA_RULE_CHAIN, SUBSYS_NFTABLES,
};
use crate::error::Result;
use crate::events::EventSocket;

const NFNLGRP_NFTABLES: u32 = 7; // linux/netfilter/nfnetlink.h
/// Attribute with the table's name; it has the same number in messages about every kind of object.
const TABLE_NAME: u16 = 1;

/// An object of a table was added, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Family of the table.
    pub family: TableFamily,
    /// Name of the table.
    pub table: String,
    /// The chain that changed or whose rules changed; `None` for the table itself, sets and
    /// elements.
    pub chain: Option<String>,
}

/// A socket that receives the events of its namespace.
pub type Events = EventSocket<Event>;

impl Events {
    /// Opens a socket in the calling thread's namespace.
    pub fn listen() -> Result<Self> {
        Self::open("nf_tables", Protocol::Netfilter, &[NFNLGRP_NFTABLES], parse)
    }
}

/// Parses an event. Returns `None` for the generation, which follows every change, and for
/// everything else outside of tables.
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
        fn parser_never_panics(kind in 0xa00_u16..0xa40, bytes: Vec<u8>) {
            let _ = parse(kind, &bytes);
        }
    }
}
