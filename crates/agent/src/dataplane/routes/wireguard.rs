// SPDX-License-Identifier: Apache-2.0
//! The public key of a private key. The kernel computes it: a WireGuard link shows the public key
//! of its private key.

use kernel::link::{self, Kind, NewLink};
use kernel::wireguard::{DeviceChange, PrivateKey, PublicKey, Wireguard};
use kernel::{IfName, Netlink};

/// Returns the public key, from one of the `candidates` in the calling thread's network namespace
/// that has the private key, or from a temporary link that is never up.
pub fn public_key(
    private: &PrivateKey,
    candidates: &[IfName],
) -> kernel::Result<Option<PublicKey>> {
    let wireguard = Wireguard::open()?;
    for name in candidates {
        let device = wireguard.get(*name).ok().flatten();
        if let Some(device) = device.filter(|one| one.private_key.as_ref() == Some(private)) {
            return Ok(device.public_key);
        }
    }
    let nl = Netlink::open()?;
    let name = temporary_name();
    // A stale link of an agent that crashed here.
    let _ = nl.apply([link::remove(name)]);
    nl.apply([link::create(&NewLink::new(name, Kind::Wireguard))])?;
    let change = DeviceChange { private_key: Some(private), ..DeviceChange::default() };
    let device = wireguard.set(name, &change).and_then(|()| wireguard.get(name));
    nl.apply([link::remove(name)])?;
    Ok(device?.and_then(|device| device.public_key))
}

fn temporary_name() -> IfName {
    "podwire-key".parse().expect("eleven letters are a valid interface name")
}
