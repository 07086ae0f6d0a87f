// SPDX-License-Identifier: Apache-2.0
//! A list of changes that the kernel carries out as a whole or not at all.

use ::netlink::{Errno, Message, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL};

use super::objects::{Chain, Element, Place, Rule, Set, write_comment};
use super::ranges::{self, Range};
use super::{Generation, Nft, SUBSYS_NFTABLES, Table, message};
use crate::error::{Error, Result};

const NFNL_MSG_BATCH_BEGIN: u16 = 0x10; // linux/netfilter/nfnetlink.h
const NFNL_MSG_BATCH_END: u16 = 0x11; // linux/netfilter/nfnetlink.h
const NFNL_BATCH_GENID: u16 = 1; // linux/netfilter/nfnetlink.h

// linux/netfilter/nf_tables.h
const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_DELTABLE: u16 = 2;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_DELCHAIN: u16 = 5;
const NFT_MSG_NEWRULE: u16 = 6;
const NFT_MSG_DELRULE: u16 = 8;
const NFT_MSG_NEWSET: u16 = 9;
const NFT_MSG_DELSET: u16 = 11;
const NFT_MSG_NEWSETELEM: u16 = 12;
const NFT_MSG_DELSETELEM: u16 = 14;

const NFTA_TABLE_NAME: u16 = 1;
const NFTA_TABLE_USERDATA: u16 = 6;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_HANDLE: u16 = 3;
const NFTA_SET_TABLE: u16 = 1;
const NFTA_SET_NAME: u16 = 2;
const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_LIST_ELEM: u16 = 1;

/// An attribute holds at most 64 KiB; an element with comment takes about 200 bytes.
const ELEMENTS_IN_MESSAGE: usize = 200;

/// Changes under construction. Their order is the order in which the kernel looks at them: a chain
/// before the rule that jumps to it.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    messages: Vec<Message>,
    names: Vec<(&'static str, String)>,
    removes: bool,
}

impl Batch {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Adds a table; one that is there stays as it is.
    pub fn add_table(&mut self, table: Table<'_>, comment: &str) {
        let mut one = message(NFT_MSG_NEWTABLE, NLM_F_CREATE, table.family);
        one.str(NFTA_TABLE_NAME, table.name);
        write_comment(&mut one, NFTA_TABLE_USERDATA, comment);
        self.push("add table", table.object(""), one);
    }

    /// Removes a table with all that is in it.
    pub fn remove_table(&mut self, table: Table<'_>) {
        let mut one = message(NFT_MSG_DELTABLE, 0, table.family);
        one.str(NFTA_TABLE_NAME, table.name);
        self.push("remove table", table.object(""), one);
    }

    /// Adds a chain; one that is there stays as it is.
    pub fn add_chain(&mut self, chain: &Chain<'_>) {
        let mut one = message(NFT_MSG_NEWCHAIN, NLM_F_CREATE, chain.table.family);
        chain.write(&mut one);
        self.push("add chain", chain.table.object(chain.name), one);
    }

    /// Adds a chain, or fails where it is there.
    pub fn create_chain(&mut self, chain: &Chain<'_>) {
        let mut one = message(NFT_MSG_NEWCHAIN, NLM_F_CREATE | NLM_F_EXCL, chain.table.family);
        chain.write(&mut one);
        self.push("create chain", chain.table.object(chain.name), one);
    }

    /// Removes a chain, which must not be in use.
    pub fn remove_chain(&mut self, table: Table<'_>, name: &str) {
        let mut one = message(NFT_MSG_DELCHAIN, 0, table.family);
        one.str(NFTA_CHAIN_TABLE, table.name).str(NFTA_CHAIN_NAME, name);
        self.push("remove chain", table.object(name), one);
    }

    /// Removes all rules of a chain.
    pub fn flush_chain(&mut self, table: Table<'_>, name: &str) {
        let mut one = message(NFT_MSG_DELRULE, 0, table.family);
        one.str(NFTA_RULE_TABLE, table.name).str(NFTA_RULE_CHAIN, name);
        self.push("flush chain", table.object(name), one);
    }

    /// Adds a rule.
    pub fn add_rule(&mut self, rule: &Rule<'_>) {
        let flags = match rule.place {
            Place::Last | Place::After(_) => NLM_F_CREATE | NLM_F_APPEND,
            Place::First => NLM_F_CREATE,
        };
        let mut one = message(NFT_MSG_NEWRULE, flags, rule.table.family);
        rule.write(&mut one);
        self.push("add rule", rule.table.object(rule.chain), one);
    }

    /// Removes a rule by the number that [`Nft::rules`] told.
    pub fn remove_rule(&mut self, table: Table<'_>, chain: &str, handle: u64) {
        let mut one = message(NFT_MSG_DELRULE, 0, table.family);
        one.str(NFTA_RULE_TABLE, table.name).str(NFTA_RULE_CHAIN, chain);
        one.be64(NFTA_RULE_HANDLE, handle);
        self.push("remove rule", table.object(chain), one);
    }

    /// Adds a set or map; one that is there stays as it is.
    pub fn add_set(&mut self, set: &Set<'_>) {
        let mut one = message(NFT_MSG_NEWSET, NLM_F_CREATE, set.table.family);
        // A number that tells the new sets of a batch apart.
        set.write(&mut one, u32::try_from(self.messages.len()).unwrap_or(u32::MAX));
        self.push("add set", set.table.object(set.name), one);
    }

    /// Removes a set or map with all its elements; no rule may look at it any more.
    pub fn remove_set(&mut self, table: Table<'_>, name: &str) {
        let mut one = message(NFT_MSG_DELSET, 0, table.family);
        one.str(NFTA_SET_TABLE, table.name).str(NFTA_SET_NAME, name);
        self.push("remove set", table.object(name), one);
    }

    /// Adds elements; one that is there with the same data stays, with other data it is an error.
    pub fn add_elements(&mut self, table: Table<'_>, set: &str, elements: &[Element<'_>]) {
        self.elements("add elements", NFT_MSG_NEWSETELEM, NLM_F_CREATE, table, set, elements);
    }

    /// Adds elements, or fails where one of them is there.
    pub fn create_elements(&mut self, table: Table<'_>, set: &str, elements: &[Element<'_>]) {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.elements("create elements", NFT_MSG_NEWSETELEM, flags, table, set, elements);
    }

    /// Removes elements, by key; all of them must be there.
    pub fn remove_elements(&mut self, table: Table<'_>, set: &str, elements: &[Element<'_>]) {
        self.elements("remove elements", NFT_MSG_DELSETELEM, 0, table, set, elements);
    }

    /// Removes all elements of a set.
    pub fn flush_set(&mut self, table: Table<'_>, set: &str) {
        let mut one = message(NFT_MSG_DELSETELEM, 0, table.family);
        one.str(NFTA_SET_ELEM_LIST_TABLE, table.name).str(NFTA_SET_ELEM_LIST_SET, set);
        self.push("flush set", table.object(set), one);
    }

    /// Adds ranges to a set of such; none may overlap another.
    pub fn add_ranges(&mut self, table: Table<'_>, set: &str, ranges: &[Range]) {
        for some in ranges.chunks(ELEMENTS_IN_MESSAGE) {
            let mut one = message(NFT_MSG_NEWSETELEM, NLM_F_CREATE, table.family);
            one.str(NFTA_SET_ELEM_LIST_TABLE, table.name).str(NFTA_SET_ELEM_LIST_SET, set);
            one.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |list| ranges::write(some, list));
            self.push("add ranges", table.object(set), one);
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
        for some in elements.chunks(ELEMENTS_IN_MESSAGE) {
            let mut one = message(kind, flags, table.family);
            one.str(NFTA_SET_ELEM_LIST_TABLE, table.name).str(NFTA_SET_ELEM_LIST_SET, set);
            one.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
                for element in some {
                    list.nest(NFTA_LIST_ELEM, |one| element.write(one));
                }
            });
            self.push(op, table.object(set), one);
        }
    }

    fn push(&mut self, op: &'static str, object: String, message: Message) {
        self.removes |= op.starts_with("remove") || op.starts_with("flush");
        self.messages.push(message);
        self.names.push((op, object));
    }
}

impl Nft {
    /// Carries out a batch, as a whole or not at all.
    pub fn commit(&self, batch: &Batch) -> Result<()> {
        self.send(batch, bracket(NFNL_MSG_BATCH_BEGIN))
    }

    /// The same, unless anybody has changed nf_tables of this namespace since: [`Error::is_stale_generation`].
    pub fn commit_at(&self, generation: Generation, batch: &Batch) -> Result<()> {
        let mut begin = bracket(NFNL_MSG_BATCH_BEGIN);
        begin.be32(NFNL_BATCH_GENID, generation.0);
        self.send(batch, begin)
    }

    fn send(&self, batch: &Batch, begin: Message) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let Some(socket) = &self.socket else {
            return Err(Error::from_errno("change nf_tables", "", Errno::PROTONOSUPPORT));
        };
        let mut messages = Vec::with_capacity(batch.messages.len() + 2);
        messages.push(begin);
        messages.extend_from_slice(&batch.messages);
        messages.push(bracket(NFNL_MSG_BATCH_END));
        if batch.removes {
            crate::deferred_close::note_removal();
        }
        let failure = socket.transact(&messages, batch.messages.len());
        match failure.map_err(|cause| Error::new("change nf_tables", "", cause))? {
            None => Ok(()),
            Some(failure) => {
                // The bracket that opens the batch is refused where we lack the right to change it.
                let name = failure.index.checked_sub(1).and_then(|at| batch.names.get(at));
                let (op, object) = name.cloned().unwrap_or(("change nf_tables", String::new()));
                Err(Error::new(op, object, failure.error))
            }
        }
    }
}

fn bracket(kind: u16) -> Message {
    let mut message = Message::new(kind, 0);
    let [high, low] = SUBSYS_NFTABLES.to_be_bytes();
    message.header(&[0, 0, high, low]);
    message
}
