// SPDX-License-Identifier: Apache-2.0
//! Why nobody answers at a socket.

use std::io;
use std::time::Duration;

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum Silence {
    /// Nobody listens, or not to us.
    #[error("{0}")]
    Absent(io::Error),
    /// Somebody does, and says nothing, or nothing that makes sense.
    #[error("{0}")]
    Mute(String),
}

impl Silence {
    /// Of a talk that ended so, with waits of at most that long.
    pub fn mute(cause: &io::Error, patience: Duration) -> Self {
        Silence::Mute(match cause.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("no answer within {} s", patience.as_secs_f32())
            }
            _ => cause.to_string(),
        })
    }
}
