// SPDX-License-Identifier: Apache-2.0
//! Another configuration for all nodes of a network, on an administrator's word. Agents that run change over.

use cni::json::DecodeError;
use overlay::netconf::NetConfConf;

use crate::options::Settings;
use crate::run::{self, Error};

/// Whether it says what a node needs.
pub(crate) fn check(text: &str) -> Result<(), DecodeError> {
    let written = NetConfConf::read(text)?;
    written.understand()?;
    written.pools().map(drop)
}

/// Stores the one that the settings tell in the place of what is stored. Tells what was done, or with `dry-run`
/// would be.
pub async fn replace(settings: &Settings) -> Result<String, Error> {
    let text = settings.net_config.as_deref().unwrap_or_default();
    check(text)?;
    let (leases, _) = run::open(settings).await?;
    let place = leases.config_place();
    let seen = leases.understand(&leases.list().await?);
    if leases.configuration(&seen).is_ok_and(|stored| stored.as_deref() == Some(text)) {
        return Ok(format!("{place} has this configuration already"));
    }
    if !settings.dry_run {
        leases.replace_config(text).await?;
    }
    Ok(format!("write the network's configuration to {place}"))
}
