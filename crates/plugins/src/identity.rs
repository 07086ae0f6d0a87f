// SPDX-License-Identifier: Apache-2.0
//! Names that follow from an attachment, so that DEL and GC find its interface on the host
//! without namespace, result or any record of ours; hardware addresses that follow from IP addresses.

use std::net::IpAddr;

use cni::Attachment;
use kernel::{IfIndex, IfName, MacAddr};

/// How many names of a host end there are: one may be held for a moment by an interface whose
/// namespace is going away.
const ATTEMPTS: u32 = 4;

/// The names of an attachment's host end, to be tried in this order.
pub fn host_ifnames(network: &str, attachment: &Attachment) -> impl Iterator<Item = IfName> {
    (0..ATTEMPTS).map(move |attempt| host_ifname(network, attachment, attempt))
}

/// Three digits longer than the Go plugin's names, so that the two are told apart.
fn host_ifname(network: &str, attachment: &Attachment, attempt: u32) -> IfName {
    let key = [network, &attachment.container_id, &attachment.ifname, &attempt.to_string()];
    let name = format!("veth{:011x}", digest(&key) >> 20);
    name.parse().expect("15 letters and digits are a valid name")
}

/// The name of the port that belongs to a gateway on the host; it is in no network's group.
pub fn gateway_port(gateway: IfName) -> IfName {
    let name = format!("veth{:011x}", digest(&["gateway", gateway.as_str()]) >> 20);
    name.parse().expect("15 letters and digits are a valid name")
}

/// Whether an interface bears a name of ours.
pub fn is_host_ifname(name: IfName) -> bool {
    let digits = name.as_str().strip_prefix("veth");
    digits.is_some_and(|digits| digits.len() == 11 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The group that the host ends of a network are in: what GC looks at, and what
/// `ip link show group` takes.
pub fn group(network: &str) -> u32 {
    folded(digest(&[network]))
}

/// `ip link` reads and prints the number with a sign; 0 is the group of everything else.
fn folded(digest: u64) -> u32 {
    (((digest ^ (digest >> 32)) as u32) & 0x7fff_ffff).max(1)
}

/// The group of an attachment's interface that has no end on the host to tell whose it is: by its upper
/// half the network's, by its lower half the attachment's.
pub fn mark(network: &str, attachment: &Attachment) -> u32 {
    let digest = digest(&[network, &attachment.container_id, &attachment.ifname]);
    network_half(network) << 16 | u32::from(((digest >> 32) ^ digest) as u16)
}

/// The group of a device that is in a container: by its upper half the network's, by its lower half the
/// container's and the interface's, so that a device is known after its network was renamed.
pub fn device_mark(network: &str, attachment: &Attachment) -> u32 {
    network_half(network) << 16 | u32::from(attachment_half(attachment))
}

/// Whether a group marks a device of this attachment, on whichever network.
pub fn is_device_of(attachment: &Attachment, group: u32) -> bool {
    group >> 16 != 0 && group as u16 == attachment_half(attachment)
}

fn attachment_half(attachment: &Attachment) -> u16 {
    let digest = digest(&[&attachment.container_id, &attachment.ifname]);
    ((digest >> 32) ^ digest) as u16
}

/// Whether a group marks an attachment of this network.
pub fn is_marked(network: &str, group: u32) -> bool {
    group >> 16 == network_half(network)
}

/// Never 0, so that no small number that somebody chose is taken for a mark; 15 bits, as `ip link`
/// reads the whole with a sign.
fn network_half(network: &str) -> u32 {
    (group(network) >> 16).max(1)
}

/// An index for an attachment's interface that the kernel would come to only after a thousand million
/// others.
pub fn index(network: &str, attachment: &Attachment) -> IfIndex {
    IfIndex(mark(network, attachment) | 0x4000_0000)
}

/// The hardware address for the holder of an IP address. The next holder has the same one, so what
/// neighbours remember stays true, and a new container need not shout to all others on its bridge.
pub fn mac_of(address: IpAddr) -> MacAddr {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            MacAddr([0x0a, 0x58, a, b, c, d])
        }
        // Networks that share a bridge may differ at any place, so no part of an address would do.
        IpAddr::V6(v6) => {
            let [a, b, c, d, e, ..] = digest_of(v6.octets()).to_be_bytes();
            MacAddr([0x0e, a, b, c, d, e])
        }
    }
}

/// FNV-1a over the words with a separator that none of them can hold. Names need no secrecy, only
/// the same answer in every build and on every machine.
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
    fn names_do_not_change_between_builds() {
        let one = attachment("c1", "eth0");
        assert_eq!(host_ifname("net", &one, 0).as_str(), "vethb18a86e3ced");
        assert_eq!(group("net"), 0x450e8672);
    }

    #[test]
    fn names_tell_attachments_apart() {
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
    fn marks_tell_networks_and_attachments_apart() {
        let (one, two) = (attachment("c1", "eth0"), attachment("c1", "eth1"));
        assert_eq!(mark("net", &one), 0x450e_8d04);
        assert_eq!(index("net", &one), IfIndex(0x450e_8d04));
        assert_ne!(mark("net", &one), mark("net", &two));
        assert!(is_marked("net", mark("net", &one)) && is_marked("net", mark("net", &two)));
        assert!(!is_marked("tne", mark("net", &one)));
        assert!(!is_marked("net", 0) && !is_marked("net", 77));
    }

    #[test]
    fn marks_of_devices_outlive_the_name_of_their_network() {
        let (one, two) = (attachment("c1", "eth0"), attachment("c2", "eth0"));
        let mark = device_mark("net", &one);
        assert_eq!(mark, 0x450e_a249);
        assert!(is_marked("net", mark) && !is_marked("tne", mark));
        assert!(is_device_of(&one, mark) && is_device_of(&one, device_mark("tne", &one)));
        assert!(!is_device_of(&two, mark) && !is_device_of(&one, mark & 0xffff));
    }

    #[test]
    fn names_of_others_are_not_ours() {
        for name in ["veth1a2b3c4d", "vethpodwireabcd", "cni0", "eth0", "veth"] {
            assert!(!is_host_ifname(name.parse().unwrap()), "{name}");
        }
    }

    #[test]
    fn hardware_addresses_follow_ip_addresses() {
        assert_eq!(mac_of("10.1.2.3".parse().unwrap()).to_string(), "0a:58:0a:01:02:03");
        assert_eq!(mac_of("fd00::5".parse().unwrap()).to_string(), "0e:c3:c9:5f:9e:b8");
    }

    #[test]
    fn hardware_addresses_tell_ipv6_addresses_apart() {
        let prefixes = ["fd00:a::", "fd00:b::", "fd00:b:0:1::", "2001:db8::", "fd00:a::1:0:0:0"];
        let mut all: Vec<MacAddr> = prefixes
            .iter()
            .map(|prefix| u128::from(prefix.parse::<Ipv6Addr>().unwrap()))
            .flat_map(|prefix| (0..=0xffff).map(move |n| mac_of(Ipv6Addr::from(prefix | n).into())))
            .collect();
        assert!(all.iter().all(|mac| mac.0[0] == 0x0e), "none meets an IPv4 address's");
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), prefixes.len() << 16);
    }
}
