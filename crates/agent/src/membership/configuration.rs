// SPDX-License-Identifier: Apache-2.0
//! The choice of the network configuration: the stored one, or the previous one if this node cannot use
//! the stored one. An invalid configuration in the store does not disturb a running network.

use kernel::IfIndex;
use overlay::backend::Backend;
use overlay::netconf::{NetConf, Pool, RawNetConf, unknown_keys};
use overlay::{Addresses, PerFamily, plan};
use text::Secret;

use super::saved_state::SavedState;
use super::state::JoinError;
use super::{attributes, underlay};
use crate::extension;
use crate::lease::{ConfigLocation, HeldLease, LeaseBackend, OwnNode, Snapshot, StoreItem};
use crate::settings::Settings;
use crate::status::ConditionKind;
use crate::underlay::{Facts, Underlay};

/// The command that changes the stored configuration, with any store.
const REPLACE: &str = "podwire agent --net-config … --replace-net-config";

/// A configuration that this node can use, and what follows from it here.
#[derive(Debug)]
pub(crate) struct Evaluated {
    /// The configuration as stored. It may contain a pre-shared key.
    pub text: Secret,
    pub conf: NetConf,
    /// The ranges from which nodes choose their subnets; empty if subnets are assigned to them.
    pub pools: PerFamily<Pool>,
    pub underlay: Underlay,
    /// The stored configuration; `None` if there is none.
    pub stored: Option<Secret>,
    /// Why the stored configuration is not in effect.
    pub rejected: Option<String>,
}

/// Evaluates configurations against the present state of this node.
pub(super) struct Evaluator<'a> {
    pub settings: &'a Settings,
    pub leases: &'a dyn LeaseBackend,
    pub own: &'a OwnNode,
    pub facts: Result<Facts, String>,
    pub saved: SavedState,
    /// The interface that is in use.
    pub interface: Option<IfIndex>,
    pub held: Option<&'a HeldLease>,
    /// The configuration that is in effect.
    pub effective: Option<&'a Secret>,
}

impl Evaluator<'_> {
    /// Returns the stored configuration, or the previous one if the stored one cannot be used.
    pub(super) async fn choose(&self, snapshot: &Snapshot) -> Result<Evaluated, JoinError> {
        let has_effective = self.effective.is_some();
        let stored = stored(self.leases, &snapshot.items, has_effective).await;
        let present = stored.as_ref().ok().cloned();
        let is_new = present.as_ref() != self.effective;
        let usable = stored.and_then(|text| self.evaluate(text));
        let usable = usable.and_then(|one| self.check_capacity(&one).map(|()| one));
        match (usable, self.effective) {
            (Err(error), Some(effective)) if is_new => {
                let evaluated = self.evaluate(effective.clone())?;
                Ok(Evaluated { stored: present, rejected: Some(rejected(&error)), ..evaluated })
            }
            (evaluated, _) => evaluated,
        }
    }

    /// Checks whether this node can be part of such a network.
    pub(super) fn evaluate(&self, text: Secret) -> Result<Evaluated, JoinError> {
        let invalid = |reason: String| JoinError::new(ConditionKind::Config, reason);
        let raw = RawNetConf::parse(text.expose()).map_err(|error| invalid(error.to_string()))?;
        let conf = raw.validate().map_err(|error| invalid(error.to_string()))?;
        extension::check_allowed(self.settings, &conf).map_err(invalid)?;
        let pools = self.leases.pools(&raw).map_err(|error| invalid(error.to_string()))?;
        let underlay = self.underlay(&conf)?;
        // Checked here and not with the plan: by then the lease of the previous configuration would be gone.
        let own = Addresses { v4: underlay.local_v4, v6: underlay.local_v6 };
        plan::check_networks(&conf, own).map_err(|error| invalid(error.to_string()))?;
        Ok(Evaluated { stored: Some(text.clone()), text, conf, pools, underlay, rejected: None })
    }

    /// Checks a stored configuration that is not in effect.
    pub(super) fn check(&self, text: Secret) -> Result<(), JoinError> {
        self.check_capacity(&self.evaluate(text)?)
    }

    /// Returns the interface to other nodes, with the address families of the pods or of the tunnel.
    pub(super) fn underlay(&self, conf: &NetConf) -> Result<Underlay, JoinError> {
        let published = self.held.map(|held| held.lease.attributes.public).unwrap_or_default();
        let facts = self.facts.as_ref().map_err(String::clone);
        facts
            .and_then(|facts| {
                underlay::choose(self.settings, self.own, conf, facts, self.interface, published)
            })
            .map_err(|reason| JoinError::new(ConditionKind::Underlay, reason))
    }

    /// Checks whether this node has a subnet in such a network, or can get one.
    fn check_capacity(&self, evaluated: &Evaluated) -> Result<(), JoinError> {
        let held = self.held.cloned().or_else(|| self.saved.lease(self.leases));
        let fits = |held: HeldLease| self.leases.may_keep(&evaluated.pools, &held.lease.subnets);
        if held.is_some_and(fits) {
            return Ok(());
        }
        let public = attributes::public_addresses(self.own, &evaluated.underlay);
        Ok(self.leases.check_capacity(&evaluated.pools, public)?)
    }
}

/// Returns the stored configuration as it was written.
pub(super) async fn stored(
    leases: &dyn LeaseBackend,
    items: &[StoreItem],
    has_effective: bool,
) -> Result<Secret, JoinError> {
    let location = leases.config_location();
    let missing = |reason: String| JoinError::new(ConditionKind::Config, reason);
    match leases.config(items).await {
        Ok(Some(text)) => Ok(Secret::new(text)),
        Ok(None) if location.file().is_some() => {
            Err(missing(format!("the network has no configuration: {location} is not there")))
        }
        Ok(None) => Err(missing(format!(
            "the network has no configuration: nothing is stored under {location}, and {}",
            match has_effective {
                false => "no --net-config was given".to_owned(),
                true => format!("{REPLACE} stores one"),
            }
        ))),
        Err(error) => Err(missing(format!("read {location}: {error}"))),
    }
}

/// Returns whether the store has no configuration, so that the agent may store one. An unreadable
/// configuration exists.
pub(super) async fn is_missing(leases: &dyn LeaseBackend, snapshot: &Snapshot) -> bool {
    let is_key = matches!(leases.config_location(), ConfigLocation::Key(_));
    is_key && matches!(leases.config(&snapshot.items).await, Ok(None))
}

/// Describes why the previous configuration stays in effect.
pub(super) fn rejected(error: &JoinError) -> String {
    format!("{}; the configuration before it stays in force", error.reason)
}

/// Returns warnings about a configuration in effect.
pub(super) fn warnings(
    settings: &Settings,
    leases: &dyn LeaseBackend,
    evaluated: &Evaluated,
) -> Vec<String> {
    let differs = differs_from_option(settings, leases, evaluated).into_iter();
    differs.chain(unknown_keys(evaluated.text.expose())).chain(mtu_too_large(evaluated)).collect()
}

fn differs_from_option(
    settings: &Settings,
    leases: &dyn LeaseBackend,
    evaluated: &Evaluated,
) -> Option<String> {
    let location = leases.config_location();
    let option = RawNetConf::parse(settings.network.config.as_ref()?.expose());
    let option = option.and_then(|option| Ok((option.validate()?, option.pools()?)));
    let is_same =
        option.is_ok_and(|(conf, pools)| conf == evaluated.conf && pools == evaluated.pools);
    match location {
        _ if is_same => None,
        ConfigLocation::Key(_) => Some(format!(
            "--net-config differs from what is stored under {location}, which counts: {REPLACE} stores it"
        )),
        ConfigLocation::File(_) => {
            Some(format!("--net-config differs from {location}, which counts"))
        }
    }
}

fn mtu_too_large(evaluated: &Evaluated) -> Option<String> {
    let configured = match &evaluated.conf.backend {
        Backend::Vxlan(vxlan) => vxlan.mtu,
        Backend::Wireguard(wireguard) => wireguard.mtu,
        _ => None,
    };
    let Underlay { name, mtu, .. } = &evaluated.underlay;
    let configured = configured.filter(|configured| configured > mtu)?;
    Some(format!("key \"Backend.MTU\" is {configured}: {name} has {mtu}, which counts"))
}
