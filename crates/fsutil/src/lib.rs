// SPDX-License-Identifier: Apache-2.0
//! State files that other processes can access. They are opened without following symbolic links or blocking on FIFOs,
//! locked with a deadline, and replaced atomically.

#![warn(missing_docs)]

mod lock;
mod open;
mod replace;

pub use lock::{Lock, lock, lock_shared, open_lock, try_lock};
pub use open::{
    LIMIT, create, is_wrong_kind, open, open_following, open_for_update, read, read_following,
};
pub use replace::replace;
