// SPDX-License-Identifier: Apache-2.0
//! A table as read from the kernel, with enough about its chains and sets to detect a change.

use ::netlink::Attrs;

use super::name_in_table;
use crate::nft::Table;
use crate::nft::objects::{Chain, Set};
use crate::nft::uapi::{
    HEADER_LEN, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_POLICY, NFTA_CHAIN_TABLE,
    NFTA_CHAIN_TYPE, NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY, NFTA_SET_FLAGS, NFTA_SET_KEY_TYPE,
    NFTA_SET_NAME, NFTA_SET_TABLE, NFTA_TABLE_FLAGS,
};

const NF_ACCEPT: u32 = 1; // linux/netfilter.h

/// A table as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ObservedTable {
    /// The table does not have the flag `dormant`, which disables its chains.
    pub is_active: bool,
    pub chains: Vec<ObservedChain>,
    /// Sets and maps.
    pub sets: Vec<ObservedSet>,
}

/// Returns whether a table has no flags; the flag that matters is `dormant`.
pub(super) fn is_active(payload: &[u8]) -> bool {
    let flags = Attrs::after(payload, HEADER_LEN).find_kind(NFTA_TABLE_FLAGS);
    flags.and_then(|flags| flags.be32()).unwrap_or(0) == 0
}

/// A chain as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ObservedChain {
    pub name: String,
    /// Type, hook, priority and policy of a base chain.
    base: Option<(String, u32, i32, u32)>,
}

impl ObservedChain {
    /// Returns whether the chain has the same name, hook and priority, and the policy `accept`.
    pub fn is_like(&self, chain: &Chain<'_>) -> bool {
        let base = chain.base.map(|base| {
            (base.kind.as_str().to_owned(), base.hook as u32, base.priority, NF_ACCEPT)
        });
        self.name == chain.name && self.base == base
    }

    pub(super) fn parse(payload: &[u8], table: Table<'_>) -> Option<Self> {
        let attrs = Attrs::after(payload, HEADER_LEN);
        let name = name_in_table(&attrs, table, NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME)?;
        let hook = attrs.find_kind(NFTA_CHAIN_HOOK).map(|hook| hook.nested());
        let base = hook.and_then(|hook| {
            let number = |kind| hook.find_kind(kind)?.be32();
            let policy = attrs.find_kind(NFTA_CHAIN_POLICY)?.be32()?;
            let priority = number(NFTA_HOOK_PRIORITY)?.cast_signed();
            let kind = attrs.find_kind(NFTA_CHAIN_TYPE)?.str()?.to_owned();
            Some((kind, number(NFTA_HOOK_HOOKNUM)?, priority, policy))
        });
        Some(Self { name: name.to_owned(), base })
    }
}

/// A set or map as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ObservedSet {
    pub name: String,
    flags: u32,
    key_type: u32,
}

impl ObservedSet {
    /// Returns whether the set has the same name, flags and key type.
    pub fn is_like(&self, set: &Set<'_>) -> bool {
        self.name == set.name && self.flags == set.flags() && self.key_type == set.key_type()
    }

    pub(super) fn parse(payload: &[u8], table: Table<'_>) -> Option<Self> {
        let attrs = Attrs::after(payload, HEADER_LEN);
        let name = name_in_table(&attrs, table, NFTA_SET_TABLE, NFTA_SET_NAME)?;
        let number = |kind| attrs.find_kind(kind).and_then(|attr| attr.be32()).unwrap_or(0);
        let (flags, key_type) = (number(NFTA_SET_FLAGS), number(NFTA_SET_KEY_TYPE));
        Some(Self { name: name.to_owned(), flags, key_type })
    }
}
