// SPDX-License-Identifier: Apache-2.0
//! The instructions that a rule is made of. They pass values through registers of four bytes; a
//! concatenated key is several values in registers that follow each other.

use ::netlink::Message;

use super::objects::write_data;
use super::{Data, TableFamily};

// linux/netfilter/nf_tables.h
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFT_REG_1: u32 = 1;
const NFT_REG32_00: u32 = 8;
const NFT_LOOKUP_F_INV: u32 = 1;
const NFT_NAT_DNAT: u32 = 1;
const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
const NLMSG_HEADER_LEN: usize = 16; // linux/netlink.h
const NF_NAT_RANGE_PROTO_RANDOM_FULLY: u32 = 1 << 4; // linux/netfilter/nf_nat.h

/// A register of four bytes, by its number from 0 to 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reg(pub u32);

/// The register that holds what becomes of the packet.
pub const REG_VERDICT: Reg = Reg(u32::MAX);

impl Reg {
    fn number(self) -> u32 {
        match self.0 {
            _ if self == REG_VERDICT => 0,
            // The first of four has an older number too, and the kernel tells that one.
            first if first.is_multiple_of(4) => NFT_REG_1 + first / 4,
            other => NFT_REG32_00 + other,
        }
    }
}

/// Where in the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadBase {
    /// From the Ethernet header on.
    Link,
    /// From the IP header on.
    Network,
    /// From the header of TCP, UDP or SCTP on.
    Transport,
}

/// What is known of a packet besides its bytes (`NFT_META_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub enum MetaKey {
    Mark = 3,
    IifName = 6,
    OifName = 7,
    NfProto = 15,
    L4Proto = 16,
}

/// What connection tracking knows (`NFT_CT_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub enum CtKey {
    State = 0,
    Status = 2,
}

/// What the routing table is asked (`NFTA_FIB_F_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fib {
    /// The kind of the destination address, an `RTN_*` number.
    DestinationType,
    /// The kind of the source address.
    SourceType,
}

/// How values are compared (`NFT_CMP_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Equal.
    Eq = 0,
    /// Different.
    Neq = 1,
}

/// What becomes of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is gone.
    Drop,
    /// It passes this hook.
    Accept,
    /// On with the rules of another chain, then back.
    Jump(String),
    /// On with the rules of another chain, not back.
    Goto(String),
    /// Back to where the chain was entered.
    Return,
}

impl Verdict {
    pub(super) fn code(&self) -> i32 {
        match self {
            Verdict::Drop => 0,
            Verdict::Accept => 1,
            Verdict::Jump(_) => -3,
            Verdict::Goto(_) => -4,
            Verdict::Return => -5,
        }
    }

    /// The chain that it goes on with.
    pub fn chain(&self) -> Option<&str> {
        match self {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            _ => None,
        }
    }
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// Loads bytes of the packet.
    Payload {
        /// Where counting starts.
        base: PayloadBase,
        /// Bytes to pass over.
        offset: u32,
        /// Bytes to load.
        len: u32,
        /// Where to.
        to: Reg,
    },
    /// Loads what is known of the packet.
    Meta(MetaKey, Reg),
    /// Sets what is known of the packet; only [`MetaKey::Mark`] can be set.
    SetMeta(MetaKey, Reg),
    /// Loads what connection tracking knows.
    Ct(CtKey, Reg),
    /// Asks the routing table.
    Fib(Fib, Reg),
    /// `to = (from & mask) ^ xor`, over as many bytes as the mask has.
    Bitwise {
        /// Operand and result.
        reg: Reg,
        /// Bits that are kept.
        mask: Vec<u8>,
        /// Bits that are turned over.
        xor: Vec<u8>,
    },
    /// Goes on only if the register compares so.
    Cmp(Reg, Op, Vec<u8>),
    /// Goes on only if the key that starts in this register is in the set, or is not.
    Lookup {
        /// The set's name.
        set: String,
        /// The key.
        key: Reg,
        /// Goes on if it is not in the set.
        inverted: bool,
    },
    /// Goes on only if the key is in the map, with its value from `to` on.
    Map {
        /// The map's name.
        set: String,
        /// The key.
        key: Reg,
        /// Where the value goes; [`REG_VERDICT`] for a map of verdicts.
        to: Reg,
    },
    /// Loads a value.
    Immediate(Reg, Vec<u8>),
    /// Decides.
    Verdict(Verdict),
    /// Changes the destination to the address and port in these registers.
    Dnat {
        /// IPv4 or IPv6.
        family: TableFamily,
        /// The address.
        address: Reg,
        /// The port.
        port: Reg,
    },
    /// Changes the source to an address of the outgoing interface.
    Masquerade {
        /// Ports are chosen at random, not kept.
        fully_random: bool,
    },
    /// Counts packets and bytes.
    Counter,
    /// A match of iptables, for rules in tables that iptables reads.
    XtMatch {
        /// `mark`, `conntrack`, …
        name: &'static str,
        /// Its revision.
        revision: u32,
        /// Its structure, padded to eight bytes.
        info: Vec<u8>,
    },
}

impl Expr {
    /// Name and attributes of each of these, as [`super::ObservedRule`] has those of a rule that is there.
    pub(super) fn written(exprs: &[Expr]) -> Vec<(String, Vec<u8>)> {
        let write = |expr: &Expr| {
            let mut data = Message::new(0, 0);
            expr.write_data(&mut data);
            (expr.name().to_owned(), data.to_bytes().split_off(NLMSG_HEADER_LEN))
        };
        exprs.iter().map(write).collect()
    }

    pub(super) fn write(&self, list: &mut Message) {
        list.nest(NFTA_LIST_ELEM, |one| {
            one.str(NFTA_EXPR_NAME, self.name());
            one.nest(NFTA_EXPR_DATA, |data| self.write_data(data));
        });
    }

    fn name(&self) -> &'static str {
        match self {
            Expr::Payload { .. } => "payload",
            Expr::Meta(..) | Expr::SetMeta(..) => "meta",
            Expr::Ct(..) => "ct",
            Expr::Fib(..) => "fib",
            Expr::Bitwise { .. } => "bitwise",
            Expr::Cmp(..) => "cmp",
            Expr::Lookup { .. } | Expr::Map { .. } => "lookup",
            Expr::Immediate(..) | Expr::Verdict(_) => "immediate",
            Expr::Dnat { .. } => "nat",
            Expr::Masquerade { .. } => "masq",
            Expr::Counter => "counter",
            Expr::XtMatch { .. } => "match",
        }
    }

    /// The attributes' numbers are those of `NFTA_<EXPR>_*` in linux/netfilter/nf_tables.h.
    fn write_data(&self, to: &mut Message) {
        match self {
            Expr::Payload { base, offset, len, to: reg } => {
                to.be32(1, reg.number()).be32(2, *base as u32).be32(3, *offset).be32(4, *len);
            }
            Expr::Meta(..) | Expr::SetMeta(..) | Expr::Ct(..) | Expr::Fib(..) => {
                self.write_known(to);
            }
            Expr::Bitwise { reg, mask, xor } => {
                let len = u32::try_from(mask.len()).unwrap_or(u32::MAX);
                to.be32(1, reg.number()).be32(2, reg.number()).be32(3, len);
                write_data(to, 4, &Data::Value(mask.clone()));
                write_data(to, 5, &Data::Value(xor.clone()));
            }
            Expr::Cmp(reg, op, value) => {
                to.be32(1, reg.number()).be32(2, *op as u32);
                write_data(to, 3, &Data::Value(value.clone()));
            }
            Expr::Lookup { set, key, inverted } => {
                to.str(1, set).be32(2, key.number());
                if *inverted {
                    to.be32(5, NFT_LOOKUP_F_INV);
                }
            }
            Expr::Map { set, key, to: reg } => {
                to.str(1, set).be32(2, key.number()).be32(3, reg.number());
            }
            Expr::Immediate(reg, value) => {
                to.be32(1, reg.number());
                write_data(to, 2, &Data::Value(value.clone()));
            }
            Expr::Verdict(verdict) => {
                to.be32(1, REG_VERDICT.number());
                write_data(to, 2, &Data::Verdict(verdict.clone()));
            }
            Expr::Dnat { .. } | Expr::Masquerade { .. } => self.write_nat(to),
            Expr::Counter => {
                to.be64(1, 0).be64(2, 0);
            }
            Expr::XtMatch { name, revision, info } => {
                to.str(1, name).be32(2, *revision).bytes(3, info);
            }
        }
    }

    /// What the kernel knows of a packet besides its bytes.
    fn write_known(&self, to: &mut Message) {
        match self {
            Expr::Meta(key, reg) => {
                to.be32(1, reg.number()).be32(2, *key as u32);
            }
            Expr::SetMeta(key, reg) => {
                to.be32(2, *key as u32).be32(3, reg.number());
            }
            Expr::Ct(key, reg) => {
                to.be32(1, reg.number()).be32(2, *key as u32);
            }
            Expr::Fib(of, reg) => {
                let flags = match of {
                    Fib::SourceType => 1,
                    Fib::DestinationType => 2,
                };
                to.be32(1, reg.number()).be32(2, NFT_FIB_RESULT_ADDRTYPE).be32(3, flags);
            }
            _ => {}
        }
    }

    fn write_nat(&self, to: &mut Message) {
        match self {
            Expr::Dnat { family, address, port } => {
                to.be32(1, NFT_NAT_DNAT).be32(2, u32::from(family.number()));
                to.be32(3, address.number()).be32(5, port.number());
            }
            Expr::Masquerade { fully_random: true } => {
                to.be32(1, NF_NAT_RANGE_PROTO_RANDOM_FULLY);
            }
            _ => {}
        }
    }
}
