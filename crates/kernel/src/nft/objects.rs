// SPDX-License-Identifier: Apache-2.0
//! Chains, rules, sets and elements as values, and their netlink encoding.

use ::netlink::Message;

use super::Table;
use super::expr::{Expr, Verdict};
use super::uapi::{
    NFT_DATA_VERDICT, NFT_SET_INTERVAL, NFT_SET_MAP, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME,
    NFTA_CHAIN_TABLE, NFTA_CHAIN_TYPE, NFTA_CHAIN_USERDATA, NFTA_DATA_VALUE, NFTA_DATA_VERDICT,
    NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS,
    NFTA_RULE_POSITION, NFTA_RULE_TABLE, NFTA_RULE_USERDATA, NFTA_SET_DATA_LEN, NFTA_SET_DATA_TYPE,
    NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_USERDATA, NFTA_SET_FLAGS, NFTA_SET_ID,
    NFTA_SET_KEY_LEN, NFTA_SET_KEY_TYPE, NFTA_SET_NAME, NFTA_SET_TABLE, NFTA_SET_USERDATA,
    NFTA_VERDICT_CHAIN, NFTA_VERDICT_CODE,
};
use super::userdata::{self, SET_COMMENT, Userdata};

/// A chain to add. With `base` it is a base chain, which packets enter at a hook.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Chain<'a> {
    pub table: Table<'a>,
    pub name: &'a str,
    pub base: Option<BaseChain>,
    pub comment: &'a str,
}

/// Hook of a base chain. The chain's policy is `accept`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseChain {
    /// Type of the chain.
    pub kind: ChainKind,
    /// Hook at which packets enter the chain.
    pub hook: Hook,
    /// Order among the chains of the hook: lower is earlier.
    pub priority: i32,
}

/// Type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    /// Accepts or drops packets.
    Filter,
    /// Translates addresses. The chain sees only the first packet of each connection.
    Nat,
}

impl ChainKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            ChainKind::Filter => "filter",
            ChainKind::Nat => "nat",
        }
    }
}

/// Netfilter hooks (`NF_INET_*`; `NF_BR_*` have the same numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub enum Hook {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
    Postrouting = 4,
}

impl Chain<'_> {
    pub(super) fn write(&self, to: &mut Message) {
        to.str(NFTA_CHAIN_TABLE, self.table.name).str(NFTA_CHAIN_NAME, self.name);
        if let Some(base) = self.base {
            to.nest(NFTA_CHAIN_HOOK, |hook| {
                hook.be32(NFTA_HOOK_HOOKNUM, base.hook as u32);
                hook.be32(NFTA_HOOK_PRIORITY, base.priority.cast_unsigned());
            });
            to.str(NFTA_CHAIN_TYPE, base.kind.as_str());
        }
        write_comment(to, NFTA_CHAIN_USERDATA, self.comment);
    }
}

/// Position of a new rule in its chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    /// After all other rules.
    #[default]
    Last,
    /// Before all other rules.
    First,
    /// After the rule with this handle.
    After(u64),
}

/// A rule to add.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Rule<'a> {
    pub table: Table<'a>,
    pub chain: &'a str,
    pub place: Place,
    pub exprs: Vec<Expr>,
    pub comment: &'a str,
}

impl Rule<'_> {
    pub(super) fn write(&self, to: &mut Message) {
        to.str(NFTA_RULE_TABLE, self.table.name).str(NFTA_RULE_CHAIN, self.chain);
        to.nest(NFTA_RULE_EXPRESSIONS, |list| {
            for expr in &self.exprs {
                expr.write(list);
            }
        });
        if let Place::After(handle) = self.place {
            to.be64(NFTA_RULE_POSITION, handle);
        }
        write_comment(to, NFTA_RULE_USERDATA, self.comment);
    }
}

/// Type of the keys or values of a set. `nft` needs it to print them; numbers and lengths are
/// libnftnl's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names that nft uses")]
pub enum DataType {
    Ipv4Addr,
    Ipv6Addr,
    EtherAddr,
    InetProto,
    InetService,
    Mark,
    IfName,
}

impl DataType {
    fn number(self) -> u32 {
        match self {
            DataType::Ipv4Addr => 7,
            DataType::Ipv6Addr => 8,
            DataType::EtherAddr => 9,
            DataType::InetProto => 12,
            DataType::InetService => 13,
            DataType::Mark => 19,
            DataType::IfName => 41,
        }
    }

    /// Length in bytes without padding.
    pub fn size(self) -> usize {
        match self {
            DataType::InetProto => 1,
            DataType::InetService => 2,
            DataType::Ipv4Addr | DataType::Mark => 4,
            DataType::EtherAddr => 6,
            DataType::Ipv6Addr | DataType::IfName => 16,
        }
    }
}

/// Kind of the values in a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapTo<'a> {
    /// No values: a plain set.
    Nothing,
    /// Values of these concatenated types.
    Values(&'a [DataType]),
    /// Verdicts. When an element that jumps to a chain is added, the kernel walks through all
    /// elements of all verdict maps of the table that rules refer to.
    Verdicts,
}

/// A set or a map to add.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Set<'a> {
    pub table: Table<'a>,
    pub name: &'a str,
    /// Types of the key; more than one for a concatenation.
    pub key: &'a [DataType],
    pub data: MapTo<'a>,
    /// The set holds ranges of keys, see [`super::Batch::add_ranges`].
    pub is_interval: bool,
    pub comment: &'a str,
}

impl Set<'_> {
    pub(super) fn write(&self, to: &mut Message, id: u32) {
        to.str(NFTA_SET_TABLE, self.table.name).str(NFTA_SET_NAME, self.name);
        to.be32(NFTA_SET_FLAGS, self.flags());
        to.be32(NFTA_SET_KEY_TYPE, self.key_type()).be32(NFTA_SET_KEY_LEN, length(self.key));
        match self.data {
            MapTo::Nothing => {}
            MapTo::Values(types) => {
                to.be32(NFTA_SET_DATA_TYPE, type_number(types));
                to.be32(NFTA_SET_DATA_LEN, length(types));
            }
            MapTo::Verdicts => {
                to.be32(NFTA_SET_DATA_TYPE, NFT_DATA_VERDICT).be32(NFTA_SET_DATA_LEN, 0);
            }
        }
        to.be32(NFTA_SET_ID, id);
        let mut userdata =
            userdata::byte_orders(is_host_order(self.key), self.data_is_host_order());
        if !self.comment.is_empty() {
            userdata.extend(userdata::comment(self.comment, SET_COMMENT));
        }
        if !userdata.is_empty() {
            to.bytes(NFTA_SET_USERDATA, &userdata);
        }
    }

    pub(super) fn flags(&self) -> u32 {
        let map = if self.data == MapTo::Nothing { 0 } else { NFT_SET_MAP };
        map | if self.is_interval { NFT_SET_INTERVAL } else { 0 }
    }

    pub(super) fn key_type(&self) -> u32 {
        type_number(self.key)
    }

    fn data_is_host_order(&self) -> bool {
        matches!(self.data, MapTo::Values(types) if is_host_order(types))
    }
}

/// Returns whether the userdata must say that a value is in host byte order. `nft` knows the byte
/// order of the parts of a concatenation itself.
fn is_host_order(types: &[DataType]) -> bool {
    matches!(types, [DataType::Mark | DataType::IfName])
}

/// Returns the type number. A concatenation has six bits per part.
fn type_number(types: &[DataType]) -> u32 {
    types.iter().fold(0, |number, part| number << 6 | part.number())
}

/// Returns the length in bytes. Each part of a concatenation is padded to whole registers; a single
/// type is not padded.
fn length(types: &[DataType]) -> u32 {
    let len = match types {
        [single] => single.size(),
        parts => parts.iter().map(|part| part.size().next_multiple_of(4)).sum(),
    };
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Value of an element in a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// Bytes; the parts of a concatenation are padded to whole registers.
    Value(Vec<u8>),
    /// Verdict for the packet.
    Verdict(Verdict),
}

/// An element of a set or a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element<'a> {
    /// Key bytes; the parts of a concatenation are padded to whole registers.
    pub key: &'a [u8],
    /// Value, in a map.
    pub data: Option<&'a Data>,
    /// Comment and owner bytes.
    pub userdata: Option<&'a Userdata>,
}

impl Element<'_> {
    pub(super) fn write(&self, to: &mut Message) {
        to.nest(NFTA_SET_ELEM_KEY, |key| {
            key.bytes(NFTA_DATA_VALUE, self.key);
        });
        if let Some(data) = self.data {
            write_data(to, NFTA_SET_ELEM_DATA, data);
        }
        if let Some(userdata) = self.userdata {
            to.bytes(NFTA_SET_ELEM_USERDATA, &userdata.write(0));
        }
    }
}

pub(super) fn write_data(to: &mut Message, kind: u16, data: &Data) {
    to.nest(kind, |nest| match data {
        Data::Value(bytes) => {
            nest.bytes(NFTA_DATA_VALUE, bytes);
        }
        Data::Verdict(verdict) => {
            nest.nest(NFTA_DATA_VERDICT, |nest| {
                nest.be32(NFTA_VERDICT_CODE, verdict.code().cast_unsigned());
                if let Some(chain) = verdict.chain() {
                    nest.str(NFTA_VERDICT_CHAIN, chain);
                }
            });
        }
    });
}

pub(super) fn write_comment(to: &mut Message, kind: u16, comment: &str) {
    if !comment.is_empty() {
        to.bytes(kind, &userdata::comment(comment, 0));
    }
}
