// SPDX-License-Identifier: Apache-2.0
//! The CNI specification, versions 0.1.0 to 1.1.0, as a library.
//!
//! For a plugin: describe it as a [`Plugin`], a table of functions from a [`Request`] to a result,
//! and give it to [`plugin::answer`] in `main`; [`delegate`] calls other plugins. For a runtime:
//! [`runtime`]. Both share [`CniResult`], [`Error`] and [`Version`]. Nothing here touches the
//! kernel's network.

#![warn(missing_docs)]

pub mod args;
mod attachment_lock;
pub mod delegate;
pub mod error;
pub mod exec;
pub mod plugin;
pub mod request;
pub mod result;
pub mod runtime;
pub mod validate;
pub mod version;

pub use crate::args::Args;
pub use crate::error::{Code, Error};
pub use crate::plugin::{Host, Plugin};
pub use crate::request::{Attachment, BeforeLinkUp, Command, Delegation, Request};
pub use crate::result::{Cidr, CniResult, Dns, Interface, IpConfig, Route};
pub use crate::version::Version;
