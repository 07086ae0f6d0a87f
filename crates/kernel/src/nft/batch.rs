// SPDX-License-Identifier: Apache-2.0
//! A list of changes that the kernel applies completely or not at all.

use ::netlink::{Message, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL};

use super::objects::{Chain, Element, Place, Rule, Set, write_comment};
use super::ranges::{self, Range};
use super::uapi::{
    NFT_MSG_DELCHAIN, NFT_MSG_DELRULE, NFT_MSG_DELSET, NFT_MSG_DELSETELEM, NFT_MSG_DELTABLE,
    NFT_MSG_NEWCHAIN, NFT_MSG_NEWRULE, NFT_MSG_NEWSET, NFT_MSG_NEWSETELEM, NFT_MSG_NEWTABLE,
    NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, NFTA_LIST_ELEM, NFTA_RULE_CHAIN, NFTA_RULE_HANDLE,
    NFTA_RULE_TABLE, NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_TABLE,
    NFTA_SET_NAME, NFTA_SET_TABLE, NFTA_TABLE_NAME, NFTA_TABLE_USERDATA,
};
use super::{Table, message};

/// Maximum number of elements per message. An attribute holds at most 64 KiB, and an element with a
/// comment takes about 200 bytes.
const ELEMENTS_PER_MESSAGE: usize = 200;

/// A list of changes. The kernel checks them in order: add a chain before a rule that jumps to it.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    messages: Vec<Message>,
    /// Operation and object of each message, for errors.
    descriptions: Vec<(&'static str, String)>,
    has_removals: bool,
}

impl Batch {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether the batch has no changes.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub(super) fn has_removals(&self) -> bool {
        self.has_removals
    }

    /// Returns the operation and the object of the change at this index.
    pub(super) fn describe(&self, index: usize) -> Option<(&'static str, String)> {
        self.descriptions.get(index).cloned()
    }

    /// Adds a table; an existing table stays unchanged.
    pub fn add_table(&mut self, table: Table<'_>, comment: &str) {
        let mut change = message(NFT_MSG_NEWTABLE, NLM_F_CREATE, table.family);
        change.str(NFTA_TABLE_NAME, table.name);
        write_comment(&mut change, NFTA_TABLE_USERDATA, comment);
        self.push("add table", table.object(""), change);
    }

    /// Removes a table with all its contents.
    pub fn remove_table(&mut self, table: Table<'_>) {
        let mut change = message(NFT_MSG_DELTABLE, 0, table.family);
        change.str(NFTA_TABLE_NAME, table.name);
        self.push("remove table", table.object(""), change);
    }

    /// Adds a chain; an existing chain stays unchanged.
    pub fn add_chain(&mut self, chain: &Chain<'_>) {
        let mut change = message(NFT_MSG_NEWCHAIN, NLM_F_CREATE, chain.table.family);
        chain.write(&mut change);
        self.push("add chain", chain.table.object(chain.name), change);
    }

    /// Adds a chain, or fails if it exists.
    pub fn create_chain(&mut self, chain: &Chain<'_>) {
        let mut change = message(NFT_MSG_NEWCHAIN, NLM_F_CREATE | NLM_F_EXCL, chain.table.family);
        chain.write(&mut change);
        self.push("create chain", chain.table.object(chain.name), change);
    }

    /// Removes a chain. No rule and no element may refer to it.
    pub fn remove_chain(&mut self, table: Table<'_>, name: &str) {
        let mut change = message(NFT_MSG_DELCHAIN, 0, table.family);
        change.str(NFTA_CHAIN_TABLE, table.name).str(NFTA_CHAIN_NAME, name);
        self.push("remove chain", table.object(name), change);
    }

    /// Removes all rules of a chain.
    pub fn flush_chain(&mut self, table: Table<'_>, name: &str) {
        let mut change = message(NFT_MSG_DELRULE, 0, table.family);
        change.str(NFTA_RULE_TABLE, table.name).str(NFTA_RULE_CHAIN, name);
        self.push("flush chain", table.object(name), change);
    }

    /// Adds a rule.
    pub fn add_rule(&mut self, rule: &Rule<'_>) {
        let flags = match rule.place {
            Place::Last | Place::After(_) => NLM_F_CREATE | NLM_F_APPEND,
            Place::First => NLM_F_CREATE,
        };
        let mut change = message(NFT_MSG_NEWRULE, flags, rule.table.family);
        rule.write(&mut change);
        self.push("add rule", rule.table.object(rule.chain), change);
    }

    /// Removes a rule by its handle, which [`super::Nft::rules`] returns.
    pub fn remove_rule(&mut self, table: Table<'_>, chain: &str, handle: u64) {
        let mut change = message(NFT_MSG_DELRULE, 0, table.family);
        change.str(NFTA_RULE_TABLE, table.name).str(NFTA_RULE_CHAIN, chain);
        change.be64(NFTA_RULE_HANDLE, handle);
        self.push("remove rule", table.object(chain), change);
    }

    /// Adds a set or map; an existing one stays unchanged.
    pub fn add_set(&mut self, set: &Set<'_>) {
        let mut change = message(NFT_MSG_NEWSET, NLM_F_CREATE, set.table.family);
        // The ID only has to be unique among the new sets of this batch.
        set.write(&mut change, u32::try_from(self.messages.len()).unwrap_or(u32::MAX));
        self.push("add set", set.table.object(set.name), change);
    }

    /// Removes a set or map with all its elements. No rule may refer to it.
    pub fn remove_set(&mut self, table: Table<'_>, name: &str) {
        let mut change = message(NFT_MSG_DELSET, 0, table.family);
        change.str(NFTA_SET_TABLE, table.name).str(NFTA_SET_NAME, name);
        self.push("remove set", table.object(name), change);
    }

    /// Adds elements. An element that exists with the same data stays; with other data the batch
    /// fails.
    pub fn add_elements(&mut self, table: Table<'_>, set: &str, elements: &[Element<'_>]) {
        self.elements("add elements", NFT_MSG_NEWSETELEM, NLM_F_CREATE, table, set, elements);
    }

    /// Adds elements, or fails if one of them exists.
    pub fn create_elements(&mut self, table: Table<'_>, set: &str, elements: &[Element<'_>]) {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.elements("create elements", NFT_MSG_NEWSETELEM, flags, table, set, elements);
    }

    /// Removes elements by key. All of them must exist.
    pub fn remove_elements(&mut self, table: Table<'_>, set: &str, elements: &[Element<'_>]) {
        self.elements("remove elements", NFT_MSG_DELSETELEM, 0, table, set, elements);
    }

    /// Removes all elements of a set.
    pub fn flush_set(&mut self, table: Table<'_>, set: &str) {
        let mut change = message(NFT_MSG_DELSETELEM, 0, table.family);
        change.str(NFTA_SET_ELEM_LIST_TABLE, table.name).str(NFTA_SET_ELEM_LIST_SET, set);
        self.push("flush set", table.object(set), change);
    }

    /// Adds ranges to an interval set. The ranges must not overlap.
    pub fn add_ranges(&mut self, table: Table<'_>, set: &str, ranges: &[Range]) {
        for chunk in ranges.chunks(ELEMENTS_PER_MESSAGE) {
            let mut change = message(NFT_MSG_NEWSETELEM, NLM_F_CREATE, table.family);
            change.str(NFTA_SET_ELEM_LIST_TABLE, table.name).str(NFTA_SET_ELEM_LIST_SET, set);
            change.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |list| ranges::write(chunk, list));
            self.push("add ranges", table.object(set), change);
        }
    }

    fn elements(
        &mut self,
        op: &'static str,
        kind: u16,
        flags: u16,
        table: Table<'_>,
        set: &str,
        elements: &[Element<'_>],
    ) {
        for chunk in elements.chunks(ELEMENTS_PER_MESSAGE) {
            let mut change = message(kind, flags, table.family);
            change.str(NFTA_SET_ELEM_LIST_TABLE, table.name).str(NFTA_SET_ELEM_LIST_SET, set);
            change.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
                for element in chunk {
                    list.nest(NFTA_LIST_ELEM, |nest| element.write(nest));
                }
            });
            self.push(op, table.object(set), change);
        }
    }

    fn push(&mut self, op: &'static str, object: String, message: Message) {
        self.has_removals |= op.starts_with("remove") || op.starts_with("flush");
        self.messages.push(message);
        self.descriptions.push((op, object));
    }
}
