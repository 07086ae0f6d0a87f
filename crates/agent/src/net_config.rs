// SPDX-License-Identifier: Apache-2.0
//! Another configuration for all nodes of a network, on an administrator's word. Agents that run change over.

use cni::json::DecodeError;
use overlay::netconf::{NetConf, RawNetConf};
use overlay::{Addresses, plan};

use crate::leases::OwnNode;
use crate::options::Settings;
use crate::run::{self, Error};
use crate::session::underlay_of;

/// Whether it says what a node needs.
pub(crate) fn check(text: &str) -> Result<(), DecodeError> {
    let written = RawNetConf::parse(text)?;
    written.validate()?;
    written.pools().map(drop)
}

/// Whether this node could be part of it, where this is a node at all.
fn check_here(settings: &Settings, text: &str) -> Result<(), Error> {
    let conf = NetConf::parse(text)?;
    let (unknown, untold) = (OwnNode::default(), Addresses::default());
    let Ok(chosen) = underlay_of(settings, &unknown, &conf, None, untold) else { return Ok(()) };
    let own = Addresses { v4: chosen.local_v4, v6: chosen.local_v6 };
    Ok(plan::check_networks(&conf, own)?)
}

/// Stores the one that the settings tell in the place of what is stored. Tells what was done, or with `dry-run`
/// would be.
pub async fn replace(settings: &Settings) -> Result<String, Error> {
    let text = settings.net_config.as_ref().map_or("", |text| text.expose());
    check(text)?;
    check_here(settings, text)?;
    let (leases, _) = run::open(settings).await?;
    let place = leases.config_place();
    let seen = leases.config_in(&leases.list().await?);
    if leases.configuration(seen.as_slice()).is_ok_and(|stored| stored.as_deref() == Some(text)) {
        return Ok(format!("{place} has this configuration already"));
    }
    if !settings.dry_run {
        leases.replace_config(text).await?;
    }
    Ok(format!("write the network's configuration to {place}"))
}
