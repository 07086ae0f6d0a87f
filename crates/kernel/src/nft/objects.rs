// SPDX-License-Identifier: Apache-2.0
//! Chains, rules, sets and elements as values, and how they are written.

use ::netlink::Message;

use super::Table;
use super::expr::{Expr, Verdict};
use super::userdata::{self, SET_COMMENT, Userdata};

// linux/netfilter/nf_tables.h
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_CHAIN_USERDATA: u16 = 12;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_RULE_POSITION: u16 = 6;
const NFTA_RULE_USERDATA: u16 = 7;
const NFTA_SET_TABLE: u16 = 1;
const NFTA_SET_NAME: u16 = 2;
const NFTA_SET_FLAGS: u16 = 3;
const NFTA_SET_KEY_TYPE: u16 = 4;
const NFTA_SET_KEY_LEN: u16 = 5;
const NFTA_SET_DATA_TYPE: u16 = 6;
const NFTA_SET_DATA_LEN: u16 = 7;
const NFTA_SET_ID: u16 = 10;
const NFTA_SET_USERDATA: u16 = 13;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_DATA: u16 = 2;
const NFTA_SET_ELEM_USERDATA: u16 = 6;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;
const NFT_SET_INTERVAL: u32 = 4;
const NFT_SET_MAP: u32 = 8;
const NFT_DATA_VERDICT: u32 = 0xffff_ff00;

/// A chain; with `base` one that the kernel enters by itself.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a> {
    /// The table that it is in.
    pub table: Table<'a>,
    /// Its name.
    pub name: &'a str,
    /// Where packets enter it.
    pub base: Option<BaseChain>,
    /// For people.
    pub comment: &'a str,
}

/// Where packets enter a chain. What reaches its end passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseChain {
    /// What it may do.
    pub kind: ChainKind,
    /// At which point.
    pub hook: Hook,
    /// Lower is earlier.
    pub priority: i32,
}

/// What a base chain may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    /// Let pass or drop.
    Filter,
    /// Change addresses; it sees the first packet of each connection only.
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

/// Points on a packet's way (`NF_INET_*`; those of a bridge have the same numbers).
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

/// Where in its chain a rule goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    /// Behind all others.
    #[default]
    Last,
    /// Before all others.
    First,
    /// Behind the rule of this number.
    After(u64),
}

/// A rule to add.
#[derive(Debug, Clone)]
pub struct Rule<'a> {
    /// The table that it is in.
    pub table: Table<'a>,
    /// The chain that it is in.
    pub chain: &'a str,
    /// Where in the chain.
    pub place: Place,
    /// What it does.
    pub exprs: Vec<Expr>,
    /// For people.
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

/// What the values of a set are, so that `nft` can print them; numbers and lengths are libnftnl's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names that nft has for them")]
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

    /// Bytes without padding.
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

/// What a map holds for each key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapTo<'a> {
    /// Nothing: it is a set.
    Nothing,
    /// Values.
    Values(&'a [DataType]),
    /// What becomes of the packet. Whenever an element that jumps is added to one, the kernel goes through
    /// all elements of all such maps of the table that rules look at.
    Verdicts,
}

/// A set or a map to add.
#[derive(Debug, Clone, Copy)]
pub struct Set<'a> {
    /// The table that it is in.
    pub table: Table<'a>,
    /// Its name.
    pub name: &'a str,
    /// The parts of a key.
    pub key: &'a [DataType],
    /// The parts of a value.
    pub data: MapTo<'a>,
    /// It holds ranges of keys, see [`super::Batch::add_ranges`].
    pub is_interval: bool,
    /// For people.
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
        let mut told = userdata::of_set(is_of_host(self.key), self.data_is_of_host());
        if !self.comment.is_empty() {
            told.extend(userdata::comment(self.comment, SET_COMMENT));
        }
        if !told.is_empty() {
            to.bytes(NFTA_SET_USERDATA, &told);
        }
    }

    pub(super) fn flags(&self) -> u32 {
        let map = if self.data == MapTo::Nothing { 0 } else { NFT_SET_MAP };
        map | if self.is_interval { NFT_SET_INTERVAL } else { 0 }
    }

    pub(super) fn key_type(&self) -> u32 {
        type_number(self.key)
    }

    fn data_is_of_host(&self) -> bool {
        matches!(self.data, MapTo::Values(types) if is_of_host(types))
    }
}

/// Whether `nft` has to be told that a value is in the host's byte order. Of the parts of a
/// concatenation it knows that by itself.
fn is_of_host(types: &[DataType]) -> bool {
    matches!(types, [DataType::Mark | DataType::IfName])
}

/// A concatenation's number holds six bits of each part.
fn type_number(types: &[DataType]) -> u32 {
    types.iter().fold(0, |number, part| number << 6 | part.number())
}

/// Each part of several fills whole registers; one alone has its own length.
fn length(types: &[DataType]) -> u32 {
    let len = match types {
        [one] => one.size(),
        several => several.iter().map(|part| part.size().next_multiple_of(4)).sum(),
    };
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// What an element holds besides its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// Bytes, parts padded to whole registers.
    Value(Vec<u8>),
    /// What becomes of the packet.
    Verdict(Verdict),
}

/// An element of a set or a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element<'a> {
    /// Its key, parts padded to whole registers.
    pub key: &'a [u8],
    /// Its value, in a map.
    pub data: Option<&'a Data>,
    /// What is attached to it.
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
