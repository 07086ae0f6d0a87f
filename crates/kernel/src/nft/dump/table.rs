// SPDX-License-Identifier: Apache-2.0
//! A table that is there, with its chains and sets: enough to tell whether somebody has changed it.

use ::netlink::Attrs;

use super::{
    HEADER_LEN, NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, NFTA_SET_NAME, NFTA_SET_TABLE, NFTA_TABLE_NAME,
};
use crate::error::Result;
use crate::nft::objects::{Chain, Set};
use crate::nft::{Nft, Table, message};

// linux/netfilter/nf_tables.h
const NFT_MSG_GETTABLE: u16 = 1;
const NFT_MSG_GETCHAIN: u16 = 4;
const NFT_MSG_GETSET: u16 = 10;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_SET_FLAGS: u16 = 3;
const NFTA_SET_KEY_TYPE: u16 = 4;
const NF_ACCEPT: u32 = 1; // linux/netfilter.h

/// A table that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedTable {
    /// It sees packets: nobody has put it to sleep.
    pub is_awake: bool,
    /// Its chains.
    pub chains: Vec<ObservedChain>,
    /// Its sets and maps.
    pub sets: Vec<ObservedSet>,
}

/// A chain that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedChain {
    /// Its name.
    pub name: String,
    /// Type, hook, priority and policy of a base chain.
    base: Option<(String, u32, i32, u32)>,
}

impl ObservedChain {
    /// Whether packets enter it where they would enter this one, and pass at its end.
    pub fn is_like(&self, chain: &Chain<'_>) -> bool {
        let wanted = chain.base.map(|base| {
            (base.kind.as_str().to_owned(), base.hook as u32, base.priority, NF_ACCEPT)
        });
        self.name == chain.name && self.base == wanted
    }

    fn read(payload: &[u8], table: Table<'_>) -> Option<Self> {
        let attrs = Attrs::after(payload, HEADER_LEN);
        let text = |kind| attrs.find_kind(kind).and_then(|attr| attr.str());
        let name = text(NFTA_CHAIN_NAME).filter(|_| text(NFTA_CHAIN_TABLE) == Some(table.name))?;
        let hook = attrs.find_kind(NFTA_CHAIN_HOOK).map(|hook| hook.nested());
        let base = hook.and_then(|hook| {
            let number = |kind| hook.find_kind(kind)?.be32();
            let policy = attrs.find_kind(NFTA_CHAIN_POLICY)?.be32()?;
            let priority = number(NFTA_HOOK_PRIORITY)?.cast_signed();
            let kind = text(NFTA_CHAIN_TYPE)?.to_owned();
            Some((kind, number(NFTA_HOOK_HOOKNUM)?, priority, policy))
        });
        Some(Self { name: name.to_owned(), base })
    }
}

/// A set or map that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedSet {
    /// Its name.
    pub name: String,
    flags: u32,
    key_type: u32,
}

impl ObservedSet {
    /// Whether it has such a name, and such keys.
    pub fn is_like(&self, set: &Set<'_>) -> bool {
        self.name == set.name && self.flags == set.flags() && self.key_type == set.key_type()
    }

    fn read(payload: &[u8], table: Table<'_>) -> Option<Self> {
        let attrs = Attrs::after(payload, HEADER_LEN);
        let text = |kind| attrs.find_kind(kind).and_then(|attr| attr.str());
        let name = text(NFTA_SET_NAME).filter(|_| text(NFTA_SET_TABLE) == Some(table.name))?;
        let number = |kind| attrs.find_kind(kind).and_then(|attr| attr.be32()).unwrap_or(0);
        let (flags, key_type) = (number(NFTA_SET_FLAGS), number(NFTA_SET_KEY_TYPE));
        Some(Self { name: name.to_owned(), flags, key_type })
    }
}

impl Nft {
    /// A table with its chains and sets; `None` where it is missing.
    pub fn table(&self, table: Table<'_>) -> Result<Option<ObservedTable>> {
        let mut one = message(NFT_MSG_GETTABLE, 0, table.family);
        one.str(NFTA_TABLE_NAME, table.name);
        let Some(payload) = self.look("look for table", table.object(""), &one)? else {
            return Ok(None);
        };
        let flags = Attrs::after(&payload, HEADER_LEN).find_kind(NFTA_TABLE_FLAGS);
        let one = message(NFT_MSG_GETCHAIN, 0, table.family);
        let read = |payload: &[u8]| ObservedChain::read(payload, table);
        let chains = self.list("list chains", table.object(""), &one, read)?;
        let mut one = message(NFT_MSG_GETSET, 0, table.family);
        one.str(NFTA_SET_TABLE, table.name);
        let read = |payload: &[u8]| ObservedSet::read(payload, table);
        let sets = self.list("list sets", table.object(""), &one, read)?;
        let is_awake = flags.and_then(|flags| flags.be32()).unwrap_or(0) == 0;
        Ok(Some(ObservedTable { is_awake, chains, sets }))
    }
}
