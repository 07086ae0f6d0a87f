// SPDX-License-Identifier: Apache-2.0
//! The CNI specification, versions 0.1.0 to 1.1.0, as a library.
//!
//! A plugin is described by a [`Plugin`], a table of functions from a [`Request`] to a result. `main` passes it to
//! [`plugin::answer`]; [`delegate`] calls other plugins. A container runtime uses [`runtime`]. Both sides share
//! [`CniResult`], [`Error`] and [`Version`]. This crate never changes the network configuration of the kernel.

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
