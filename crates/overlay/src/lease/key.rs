// SPDX-License-Identifier: Apache-2.0
//! The key of a lease: `10.5.37.0-24` or `10.5.10.0-24&fd00:5:0:19::-64`, as in flannel. IPv6-only
//! networks have `fd00:5:0:19::-64`; flannel supports them only in Kubernetes.

use std::str::FromStr;

use ipnet::{Ipv4Net, Ipv6Net};

use crate::cidr::Prefixes;

/// Error for a text that is not the key of a lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("key {0:?}: expected subnets such as 10.5.37.0-24 or 10.5.37.0-24&fd00:5:0:19::-64")]
pub struct KeyError(pub String);

pub(super) fn parse(key: &str) -> Result<Prefixes, KeyError> {
    let name = key.rsplit('/').next().unwrap_or(key);
    let (first, second) = match name.split_once('&') {
        Some((first, second)) => (first, Some(second)),
        None => (name, None),
    };
    let subnets = match (v4(first), second) {
        (Some(net), None) => Prefixes::new(Some(net), None),
        (Some(net), Some(second)) => v6(second).and_then(|v6| Prefixes::new(Some(net), Some(v6))),
        (None, None) => v6(first).and_then(|v6| Prefixes::new(None, Some(v6))),
        (None, Some(_)) => None,
    };
    subnets.ok_or_else(|| KeyError(key.to_owned()))
}

pub(super) fn print(subnets: &Prefixes) -> String {
    let text = |prefix: ipnet::IpNet| format!("{}-{}", prefix.network(), prefix.prefix_len());
    subnets.iter().map(text).collect::<Vec<_>>().join("&")
}

/// Rejects prefixes with host bits, which no route can have, and prefixes of a single address.
fn v4(text: &str) -> Option<Ipv4Net> {
    let (address, len) = halves(text, 31)?;
    Ipv4Net::new(address, len).ok().filter(|net| net.trunc() == *net)
}

fn v6(text: &str) -> Option<Ipv6Net> {
    let is_plain = |byte: u8| matches!(byte, b'a'..=b'f' | b'0'..=b'9' | b':' | b'-');
    let (address, len) = halves(text, 127).filter(|_| text.bytes().all(is_plain))?;
    Ipv6Net::new(address, len).ok().filter(|net| net.trunc() == *net)
}

fn halves<T: FromStr>(text: &str, most: u8) -> Option<(T, u8)> {
    let (address, len) = text.split_once('-')?;
    // parse() accepts a sign.
    let len: u8 = len.bytes().all(|byte| byte.is_ascii_digit()).then(|| len.parse().ok())??;
    Some((address.parse().ok()?, len)).filter(|_| len <= most)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn flannels_keys_are_parsed() {
        let check = |key: &str, v4: Option<&str>, v6: Option<&str>| {
            let subnets = parse(key).unwrap();
            assert_eq!(subnets.v4(), v4.map(|net| net.parse().unwrap()), "{key}");
            assert_eq!(subnets.v6(), v6.map(|net| net.parse().unwrap()), "{key}");
            assert_eq!(print(&subnets), key.rsplit('/').next().unwrap());
        };
        check("/coreos.com/network/subnets/10.5.37.0-24", Some("10.5.37.0/24"), None);
        check("10.5.10.0-24&fd00:5:0:19::-64", Some("10.5.10.0/24"), Some("fd00:5:0:19::/64"));
        check("a/b/fd00:5:0:19::-64", None, Some("fd00:5:0:19::/64"));
    }

    #[test]
    fn invalid_keys_are_rejected() {
        for bad in [
            "",
            "config",
            "10.5.37.0",
            "10.5.37.0-",
            "10.5.37.0-32",
            "10.5.37.0-+24",
            "10.5.37.4-24",
            "10.5.37.0-24&",
            "10.5.37.0-24&fd00::1-64",
            "10.5.37.0-24&FD00:5::-64",
            "&fd00:5::-64",
            "10.5.37.0-24&10.5.38.0-24",
            "fd00:5::-64&10.5.37.0-24",
            "10.5.37.0-24&::1.2.0.0-112",
            "10.5.37.0-24/",
        ] {
            assert_eq!(parse(bad), Err(KeyError(bad.to_owned())), "{bad:?}");
        }
        let error = parse("x/10.5.37.4-24").unwrap_err().to_string();
        assert!(error.starts_with("key \"x/10.5.37.4-24\": expected subnets such as"), "{error}");
    }

    proptest! {
        #[test]
        fn printed_keys_parse_to_the_same_subnets(
            v4 in option::of((any::<u32>(), 0u8..=31)),
            v6 in option::of((any::<u64>(), 0u8..=64)),
        ) {
            let v4 = v4.map(|(bits, len)| Ipv4Net::new(Ipv4Addr::from_bits(bits), len).unwrap());
            let v6 = v6.map(|(bits, len)| {
                Ipv6Net::new(Ipv6Addr::from_bits(u128::from(bits) << 64), len).unwrap()
            });
            if let Some(subnets) = Prefixes::new(v4, v6) {
                prop_assert_eq!(parse(&print(&subnets)), Ok(subnets));
            }
        }

        #[test]
        fn parsing_any_text_does_not_panic(text: String, near in "[0-9a-f.:&/-]{0,30}") {
            let _ = (parse(&text), parse(&near));
        }
    }
}
