// SPDX-License-Identifier: Apache-2.0
//! nf_tables: tables, chains, sets, maps, rules and elements, changed in batches that succeed or fail as
//! a whole. What a rule says is a list of [`Expr`]; what it means is the caller's business.
//!
//! Adding costs microseconds. After a removal the *closing* of the socket waits for a grace period of
//! 5 to 20 ms, and so does that of every other netfilter socket meanwhile: they are parked, and a
//! child closes them ([`crate::deferred_close`]). A batch that is refused waits as well.

mod batch;
mod dump;
mod events;
mod expr;
pub mod match_expr;
mod objects;
mod ranges;
mod userdata;
pub mod xtables;

use ::netlink::{Errno, Message, Protocol, Socket};

pub use self::batch::Batch;
pub use self::dump::{
    Generation, ObservedChain, ObservedElement, ObservedRule, ObservedSet, ObservedTable,
};
pub use self::events::{Event, Events};
pub use self::expr::{CtKey, Expr, Fib, MetaKey, Op, PayloadBase, REG_VERDICT, Reg, Verdict};
pub use self::objects::{
    BaseChain, Chain, ChainKind, Data, DataType, Element, Hook, MapTo, Place, Rule, Set,
};
pub use self::ranges::Range;
pub use self::userdata::Userdata;
use crate::error::{Error, Result};

const SUBSYS_NFTABLES: u16 = 10; // linux/netfilter/nfnetlink.h

/// What kind of packets a table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TableFamily {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// Frames on a bridge.
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

    /// As `nft` writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            TableFamily::Inet => "inet",
            TableFamily::Ip => "ip",
            TableFamily::Bridge => "bridge",
            TableFamily::Ip6 => "ip6",
        }
    }
}

/// A table by family and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Table<'a> {
    /// The packets that it sees.
    pub family: TableFamily,
    /// Its name.
    pub name: &'a str,
}

impl Table<'_> {
    fn object(&self, name: &str) -> String {
        format!("{} {} {name}", self.family.as_str(), self.name)
    }
}

/// A netfilter socket in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Nft {
    /// `None` where the kernel was built without: nothing is there, and nothing can be made.
    socket: Option<Socket>,
}

impl Nft {
    /// Opens a socket in the calling thread's namespace.
    pub fn open() -> Result<Self> {
        match Socket::open(Protocol::Netfilter) {
            Ok(socket) => Ok(Self { socket: Some(socket) }),
            Err(cause) if cause.errno == Errno::PROTONOSUPPORT => Ok(Self { socket: None }),
            Err(cause) => Err(Error::new("open netfilter socket", "", cause)),
        }
    }
}

impl Drop for Nft {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            crate::deferred_close::defer_close(socket);
        }
    }
}

/// A message of the nf_tables subsystem with its fixed header.
fn message(kind: u16, flags: u16, family: TableFamily) -> Message {
    let mut message = Message::new(SUBSYS_NFTABLES << 8 | kind, flags);
    message.header(&[family.number(), 0, 0, 0]);
    message
}
