// SPDX-License-Identifier: Apache-2.0
//! JSON decoded and printed as Go's `encoding/json` does it.
//!
//! CNI plugins and flannel are written in Go. A configuration that works there must work here too.

#![warn(missing_docs)]

pub mod base64;
mod decode;
mod repeated;

pub use self::decode::{DecodeError, decode, decode_object, get, take, take_as, to_pretty};
pub use self::repeated::repeated_keys;
