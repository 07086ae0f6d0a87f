// SPDX-License-Identifier: Apache-2.0
//! Networks that pods cannot use because the kernel does not forward packets to single hosts in them.

use ipnet::IpNet;

/// Special networks, each with its use.
const SPECIAL: &[(&str, &str)] = &[
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local addresses"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "future use"),
    ("::1/128", "loopback"),
    ("fe80::/10", "link-local addresses"),
    ("ff00::/8", "multicast"),
];

/// Returns the special network that overlaps this one.
pub(super) fn overlapping(network: IpNet) -> Option<(IpNet, &'static str)> {
    SPECIAL
        .iter()
        .filter_map(|(text, why)| Some((text.parse::<IpNet>().ok()?, *why)))
        .find(|(special, _)| special.contains(&network) || network.contains(special))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_networks_with_special_addresses_overlap() {
        let is_special = |text: &str| overlapping(text.parse().unwrap()).is_some();
        for (text, _) in SPECIAL {
            assert!(is_special(text), "{text}");
        }
        for text in ["127.5.0.0/16", "255.0.0.0/8", "126.0.0.0/7", "ff02::/64", "::/64"] {
            assert!(is_special(text), "{text}");
        }
        for text in ["10.0.0.0/8", "100.64.0.0/10", "128.0.0.0/8", "fc00::/7", "2001:db8::/32"] {
            assert!(!is_special(text), "{text}");
        }
    }
}
