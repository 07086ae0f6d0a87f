// SPDX-License-Identifier: Apache-2.0
//! Names that follow from an attachment, so that DEL and GC find its interface on the host
//! without namespace, result or any record of ours.

use cni::Attachment;
use kernel::IfName;

/// Starts the second name of every interface of ours; the rest tells network and attachment.
const MARK: &str = "podwire-";

/// The host end's name. `attempt` tells names of one attachment apart should one be taken.
pub fn host_ifname(network: &str, attachment: &Attachment, attempt: u32) -> IfName {
    let key = [network, &attachment.container_id, &attachment.ifname, &attempt.to_string()];
    let hash = digest(&key);
    let name = format!("veth{:08x}", (hash ^ (hash >> 32)) as u32);
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
}
