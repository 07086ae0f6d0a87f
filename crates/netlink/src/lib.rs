// SPDX-License-Identifier: Apache-2.0
//! Netlink wire format: a message builder, an attribute reader, and a synchronous socket with
//! extended errors. It knows no kernel object; links, routes and rules live in `kernel`.

mod attrs;
mod error;
mod fd;
mod message;
mod monitor;
mod replies;
mod socket;

pub use crate::attrs::{Attr, Attrs, u16_at, u32_at};
pub use crate::error::Error;
pub use crate::message::{
    Message, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE,
};
pub use crate::monitor::{Monitor, Received};
pub use crate::replies::{Replies, Reply};
pub use crate::socket::{Answer, Failure, Got, Protocol, Socket};
pub use rustix::io::Errno;
