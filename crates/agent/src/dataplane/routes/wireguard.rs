// SPDX-License-Identifier: Apache-2.0
//! The public key of a private one, as the kernel computes it: a link that is given the one shows the other.

use kernel::link::{self, Kind, NewLink};
use kernel::wireguard::{DeviceChange, PrivateKey, PublicKey, Wireguard};
use kernel::{IfName, Netlink};

/// In the calling thread's namespace. A link that has the key already is asked; else one is made for the
/// moment, which is never up.
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
    let name = momentary();
    // One that a crash has left.
    let _ = nl.apply([link::remove(name)]);
    nl.apply([link::create(&NewLink::new(name, Kind::Wireguard))])?;
    let change = DeviceChange { private_key: Some(private), ..DeviceChange::default() };
    let found = wireguard.set(name, &change).and_then(|()| wireguard.get(name));
    nl.apply([link::remove(name)])?;
    Ok(found?.and_then(|device| device.public_key))
}

fn momentary() -> IfName {
    "podwire-key".parse().expect("eleven letters are a name")
}
