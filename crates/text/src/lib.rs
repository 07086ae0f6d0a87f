// SPDX-License-Identifier: Apache-2.0
//! Text for people: error chains, shortened values, suggestions for mistyped names, secrets, and text of other
//! programs that may hold control characters.

mod error_chain;
pub mod escape;
mod secret;
mod shorten;
mod suggest;
pub mod url;

pub use self::error_chain::ErrorChain;
pub use self::secret::Secret;
pub use self::shorten::{shorten, shorten_value};
pub use self::suggest::suggest;
