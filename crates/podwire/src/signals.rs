// SPDX-License-Identifier: Apache-2.0
//! Stop signals as a flag that a command checks between two steps, so that it can undo what it has
//! done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Set by SIGINT, SIGTERM or SIGHUP. A second signal during the clean-up changes nothing.
#[derive(Clone, Debug)]
pub(crate) struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// From now on these signals only set the flag.
    pub(crate) fn catch() -> Result<StopSignal> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag))
                .with_context(|| format!("catch signal {signal}"))?;
        }
        Ok(StopSignal(flag))
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails once a stop signal has arrived.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_set() {
            bail!("interrupted");
        }
        Ok(())
    }
}
