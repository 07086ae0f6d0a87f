// SPDX-License-Identifier: Apache-2.0
//! The attributes of this node's lease: addresses, MAC addresses and keys for other nodes.

use kernel::Family;
use kernel::wireguard::{PrivateKey, PublicKey};
use overlay::Addresses;
use overlay::backend::{Backend, wireguard};
use overlay::lease::{Attributes, Lease};
use overlay::netconf::NetConf;
use overlay::publish::{self, Identity};
use text::ErrorChain;
use tokio::task::spawn_blocking;

use super::configuration::Evaluated;
use super::state::JoinError;
use crate::dataplane::routes::{RoutesDataplane, public_key};
use crate::keys;
use crate::lease::{NodeRecordState, OwnNode, StoreItem};
use crate::settings::Settings;
use crate::status::ConditionKind;
use crate::underlay::Underlay;

/// The node's WireGuard keys.
#[derive(Debug, Clone)]
pub(crate) struct WireguardKeys {
    pub private: PrivateKey,
    /// `None` if the kernel has no WireGuard.
    pub public: Option<PublicKey>,
}

/// Reads or creates the private key, and asks the kernel for its public key.
pub(crate) async fn wireguard_keys(
    settings: &Settings,
    routes: &RoutesDataplane,
) -> Result<WireguardKeys, JoinError> {
    let failed = |reason: String| JoinError::new(ConditionKind::Kernel, reason);
    let (state_dir, subnet_env) =
        (settings.node.state_dir.clone(), settings.files.subnet_env.clone());
    let read = if settings.mode.dry_run { keys::preview_wireguard } else { keys::wireguard };
    let read = spawn_blocking(move || read(&state_dir, &subnet_env.with_file_name("wgkey")));
    let private = read.await.map_err(|error| failed(error.to_string()))?;
    let private = private.map_err(|error| failed(ErrorChain(&error).to_string()))?;
    let names = Family::ALL.map(wireguard::device_name);
    let key = private.clone();
    let public = routes.run(move |_| public_key(&key, &names)).await;
    let public = public.map_err(|error| failed(error.to_string()))?;
    Ok(WireguardKeys { private, public: public.map_err(|error| failed(error.to_string()))? })
}

/// Returns whether a configuration needs the WireGuard keys.
pub(crate) fn needs_wireguard(conf: &NetConf) -> bool {
    matches!(conf.backend, Backend::Wireguard(_))
}

/// Returns the addresses under which other nodes reach this one.
pub(super) fn public_addresses(own: &OwnNode, underlay: &Underlay) -> Addresses {
    let set = own.overwrites.public;
    Addresses { v4: set.v4.or(underlay.public_v4), v6: set.v6.or(underlay.public_v6) }
}

/// Facts from which the attributes are computed together with the configuration.
pub(super) struct Source<'a> {
    pub own: &'a OwnNode,
    /// Identifies the node; it does not change with its addresses.
    pub identity: &'a str,
    pub wireguard_key: Option<PublicKey>,
    /// The output of the extension backend's first command.
    pub extension_output: Option<&'a str>,
    /// The attributes that this node published last.
    pub published: Option<Attributes>,
    pub items: &'a [StoreItem],
}

impl Source<'_> {
    /// Returns the attributes. The node keeps a MAC address that other nodes already know.
    pub(super) fn attributes(&self, evaluated: &Evaluated) -> Result<Attributes, JoinError> {
        let underlay = &evaluated.underlay;
        let public = public_addresses(self.own, underlay);
        let with_seed = |seed: &str| {
            let identity = Identity {
                seed: seed.as_bytes(),
                addresses: Addresses { v4: underlay.local_v4, v6: underlay.local_v6 },
                public,
                wireguard_key: self.wireguard_key,
                extension_output: self.extension_output,
            };
            publish::attributes(&evaluated.conf, &identity)
                .map_err(|error| JoinError::new(ConditionKind::Underlay, error.to_string()))
        };
        let attributes = with_seed(self.identity)?;
        let others = || leases(self.items).map(|(_, _, lease)| &lease.attributes);
        let same_address = || others().find(|one| one.public == attributes.public).cloned();
        if let Some(published) = self.published.clone().or_else(same_address) {
            return Ok(publish::keep_macs(attributes, &published));
        }
        match others().any(|other| publish::share_mac(&attributes, other)) {
            // Another machine is a copy of this one, with the same identity.
            true => with_seed(&format!("{} {public:?}", self.identity)),
            false => Ok(attributes),
        }
    }
}

/// Returns the nodes with a lease: name, creation revision, lease.
pub(crate) fn leases(items: &[StoreItem]) -> impl Iterator<Item = (&str, u64, &Lease)> {
    items.iter().filter_map(|item| match item {
        StoreItem::Node(node) => match &node.state {
            NodeRecordState::Active { since, lease } => {
                Some((node.name.as_str(), *since, &**lease))
            }
            _ => None,
        },
        StoreItem::Config(_) | StoreItem::ConfigRejected(_) => None,
    })
}
