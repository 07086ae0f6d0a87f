// SPDX-License-Identifier: Apache-2.0
//! Interface names, link groups and MAC addresses derived from an attachment or an IP address. DEL
//! and GC find an attachment's interface by them, without a namespace, a result or a state file.

use std::net::IpAddr;

use cni::Attachment;
use kernel::{IfIndex, IfName, MacAddr};

/// Number of alternative names of a host end. An interface whose namespace is being removed may
/// still hold a name for a moment.
const ATTEMPTS: u32 = 4;

/// The possible names of an attachment's host end, in the order to try.
pub fn host_ifnames(network: &str, attachment: &Attachment) -> impl Iterator<Item = IfName> {
    (0..ATTEMPTS).map(move |attempt| host_ifname(network, attachment, attempt))
}

/// Three digits longer than the names of the Go plugin, so that the two can be told apart.
fn host_ifname(network: &str, attachment: &Attachment, attempt: u32) -> IfName {
    let key = [network, &attachment.container_id, &attachment.ifname, &attempt.to_string()];
    let name = format!("veth{:011x}", digest(&key) >> 20);
    name.parse().expect("15 letters and digits are a valid name")
}

/// The name of the bridge port of a VLAN gateway. The port is in no network's group.
pub fn gateway_port(gateway: IfName) -> IfName {
    let name = format!("veth{:011x}", digest(&["gateway", gateway.as_str()]) >> 20);
    name.parse().expect("15 letters and digits are a valid name")
}

/// Whether this is the name of a host end that a podwire plugin created.
pub fn is_host_ifname(name: IfName) -> bool {
    let digits = name.as_str().strip_prefix("veth");
    digits.is_some_and(|digits| digits.len() == 11 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The link group of a network's host ends, for GC and for `ip link show group`.
pub fn network_group(network: &str) -> u32 {
    folded(digest(&[network]))
}

/// Folds a digest to 31 bits, because `ip link` treats a group as signed. Never 0, the default
/// group.
fn folded(digest: u64) -> u32 {
    (((digest ^ (digest >> 32)) as u32) & 0x7fff_ffff).max(1)
}

/// The link group of an interface without a host end. The upper 16 bits identify the network, the
/// lower 16 bits the attachment.
pub fn attachment_group(network: &str, attachment: &Attachment) -> u32 {
    let digest = digest(&[network, &attachment.container_id, &attachment.ifname]);
    network_half(network) << 16 | u32::from(((digest >> 32) ^ digest) as u16)
}

/// The link group of a host device in a container. The upper 16 bits identify the network, the
/// lower 16 bits the container and interface, so that the device is recognized after its network
/// was renamed.
pub fn device_group(network: &str, attachment: &Attachment) -> u32 {
    network_half(network) << 16 | u32::from(attachment_half(attachment))
}

/// Whether this is the group of a device of this attachment, on any network.
pub fn is_device_group(attachment: &Attachment, group: u32) -> bool {
    group >> 16 != 0 && group as u16 == attachment_half(attachment)
}

fn attachment_half(attachment: &Attachment) -> u16 {
    let digest = digest(&[&attachment.container_id, &attachment.ifname]);
    ((digest >> 32) ^ digest) as u16
}

/// Whether this is the group of an attachment or a device of this network.
pub fn is_attachment_group(network: &str, group: u32) -> bool {
    group >> 16 == network_half(network)
}

/// Never 0, so that a small number chosen by an administrator never matches. 15 bits, because `ip
/// link` treats a group as signed.
fn network_half(network: &str) -> u32 {
    (network_group(network) >> 16).max(1)
}

/// An interface index for an attachment, above 2^30 so that it does not collide with indexes that
/// the kernel assigns.
pub fn attachment_index(network: &str, attachment: &Attachment) -> IfIndex {
    IfIndex(attachment_group(network, attachment) | 0x4000_0000)
}

/// The MAC address for an IP address. The next container with the same IP address gets the same MAC
/// address: the neighbours' caches stay correct and no announcement is needed.
pub fn mac_of(address: IpAddr) -> MacAddr {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            MacAddr([0x0a, 0x58, a, b, c, d])
        }
        // Networks that share a bridge may differ in any bits, so the MAC address depends on the whole address.
        IpAddr::V6(v6) => {
            let [a, b, c, d, e, ..] = digest_of(v6.octets()).to_be_bytes();
            MacAddr([0x0e, a, b, c, d, e])
        }
    }
}

/// FNV-1a over the words, each followed by a NUL byte, which no word contains. The result must be
/// the same in every build and on every machine; it need not be secret.
pub(crate) fn digest(words: &[&str]) -> u64 {
    digest_of(words.iter().flat_map(|word| word.bytes().chain([0])))
}

fn digest_of(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn attachment(container_id: &str, ifname: &str) -> Attachment {
        Attachment { container_id: container_id.into(), ifname: ifname.into() }
    }

    #[test]
    fn host_ifname_and_group_are_stable() {
        let one = attachment("c1", "eth0");
        assert_eq!(host_ifname("net", &one, 0).as_str(), "vethb18a86e3ced");
        assert_eq!(network_group("net"), 0x450e8672);
    }

    #[test]
    fn host_ifnames_are_unique() {
        let one = attachment("c1", "eth0");
        let names = |network, one| host_ifnames(network, one).collect::<Vec<_>>();
        let mut all = [names("net", &one), names("tne", &one)].concat();
        all.extend(names("net", &attachment("c1e", "th0")));
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 3 * ATTEMPTS as usize);
        assert!(all.into_iter().all(is_host_ifname));
    }

    #[test]
    fn attachment_group_identifies_network() {
        let (one, two) = (attachment("c1", "eth0"), attachment("c1", "eth1"));
        assert_eq!(attachment_group("net", &one), 0x450e_8d04);
        assert_eq!(attachment_index("net", &one), IfIndex(0x450e_8d04));
        assert_ne!(attachment_group("net", &one), attachment_group("net", &two));
        assert!(
            is_attachment_group("net", attachment_group("net", &one))
                && is_attachment_group("net", attachment_group("net", &two))
        );
        assert!(!is_attachment_group("tne", attachment_group("net", &one)));
        assert!(!is_attachment_group("net", 0) && !is_attachment_group("net", 77));
    }

    #[test]
    fn device_group_survives_renamed_network() {
        let (one, two) = (attachment("c1", "eth0"), attachment("c2", "eth0"));
        let group = device_group("net", &one);
        assert_eq!(group, 0x450e_a249);
        assert!(is_attachment_group("net", group) && !is_attachment_group("tne", group));
        assert!(is_device_group(&one, group) && is_device_group(&one, device_group("tne", &one)));
        assert!(!is_device_group(&two, group) && !is_device_group(&one, group & 0xffff));
    }

    #[test]
    fn foreign_names_are_not_host_ifnames() {
        for name in ["veth1a2b3c4d", "vethpodwireabcd", "cni0", "eth0", "veth"] {
            assert!(!is_host_ifname(name.parse().unwrap()), "{name}");
        }
    }

    #[test]
    fn mac_of_is_stable() {
        assert_eq!(mac_of("10.1.2.3".parse().unwrap()).to_string(), "0a:58:0a:01:02:03");
        assert_eq!(mac_of("fd00::5".parse().unwrap()).to_string(), "0e:c3:c9:5f:9e:b8");
    }

    #[test]
    fn mac_of_ipv6_is_unique() {
        let prefixes = ["fd00:a::", "fd00:b::", "fd00:b:0:1::", "2001:db8::", "fd00:a::1:0:0:0"];
        let mut all: Vec<MacAddr> = prefixes
            .iter()
            .map(|prefix| u128::from(prefix.parse::<Ipv6Addr>().unwrap()))
            .flat_map(|prefix| (0..=0xffff).map(move |n| mac_of(Ipv6Addr::from(prefix | n).into())))
            .collect();
        assert!(all.iter().all(|mac| mac.0[0] == 0x0e), "different from all IPv4 ones");
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), prefixes.len() << 16);
    }
}
