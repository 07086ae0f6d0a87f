// SPDX-License-Identifier: Apache-2.0
//! Reads of nf_tables: lookups of one object, which cost the same however many objects exist, and
//! lists. On a kernel without nf_tables everything is empty.

mod rule;
mod table;

use ::netlink::{Attr, Attrs};

pub use self::rule::ObservedRule;
pub use self::table::{ObservedChain, ObservedSet, ObservedTable};
use super::ranges::{self, Range};
use super::uapi::{
    HEADER_LEN, NFT_MSG_GETCHAIN, NFT_MSG_GETRULE, NFT_MSG_GETSET, NFT_MSG_GETSETELEM,
    NFT_MSG_GETTABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, NFTA_DATA_VALUE, NFTA_DATA_VERDICT,
    NFTA_LIST_ELEM, NFTA_RULE_CHAIN, NFTA_RULE_TABLE, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_KEY,
    NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_TABLE,
    NFTA_SET_ELEM_USERDATA, NFTA_SET_TABLE, NFTA_TABLE_NAME, NFTA_VERDICT_CHAIN,
};
use super::userdata::Userdata;
use super::{Nft, Table, message};
use crate::error::Result;

/// An element of a set or map, as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedElement {
    /// Key bytes.
    pub key: Vec<u8>,
    /// Value bytes; empty in a set or a verdict map.
    pub data: Vec<u8>,
    /// Chain that the element's verdict jumps or goes to.
    pub target: Option<String>,
    /// Comment and owner bytes attached to the element.
    pub userdata: Userdata,
}

impl Nft {
    /// Returns whether a table exists.
    pub fn has_table(&self, table: Table<'_>) -> Result<bool> {
        let mut request = message(NFT_MSG_GETTABLE, 0, table.family);
        request.str(NFTA_TABLE_NAME, table.name);
        Ok(self.get("look up table", table.object(""), &request)?.is_some())
    }

    /// Reads a table with its chains and sets; `None` if it does not exist.
    pub fn table(&self, table: Table<'_>) -> Result<Option<ObservedTable>> {
        let mut request = message(NFT_MSG_GETTABLE, 0, table.family);
        request.str(NFTA_TABLE_NAME, table.name);
        let Some(payload) = self.get("look up table", table.object(""), &request)? else {
            return Ok(None);
        };
        let chains = self.list_chains(table, |payload| ObservedChain::parse(payload, table))?;
        let sets = self.list_sets(table, |payload| ObservedSet::parse(payload, table))?;
        Ok(Some(ObservedTable { is_active: table::is_active(&payload), chains, sets }))
    }

    /// Returns whether a chain exists.
    pub fn has_chain(&self, table: Table<'_>, name: &str) -> Result<bool> {
        let mut request = message(NFT_MSG_GETCHAIN, 0, table.family);
        request.str(NFTA_CHAIN_TABLE, table.name).str(NFTA_CHAIN_NAME, name);
        Ok(self.get("look up chain", table.object(name), &request)?.is_some())
    }

    /// Lists the names of a table's chains; empty if the table does not exist.
    pub fn chains(&self, table: Table<'_>) -> Result<Vec<String>> {
        let parse = |payload: &[u8]| Some(ObservedChain::parse(payload, table)?.name);
        self.list_chains(table, parse)
    }

    /// Lists the names of a table's sets and maps; empty if the table does not exist.
    pub fn sets(&self, table: Table<'_>) -> Result<Vec<String>> {
        self.list_sets(table, |payload| Some(ObservedSet::parse(payload, table)?.name))
    }

    /// Lists the rules of a chain in order; empty if the chain does not exist.
    pub fn rules(&self, table: Table<'_>, chain: &str) -> Result<Vec<ObservedRule>> {
        let mut request = message(NFT_MSG_GETRULE, 0, table.family);
        request.str(NFTA_RULE_TABLE, table.name).str(NFTA_RULE_CHAIN, chain);
        let parse = |payload: &[u8]| ObservedRule::parse(payload, table, chain);
        self.list("list rules", table.object(chain), &request, parse)
    }

    /// Looks up an element by its key; `None` if the element, its set or its table does not exist.
    pub fn element(
        &self,
        table: Table<'_>,
        set: &str,
        key: &[u8],
    ) -> Result<Option<ObservedElement>> {
        let mut request = message(NFT_MSG_GETSETELEM, 0, table.family);
        request.str(NFTA_SET_ELEM_LIST_TABLE, table.name).str(NFTA_SET_ELEM_LIST_SET, set);
        request.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
            list.nest(NFTA_LIST_ELEM, |element| {
                element.nest(NFTA_SET_ELEM_KEY, |nest| {
                    nest.bytes(NFTA_DATA_VALUE, key);
                });
            });
        });
        let payload = self.get("look up element", table.object(set), &request)?;
        Ok(payload.and_then(|payload| parse_elements(&payload).next()))
    }

    /// Lists all elements of a set; empty if the set does not exist.
    pub fn elements(&self, table: Table<'_>, set: &str) -> Result<Vec<ObservedElement>> {
        let parse = |payload: &[u8]| Some(parse_elements(payload).collect::<Vec<_>>());
        Ok(self.list_elements(table, set, parse)?.concat())
    }

    /// Lists the ranges of an interval set in order; empty if the set does not exist.
    pub fn ranges(&self, table: Table<'_>, set: &str) -> Result<Vec<Range>> {
        let parse = |payload: &[u8]| Some(ranges::parse_bounds(payload).collect::<Vec<_>>());
        Ok(ranges::join_bounds(self.list_elements(table, set, parse)?.concat()))
    }

    fn list_chains<T>(
        &self,
        table: Table<'_>,
        parse: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        let request = message(NFT_MSG_GETCHAIN, 0, table.family);
        self.list("list chains", table.object(""), &request, parse)
    }

    fn list_sets<T>(
        &self,
        table: Table<'_>,
        parse: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        let mut request = message(NFT_MSG_GETSET, 0, table.family);
        request.str(NFTA_SET_TABLE, table.name);
        self.list("list sets", table.object(""), &request, parse)
    }

    fn list_elements<T>(
        &self,
        table: Table<'_>,
        set: &str,
        parse: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        let mut request = message(NFT_MSG_GETSETELEM, 0, table.family);
        request.str(NFTA_SET_ELEM_LIST_TABLE, table.name).str(NFTA_SET_ELEM_LIST_SET, set);
        self.list("list elements", table.object(set), &request, parse)
    }
}

fn parse_elements(payload: &[u8]) -> impl Iterator<Item = ObservedElement> + '_ {
    let list = Attrs::after(payload, HEADER_LEN).find_kind(NFTA_SET_ELEM_LIST_ELEMENTS);
    let elements = list.map(|list| list.nested());
    elements.into_iter().flatten().filter_map(|element| {
        let attrs = element.nested();
        let value =
            |attr: Attr<'_>| Some(attr.nested().find_kind(NFTA_DATA_VALUE)?.payload.to_vec());
        let data = attrs.find_kind(NFTA_SET_ELEM_DATA);
        Some(ObservedElement {
            key: attrs.find_kind(NFTA_SET_ELEM_KEY).and_then(value)?,
            target: data.as_ref().and_then(verdict_chain),
            data: data.and_then(value).unwrap_or_default(),
            userdata: userdata(&attrs, NFTA_SET_ELEM_USERDATA),
        })
    })
}

/// Returns the chain that a verdict jumps or goes to.
fn verdict_chain(data: &Attr<'_>) -> Option<String> {
    let verdict = data.nested().find_kind(NFTA_DATA_VERDICT)?;
    Some(verdict.nested().find_kind(NFTA_VERDICT_CHAIN)?.str()?.to_owned())
}

fn userdata(attrs: &Attrs<'_>, kind: u16) -> Userdata {
    attrs.find_kind(kind).map(|attr| Userdata::parse(attr.payload)).unwrap_or_default()
}

/// Returns the name of an object if it belongs to this table. Kernels that do not filter a dump by
/// table list the objects of all tables.
fn name_in_table<'a>(
    attrs: &Attrs<'a>,
    table: Table<'_>,
    table_kind: u16,
    name_kind: u16,
) -> Option<&'a str> {
    let text = |kind| attrs.find_kind(kind).and_then(|attr| attr.str());
    text(name_kind).filter(|_| text(table_kind) == Some(table.name))
}
