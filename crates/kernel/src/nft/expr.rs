// SPDX-License-Identifier: Apache-2.0
//! Expressions, the instructions of a rule. They pass values through registers of four bytes. A
//! concatenated key consists of values in consecutive registers.

use ::netlink::Message;

use super::objects::write_data;
use super::uapi::{NFTA_EXPR_DATA, NFTA_EXPR_NAME, NFTA_LIST_ELEM};
use super::{Data, TableFamily};

// linux/netfilter/nf_tables.h
const NFT_REG_1: u32 = 1;
const NFT_REG32_00: u32 = 8;
const NFT_LOOKUP_F_INV: u32 = 1;
const NFT_NAT_DNAT: u32 = 1;
const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
const NLMSG_HEADER_LEN: usize = 16; // linux/netlink.h
const NF_NAT_RANGE_PROTO_RANDOM_FULLY: u32 = 1 << 4; // linux/netfilter/nf_nat.h

/// A register of four bytes, numbered from 0 to 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reg(pub u32);

/// The verdict register.
pub const REG_VERDICT: Reg = Reg(u32::MAX);

impl Reg {
    fn number(self) -> u32 {
        match self.0 {
            _ if self == REG_VERDICT => 0,
            // The first of every four registers also has an older number, which the kernel uses in
            // dumps.
            first if first.is_multiple_of(4) => NFT_REG_1 + first / 4,
            other => NFT_REG32_00 + other,
        }
    }
}

/// Header from which the offset into a packet counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadBase {
    /// Ethernet header.
    Link,
    /// IP header.
    Network,
    /// Header of TCP, UDP or SCTP.
    Transport,
}

/// Metadata of a packet (`NFT_META_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub enum MetaKey {
    Mark = 3,
    IifName = 6,
    OifName = 7,
    NfProto = 15,
    L4Proto = 16,
}

/// State of the packet's connection (`NFT_CT_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub enum CtKey {
    State = 0,
    Status = 2,
}

/// Result of a routing lookup (`NFTA_FIB_F_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fib {
    /// Type of the destination address, an `RTN_*` number.
    DestinationType,
    /// Type of the source address, an `RTN_*` number.
    SourceType,
}

/// Comparison operator (`NFT_CMP_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Equal.
    Eq = 0,
    /// Not equal.
    Neq = 1,
}

/// Verdict for a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Drops the packet.
    Drop,
    /// Accepts the packet at this hook.
    Accept,
    /// Evaluates another chain, then returns to this one.
    Jump(String),
    /// Continues in another chain without returning.
    Goto(String),
    /// Returns to the calling chain.
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

    /// Returns the chain that the verdict jumps or goes to.
    pub fn chain(&self) -> Option<&str> {
        match self {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            _ => None,
        }
    }
}

/// One expression of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// Loads `len` bytes of the packet.
    #[expect(missing_docs, reason = "the names say it")]
    Payload { base: PayloadBase, offset: u32, len: u32, to: Reg },
    /// Loads metadata of the packet.
    Meta(MetaKey, Reg),
    /// Sets metadata of the packet; only [`MetaKey::Mark`] can be set.
    SetMeta(MetaKey, Reg),
    /// Loads state of the packet's connection.
    Ct(CtKey, Reg),
    /// Loads the result of a routing lookup.
    Fib(Fib, Reg),
    /// Computes `reg = (reg & mask) ^ xor` over the length of the mask.
    #[expect(missing_docs, reason = "the names say it")]
    Bitwise { reg: Reg, mask: Vec<u8>, xor: Vec<u8> },
    /// Continues only if the comparison with the register is true.
    Cmp(Reg, Op, Vec<u8>),
    /// Continues only if the set contains the key.
    Lookup {
        /// Name of the set.
        set: String,
        /// First register of the key.
        key: Reg,
        /// Continues only if the set does not contain the key.
        inverted: bool,
    },
    /// Loads the key's value from a map; continues only if the map contains the key.
    Map {
        /// Name of the map.
        set: String,
        /// First register of the key.
        key: Reg,
        /// First register of the value; [`REG_VERDICT`] for a verdict map.
        to: Reg,
    },
    /// Loads a constant.
    Immediate(Reg, Vec<u8>),
    /// Ends the rule with a verdict.
    Verdict(Verdict),
    /// Translates the destination to the address and port in these registers.
    Dnat {
        /// `ip` or `ip6`.
        family: TableFamily,
        /// First register of the new address.
        address: Reg,
        /// Register of the new port.
        port: Reg,
    },
    /// Translates the source to an address of the outgoing interface.
    Masquerade {
        /// The kernel chooses source ports at random instead of preserving them.
        fully_random: bool,
    },
    /// Counts packets and bytes.
    Counter,
    /// An iptables match, for rules in tables that iptables reads.
    XtMatch {
        /// `mark`, `conntrack`, …
        name: &'static str,
        /// Revision of the match.
        revision: u32,
        /// Data of the match, padded to eight bytes.
        info: Vec<u8>,
    },
}

impl Expr {
    /// Encodes expressions in the form of [`super::ObservedRule::exprs`].
    pub(super) fn written(exprs: &[Expr]) -> Vec<(String, Vec<u8>)> {
        let write = |expr: &Expr| {
            let mut data = Message::new(0, 0);
            expr.write_data(&mut data);
            (expr.name().to_owned(), data.to_bytes().split_off(NLMSG_HEADER_LEN))
        };
        exprs.iter().map(write).collect()
    }

    pub(super) fn write(&self, list: &mut Message) {
        list.nest(NFTA_LIST_ELEM, |expr| {
            expr.str(NFTA_EXPR_NAME, self.name());
            expr.nest(NFTA_EXPR_DATA, |data| self.write_data(data));
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

    /// Writes the attributes `NFTA_<EXPR>_*` of linux/netfilter/nf_tables.h.
    fn write_data(&self, to: &mut Message) {
        match self {
            Expr::Payload { base, offset, len, to: reg } => {
                to.be32(1, reg.number()).be32(2, *base as u32).be32(3, *offset).be32(4, *len);
            }
            Expr::Meta(..) | Expr::SetMeta(..) | Expr::Ct(..) | Expr::Fib(..) => {
                self.write_metadata(to);
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

    /// Writes the expressions that load or set something other than bytes of the packet.
    fn write_metadata(&self, to: &mut Message) {
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
            Expr::Fib(result, reg) => {
                let flags = match result {
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
