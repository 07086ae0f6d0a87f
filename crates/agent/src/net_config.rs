// SPDX-License-Identifier: Apache-2.0
//! Replaces the stored network configuration for all nodes. Running agents switch to it.

use gojson::DecodeError;
use overlay::netconf::{NetConf, RawNetConf};
use overlay::{Addresses, plan};

use crate::lease::{self, OwnNode};
use crate::membership::underlay;
use crate::run::Error;
use crate::settings::Settings;

/// Checks that the configuration is complete.
pub(crate) fn check(text: &str) -> Result<(), DecodeError> {
    let conf = RawNetConf::parse(text)?;
    conf.validate()?;
    conf.pools().map(drop)
}

/// Checks that this machine could join the network. A machine without a suitable interface is no node, and may replace
/// the configuration all the same.
async fn check_here(settings: &Settings, text: &str) -> Result<(), Error> {
    let conf = NetConf::parse(text)?;
    let (own_node, published) = (OwnNode::default(), Addresses::default());
    let chosen = underlay::observe(settings, &own_node)
        .await
        .and_then(|facts| underlay::choose(settings, &own_node, &conf, &facts, None, published));
    let Ok(underlay) = chosen else { return Ok(()) };
    let own = Addresses { v4: underlay.local_v4, v6: underlay.local_v6 };
    Ok(plan::check_networks(&conf, own)?)
}

/// Stores the configuration of the settings in place of the present one. Returns what was done, or what would be done
/// with `dry-run`.
pub async fn replace(settings: &Settings) -> Result<String, Error> {
    let text = settings.network.config.as_ref().map_or("", |text| text.expose());
    check(text)?;
    check_here(settings, text).await?;
    let leases = lease::open(settings).await?;
    let location = leases.config_location();
    let stored = leases.config(&leases.list().await?.items).await;
    if stored.is_ok_and(|stored| stored.as_deref() == Some(text)) {
        return Ok(format!("{location} has this configuration already"));
    }
    if !settings.mode.dry_run {
        leases.replace_config(text).await?;
    }
    Ok(format!("write the network's configuration to {location}"))
}
