// SPDX-License-Identifier: Apache-2.0
//! Ctrl-C and its like as something to ask about between two steps, so that what was begun can
//! be undone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Whether somebody asked us to stop. A second request while we clean up changes nothing.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on these signals only set the flag.
    pub fn catch() -> Result<Stop> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag))
                .with_context(|| format!("catch signal {signal}"))?;
        }
        Ok(Stop(flag))
    }

    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error where we were asked to stop.
    pub fn check(&self) -> Result<()> {
        if self.is_asked() {
            bail!("interrupted");
        }
        Ok(())
    }
}
