// SPDX-License-Identifier: Apache-2.0
//! What is there: single look-ups that cost the same however much there is, and lists. On a kernel without
//! nf_tables nothing is there.

mod rule;
mod table;

use ::netlink::{Attr, Attrs, Errno, Message, Socket};

pub use self::rule::ObservedRule;
pub use self::table::{ObservedChain, ObservedSet, ObservedTable};
use super::userdata::Userdata;
use super::{Nft, Table, TableFamily, message};
use crate::error::{Error, Result};

// linux/netfilter/nf_tables.h
const NFT_MSG_GETTABLE: u16 = 1;
const NFT_MSG_GETCHAIN: u16 = 4;
const NFT_MSG_GETRULE: u16 = 7;
const NFT_MSG_GETSET: u16 = 10;
const NFT_MSG_GETSETELEM: u16 = 13;
const NFT_MSG_GETGEN: u16 = 16;
pub(super) const NFTA_TABLE_NAME: u16 = 1;
pub(super) const NFTA_CHAIN_TABLE: u16 = 1;
pub(super) const NFTA_CHAIN_NAME: u16 = 3;
pub(super) const NFTA_RULE_TABLE: u16 = 1;
pub(super) const NFTA_RULE_CHAIN: u16 = 2;
pub(super) const NFTA_SET_TABLE: u16 = 1;
pub(super) const NFTA_SET_NAME: u16 = 2;
const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub(super) const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
pub(super) const NFTA_LIST_ELEM: u16 = 1;
pub(super) const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_DATA: u16 = 2;
const NFTA_SET_ELEM_USERDATA: u16 = 6;
pub(super) const NFTA_DATA_VALUE: u16 = 1;
pub(super) const NFTA_DATA_VERDICT: u16 = 2;
pub(super) const NFTA_VERDICT_CHAIN: u16 = 2;
const NFTA_GEN_ID: u16 = 1;

/// `struct nfgenmsg`.
pub(super) const HEADER_LEN: usize = 4;

/// An element that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedElement {
    /// Its key.
    pub key: Vec<u8>,
    /// Its value, where it is one of bytes.
    pub data: Vec<u8>,
    /// The chain that a verdict names.
    pub target: Option<String>,
    /// What is attached to it.
    pub userdata: Userdata,
}

/// A number that is another one after every change of a namespace's nf_tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(pub(super) u32);

impl Nft {
    /// The present one, for [`Nft::commit_at`].
    pub fn generation(&self) -> Result<Generation> {
        let one = message(NFT_MSG_GETGEN, 0, TableFamily::Inet);
        let payload = self.look("look for", "generation".to_owned(), &one)?.unwrap_or_default();
        let number = Attrs::after(&payload, HEADER_LEN).find_kind(NFTA_GEN_ID);
        // 0 is none: the kernel takes it for any.
        Ok(Generation(number.and_then(|number| number.be32()).unwrap_or_default()))
    }

    /// Whether a table is there.
    pub fn has_table(&self, table: Table<'_>) -> Result<bool> {
        let mut one = message(NFT_MSG_GETTABLE, 0, table.family);
        one.str(NFTA_TABLE_NAME, table.name);
        Ok(self.look("look for table", table.object(""), &one)?.is_some())
    }

    /// Whether a chain is there.
    pub fn has_chain(&self, table: Table<'_>, name: &str) -> Result<bool> {
        let mut one = message(NFT_MSG_GETCHAIN, 0, table.family);
        one.str(NFTA_CHAIN_TABLE, table.name).str(NFTA_CHAIN_NAME, name);
        Ok(self.look("look for chain", table.object(name), &one)?.is_some())
    }

    /// The names of a table's chains; none where the table is missing.
    pub fn chains(&self, table: Table<'_>) -> Result<Vec<String>> {
        let one = message(NFT_MSG_GETCHAIN, 0, table.family);
        let read = |payload: &[u8]| name_in(table, payload, NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME);
        self.list("list chains", table.object(""), &one, read)
    }

    /// The names of a table's sets and maps; none where the table is missing.
    pub fn sets(&self, table: Table<'_>) -> Result<Vec<String>> {
        let mut one = message(NFT_MSG_GETSET, 0, table.family);
        one.str(NFTA_SET_TABLE, table.name);
        let read = |payload: &[u8]| name_in(table, payload, NFTA_SET_TABLE, NFTA_SET_NAME);
        self.list("list sets", table.object(""), &one, read)
    }

    /// The rules of a chain in their order; none where the chain is missing.
    pub fn rules(&self, table: Table<'_>, chain: &str) -> Result<Vec<ObservedRule>> {
        let mut one = message(NFT_MSG_GETRULE, 0, table.family);
        one.str(NFTA_RULE_TABLE, table.name).str(NFTA_RULE_CHAIN, chain);
        let read = |payload: &[u8]| ObservedRule::read(payload, table, chain);
        self.list("list rules", table.object(chain), &one, read)
    }

    /// An element by its key; `None` where it, its set or its table is missing.
    pub fn element(
        &self,
        table: Table<'_>,
        set: &str,
        key: &[u8],
    ) -> Result<Option<ObservedElement>> {
        let mut one = message(NFT_MSG_GETSETELEM, 0, table.family);
        one.str(NFTA_SET_ELEM_LIST_TABLE, table.name).str(NFTA_SET_ELEM_LIST_SET, set);
        one.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
            list.nest(NFTA_LIST_ELEM, |element| {
                element.nest(NFTA_SET_ELEM_KEY, |nest| {
                    nest.bytes(NFTA_DATA_VALUE, key);
                });
            });
        });
        let found = self.look("look for element", table.object(set), &one)?;
        Ok(found.and_then(|payload| read_elements(&payload).next()))
    }

    /// All elements of a set; none where it is missing.
    pub fn elements(&self, table: Table<'_>, set: &str) -> Result<Vec<ObservedElement>> {
        let read = |payload: &[u8]| Some(read_elements(payload).collect::<Vec<_>>());
        Ok(self.element_messages(table, set, read)?.concat())
    }

    pub(super) fn element_messages<T>(
        &self,
        table: Table<'_>,
        set: &str,
        read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        let mut one = message(NFT_MSG_GETSETELEM, 0, table.family);
        one.str(NFTA_SET_ELEM_LIST_TABLE, table.name).str(NFTA_SET_ELEM_LIST_SET, set);
        self.list("list elements", table.object(set), &one, read)
    }

    pub(super) fn look(
        &self,
        op: &'static str,
        object: String,
        what: &Message,
    ) -> Result<Option<Vec<u8>>> {
        let Some(socket) = &self.socket else { return Ok(None) };
        match socket.get(what).map_err(|cause| Error::new(op, object, cause)) {
            Ok((_, payload)) => Ok(Some(payload)),
            Err(error) if is_absent(socket, &error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn list<T>(
        &self,
        op: &'static str,
        object: String,
        what: &Message,
        mut read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        let Some(socket) = &self.socket else { return Ok(Vec::new()) };
        let found = socket.dump(what, |_, payload| read(payload));
        match found.map_err(|cause| Error::new(op, object, cause)) {
            Err(error) if is_absent(socket, &error) => Ok(Vec::new()),
            other => other,
        }
    }
}

/// The name of an object of this table.
fn name_in(table: Table<'_>, payload: &[u8], of_table: u16, of_object: u16) -> Option<String> {
    let attrs = Attrs::after(payload, HEADER_LEN);
    let text = |kind| attrs.find_kind(kind).and_then(|attr| attr.str());
    text(of_object).filter(|_| text(of_table) == Some(table.name)).map(str::to_owned)
}

/// Whether an error says that there is no such thing, or no nf_tables: a kernel that can talk about
/// netfilter and lacks this part of it finds every message about it invalid, also one that asks for a
/// number only.
fn is_absent(socket: &Socket, error: &Error) -> bool {
    let is_invalid = |errno: Errno| errno == Errno::INVAL;
    let number = || socket.get(&message(NFT_MSG_GETGEN, 0, TableFamily::Inet));
    error.is_not_found()
        || (is_invalid(error.errno) && number().is_err_and(|cause| is_invalid(cause.errno)))
}

pub(super) fn chain_of(data: &Attr<'_>) -> Option<String> {
    let verdict = data.nested().find_kind(NFTA_DATA_VERDICT)?;
    Some(verdict.nested().find_kind(NFTA_VERDICT_CHAIN)?.str()?.to_owned())
}

fn read_elements(payload: &[u8]) -> impl Iterator<Item = ObservedElement> + '_ {
    let list = Attrs::after(payload, HEADER_LEN).find_kind(NFTA_SET_ELEM_LIST_ELEMENTS);
    let elements = list.map(|list| list.nested());
    elements.into_iter().flatten().filter_map(|one| {
        let attrs = one.nested();
        let value =
            |attr: Attr<'_>| Some(attr.nested().find_kind(NFTA_DATA_VALUE)?.payload.to_vec());
        let data = attrs.find_kind(NFTA_SET_ELEM_DATA);
        Some(ObservedElement {
            key: attrs.find_kind(NFTA_SET_ELEM_KEY).and_then(value)?,
            target: data.as_ref().and_then(chain_of),
            data: data.and_then(value).unwrap_or_default(),
            userdata: userdata(&attrs, NFTA_SET_ELEM_USERDATA),
        })
    })
}

pub(super) fn userdata(attrs: &Attrs<'_>, kind: u16) -> Userdata {
    attrs.find_kind(kind).map(|attr| Userdata::read(attr.payload)).unwrap_or_default()
}
