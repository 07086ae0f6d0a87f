// SPDX-License-Identifier: Apache-2.0
//! nf_tables: tables, chains, sets, maps, rules and elements, changed in batches that succeed or
//! fail as a whole. A rule is a list of [`Expr`]; its meaning is the caller's business.
//!
//! Adding objects costs microseconds. After a removal, closing the socket waits for a grace period
//! of 5 to 20 ms, and so does closing any other netfilter socket in that time. A background child
//! closes these sockets ([`crate::deferred_close`]). A rejected batch waits as well.

mod batch;
mod dump;
mod events;
mod expr;
pub mod match_expr;
mod objects;
mod ranges;
mod socket;
mod uapi;
mod userdata;
pub mod xtables;

use ::netlink::Message;

pub use self::batch::Batch;
pub use self::dump::{ObservedChain, ObservedElement, ObservedRule, ObservedSet, ObservedTable};
pub use self::events::{Event, Events};
pub use self::expr::{CtKey, Expr, Fib, MetaKey, Op, PayloadBase, REG_VERDICT, Reg, Verdict};
pub use self::objects::{
    BaseChain, Chain, ChainKind, Data, DataType, Element, Hook, MapTo, Place, Rule, Set,
};
pub use self::ranges::Range;
pub use self::socket::{Generation, Nft};
pub use self::userdata::Userdata;

/// Family of a table: the kind of packets that its chains see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TableFamily {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// Ethernet frames on a bridge.
    Bridge,
}

impl TableFamily {
    fn from_number(number: u8) -> Option<Self> {
        let all = [TableFamily::Inet, TableFamily::Ip, TableFamily::Ip6, TableFamily::Bridge];
        all.into_iter().find(|family| family.number() == number)
    }

    fn number(self) -> u8 {
        match self {
            // linux/netfilter.h
            TableFamily::Inet => 1,
            TableFamily::Ip => 2,
            TableFamily::Bridge => 7,
            TableFamily::Ip6 => 10,
        }
    }

    /// Returns the name that `nft` uses.
    pub fn as_str(self) -> &'static str {
        match self {
            TableFamily::Inet => "inet",
            TableFamily::Ip => "ip",
            TableFamily::Bridge => "bridge",
            TableFamily::Ip6 => "ip6",
        }
    }
}

/// A table, identified by family and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Table<'a> {
    pub family: TableFamily,
    pub name: &'a str,
}

impl Table<'_> {
    /// Names an object of this table for an error message.
    fn object(&self, name: &str) -> String {
        format!("{} {} {name}", self.family.as_str(), self.name)
    }
}

/// Starts a message of the nf_tables subsystem.
fn message(kind: u16, flags: u16, family: TableFamily) -> Message {
    let mut message = Message::new(uapi::SUBSYS_NFTABLES << 8 | kind, flags);
    message.header(&[family.number(), 0, 0, 0]);
    message
}
