// SPDX-License-Identifier: Apache-2.0
//! Names that follow from an attachment, so that DEL and GC find its interface on the host
//! without namespace, result or any record of ours; hardware addresses that follow from IP addresses.

use std::net::IpAddr;

use cni::Attachment;
use kernel::{IfName, MacAddr};

/// Starts the second name of every interface of ours; the rest tells network and attachment.
const MARK: &str = "podwire-";

/// The host end's name. `attempt` tells names of one attachment apart should one be taken.
pub fn host_ifname(network: &str, attachment: &Attachment, attempt: u32) -> IfName {
    let key = [network, &attachment.container_id, &attachment.ifname, &attempt.to_string()];
    let hash = digest(&key);
    let name = format!("veth{:08x}", fold(hash));
    name.parse().expect("12 letters and digits are a valid name")
}

/// The host end's second name: it can be looked up at once, and belongs to one attachment only.
pub fn altname(network: &str, attachment: &Attachment) -> String {
    let (one, two) = (&attachment.container_id, &attachment.ifname);
    // Two digests over the same words in different order make 128 bits.
    format!("{}{:016x}{:016x}", altname_prefix(network), digest(&[one, two]), digest(&[two, one]))
}

/// What the second names of all interfaces of a network start with.
pub fn altname_prefix(network: &str) -> String {
    format!("{MARK}{:016x}-", digest(&[network]))
}

/// The hardware address for the holder of an IP address. The next holder has the same one, so what
/// neighbours remember stays true, and a new container need not shout to all others on its bridge.
pub fn mac_of(address: IpAddr) -> MacAddr {
    let [a, b, c, d] = match address {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(v6) => fold(digest(&[&v6.to_string()])).to_be_bytes(),
    };
    MacAddr([0x0a, 0x58, a, b, c, d])
}

fn fold(hash: u64) -> u32 {
    (hash ^ (hash >> 32)) as u32
}

/// FNV-1a over the words with a separator that none of them can hold. Names need no secrecy, only
/// the same answer in every build and on every machine.
fn digest(words: &[&str]) -> u64 {
    let bytes = words.iter().flat_map(|word| word.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(container_id: &str, ifname: &str) -> Attachment {
        Attachment { container_id: container_id.into(), ifname: ifname.into() }
    }

    #[test]
    fn names_do_not_change_between_builds() {
        let one = attachment("c1", "eth0");
        assert_eq!(host_ifname("net", &one, 0).as_str(), "veth7f504848");
        assert_eq!(
            altname("net", &one),
            "podwire-e53f18baa0319ec8-a35ad96f19677b2605cbc15c927c4c4c"
        );
    }

    #[test]
    fn names_tell_attachments_apart() {
        let one = attachment("c1", "eth0");
        assert_ne!(host_ifname("net", &one, 0), host_ifname("net", &one, 1));
        assert_ne!(host_ifname("net", &one, 0), host_ifname("tne", &one, 0));
        assert_ne!(altname("net", &one), altname("net", &attachment("c1e", "th0")));
        assert!(altname("net", &one).starts_with(&altname_prefix("net")));
        assert!(altname(&"n".repeat(500), &attachment(&"c".repeat(500), "eth0")).len() < 128);
    }

    #[test]
    fn hardware_addresses_follow_ip_addresses() {
        assert_eq!(mac_of("10.1.2.3".parse().unwrap()).to_string(), "0a:58:0a:01:02:03");
        let (one, two) = ("fd00::5".parse().unwrap(), "fd00::6".parse().unwrap());
        assert_eq!(mac_of(one), mac_of(one));
        assert_ne!(mac_of(one), mac_of(two));
    }
}
