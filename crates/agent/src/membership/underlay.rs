// SPDX-License-Identifier: Apache-2.0
//! The choice of the interface to other nodes for a network configuration.

use kernel::{Family, IfIndex, Netlink};
use overlay::backend::{Backend, WireguardMode};
use overlay::netconf::NetConf;
use overlay::{Addresses, plan};
use tokio::task::spawn_blocking;

use crate::lease::OwnNode;
use crate::settings::Settings;
use crate::underlay::{self, Carrier, Facts, Underlay, Wish};

/// Reads interfaces, addresses and default routes on another thread, because a node may have thousands of
/// interfaces.
pub(crate) async fn observe(settings: &Settings, own: &OwnNode) -> Result<Facts, String> {
    let (can_reach, internal) = (settings.underlay.can_reach, own.internal.clone());
    let read = move || Facts::read(&Netlink::open()?, can_reach, internal);
    match spawn_blocking(read).await {
        Ok(facts) => facts.map_err(|error: kernel::Error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// Chooses the interface. `before` is the interface that is in use, and `published` are the addresses
/// under which other nodes know this one.
pub(crate) fn choose(
    settings: &Settings,
    own: &OwnNode,
    conf: &NetConf,
    facts: &Facts,
    before: Option<IfIndex>,
    published: Addresses,
) -> Result<Underlay, String> {
    let wish = Wish {
        interfaces: &settings.underlay.interfaces,
        patterns: &settings.underlay.patterns,
        can_reach: settings.underlay.can_reach,
        before,
        public_v4: own.overwrites.node.v4.or(settings.underlay.public_ipv4),
        public_v6: own.overwrites.node.v6.or(settings.underlay.public_ipv6),
        ..Wish::default()
    };
    underlay::choose_among(&carriers(conf), &wish, facts, published)
        .map_err(|why| format!("no interface to other nodes: {why}"))
}

/// The address families that the interface should have, in order of preference.
fn carriers(conf: &NetConf) -> [Carrier; 3] {
    let has = |family| conf.networks.get(family).is_some();
    let first = match &conf.backend {
        Backend::Wireguard(wireguard) if wireguard.mode != WireguardMode::Separate => (true, true),
        _ => (has(Family::V4), has(Family::V6)),
    };
    [first, (true, false), (false, true)]
}

/// The underlay as the plan needs it.
pub(crate) fn planned(chosen: &Underlay) -> plan::Underlay {
    plan::Underlay {
        name: chosen.name,
        index: chosen.index,
        mtu: chosen.mtu,
        addresses: Addresses { v4: chosen.local_v4, v6: chosen.local_v6 },
        on_link: std::collections::HashMap::new(),
    }
}

/// Describes the difference between two underlays; `None` if they are equal.
pub(super) fn difference(before: &plan::Underlay, now: &plan::Underlay) -> Option<String> {
    let shown = |underlay: &plan::Underlay| {
        let addresses: Vec<String> = underlay.addresses.iter().map(|one| one.to_string()).collect();
        format!("{} with {} and MTU {}", underlay.name, addresses.join(", "), underlay.mtu)
    };
    let text = || format!("the underlay is {}; it was {}", shown(now), shown(before));
    (before != now).then(text)
}
