// SPDX-License-Identifier: Apache-2.0
//! Which families carry what pods send: those that pods have, where the node has them, too; else one that it
//! has.

use overlay::Addresses;

use super::{Facts, Underlay, Wish, choose};

/// Whether there are tunnels over IPv4, and over IPv6.
pub type Carrier = (bool, bool);

/// The first of the carriers for which there is an interface. `told` is what other nodes know of this one: by
/// another family alone none of them would find it.
pub fn choose_among(
    carriers: &[Carrier],
    wish: &Wish<'_>,
    facts: &Facts,
    told: Addresses,
) -> Result<Underlay, String> {
    let mut reason = None;
    // Every interface has such an address, also while it waits for others: it is taken where there is nothing
    // else.
    let mut link_local = None;
    for (at, &(ipv4, ipv6)) in carriers.iter().enumerate() {
        let is_first = at == 0;
        match choose(&Wish { ipv4, ipv6, ..wish.clone() }, facts) {
            Ok(underlay) if is_link_local(&underlay) => {
                link_local = link_local.or(is_first.then_some(underlay));
            }
            Ok(underlay) if is_first || is_known_by(told, (ipv4, ipv6)) => return Ok(underlay),
            Ok(_) => {}
            Err(why) => reason = reason.or(Some(why)),
        }
    }
    link_local.ok_or_else(|| reason.unwrap_or_default())
}

/// A node that others know nothing of has nothing to lose.
fn is_known_by(told: Addresses, (ipv4, ipv6): Carrier) -> bool {
    told == Addresses::default() || ipv4 && told.v4.is_some() || ipv6 && told.v6.is_some()
}

/// Whether others on the link alone can use what this node tells them.
fn is_link_local(underlay: &Underlay) -> bool {
    underlay.public_v4.is_some_and(|address| address.is_link_local())
        || underlay.public_v6.is_some_and(|address| address.is_unicast_link_local())
}
