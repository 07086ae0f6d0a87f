// SPDX-License-Identifier: Apache-2.0
//! Text that must not be printed as it is: secrets, and text of others that may hold control characters.

mod error_chain;
pub mod escape;
mod secret;
pub mod url;

pub use self::error_chain::ErrorChain;
pub use self::secret::Secret;
