// SPDX-License-Identifier: Apache-2.0
//! Netlink wire format: a message builder, an attribute parser, and a synchronous socket with
//! extended errors. Links, routes, rules and all other kernel objects are in the crate `kernel`.

mod attrs;
mod error;
mod fd;
mod message;
mod monitor;
mod replies;
mod socket;

pub use crate::attrs::{Attr, Attrs, u16_at, u32_at};
pub use crate::error::Error;
pub use crate::message::{Message, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
pub use crate::monitor::{Monitor, Received};
pub use crate::replies::{Replies, Reply};
pub use crate::socket::{AckStatus, Failure, Protocol, ReplyResult, Socket};
pub use rustix::io::Errno;
