// SPDX-License-Identifier: Apache-2.0
//! Interface index, interface name, MAC address and address family.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Result};
use crate::netlink_ip::{AF_INET, AF_INET6};

/// Index of an interface, unique in its network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IfIndex(pub u32);

impl fmt::Display for IfIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Address family: IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families, in the order in which lists are read.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the family of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    pub(crate) fn number(self) -> u8 {
        match self {
            Self::V4 => AF_INET,
            Self::V6 => AF_INET6,
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.number() == number)
    }
}

/// Maximum length of an interface name without NUL: IFNAMSIZ - 1 (`linux/if.h`).
const MAX_NAME_LEN: usize = 15;

/// A valid interface name: 1 to 15 bytes, not `.` or `..`, without `/`, `:` and white space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IfName {
    // Unused bytes are zero, so that the derived order is that of the text.
    bytes: [u8; MAX_NAME_LEN],
    len: u8,
}

impl IfName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..usize::from(self.len)];
        std::str::from_utf8(bytes).expect("an interface name is created from text")
    }

    /// Converts a name reported by the kernel; bytes that are not UTF-8 become `?`.
    pub(crate) fn from_kernel(name: &[u8]) -> Option<Self> {
        if let Ok(text) = std::str::from_utf8(name) {
            return Self::from_text(text);
        }
        let ascii = |byte: &u8| if byte.is_ascii() { char::from(*byte) } else { '?' };
        Self::from_text(&name.iter().map(ascii).collect::<String>())
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut bytes = [0; MAX_NAME_LEN];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self { bytes, len: u8::try_from(text.len()).ok()? })
    }
}

/// The text is not a valid interface name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("interface name {name:?} {reason}")]
pub struct IfNameError {
    /// The invalid text.
    pub name: String,
    /// Reason why it is invalid.
    pub reason: &'static str,
}

impl FromStr for IfName {
    type Err = IfNameError;

    fn from_str(text: &str) -> std::result::Result<Self, IfNameError> {
        // The kernel's isspace() also includes vertical tab and, because it uses Latin-1, the byte
        // 0xa0.
        let is_space = |byte: u8| byte.is_ascii_whitespace() || matches!(byte, 0x0b | 0xa0);
        let reason = match text {
            "" => "is empty",
            "." | ".." => "is not allowed",
            _ if text.len() > MAX_NAME_LEN => "is longer than 15 bytes",
            _ if text.contains('/') => "contains a '/'",
            _ if text.contains(':') => "contains a ':'",
            _ if text.contains('\0') => "contains a NUL",
            _ if text.contains('%') => "contains a '%', which the kernel replaces by a number",
            _ if text.bytes().any(is_space) => "contains white space",
            _ => match Self::from_text(text) {
                Some(name) => return Ok(name),
                None => "is longer than 15 bytes",
            },
        };
        Err(IfNameError { name: text.to_owned(), reason })
    }
}

impl fmt::Display for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A 48-bit MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Returns whether the address can belong to an interface: it is neither a group address nor
    /// zero.
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }

    /// Generates a random, locally administered unicast address.
    pub fn random() -> Result<Self> {
        let mut octets = [0; 6];
        getrandom(&mut octets, GetRandomFlags::empty())
            .map_err(|errno| Error::from_errno("generate MAC address", "", errno))?;
        octets[0] = (octets[0] & 0xfe) | 0x02;
        Ok(Self(octets))
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The text is not a MAC address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a MAC address, such as 02:00:5e:10:00:01")]
pub struct MacAddrError(pub String);

impl FromStr for MacAddr {
    type Err = MacAddrError;

    /// Accepts the 48-bit forms of Go's `net.ParseMAC`: `02:00:5e:10:00:01`, `02-00-5e-10-00-01`,
    /// `0200.5e10.0001`.
    fn from_str(text: &str) -> std::result::Result<Self, MacAddrError> {
        parse_mac(text).map(Self).ok_or_else(|| MacAddrError(text.to_owned()))
    }
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let (separator, digits) = match text.as_bytes() {
        bytes if bytes.len() == 17 && matches!(bytes[2], b':' | b'-') => (char::from(bytes[2]), 2),
        bytes if bytes.len() == 14 && bytes[4] == b'.' => ('.', 4),
        _ => return None,
    };
    let mut octets = [0; 6];
    let mut rest = octets.as_mut_slice();
    for group in text.split(separator) {
        // from_str_radix would accept a sign.
        if group.len() != digits || !group.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let value = u16::from_str_radix(group, 16).ok()?.to_be_bytes();
        let (octets, remaining) = rest.split_at_mut_checked(digits / 2)?;
        octets.copy_from_slice(&value[2 - digits / 2..]);
        rest = remaining;
    }
    rest.is_empty().then_some(octets)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_names_are_rejected() {
        let check = |text: &str, reason: Option<&str>| {
            assert_eq!(text.parse::<IfName>().err().map(|e| e.reason), reason, "{text:?}");
        };
        check("eth0", None);
        check("a23456789012345", None);
        check("eth0.100", None);
        check("été", None);
        check("", Some("is empty"));
        check(".", Some("is not allowed"));
        check("..", Some("is not allowed"));
        check("a234567890123456", Some("is longer than 15 bytes"));
        check("a/b", Some("contains a '/'"));
        check("a:b", Some("contains a ':'"));
        check("a b", Some("contains white space"));
        check("a\u{b}b", Some("contains white space"));
        check("à", Some("contains white space"));
        let error = "a/b".parse::<IfName>().unwrap_err();
        assert_eq!(error.to_string(), "interface name \"a/b\" contains a '/'");
    }

    #[test]
    fn mac_is_parsed_as_in_go() {
        let expected = Some([2, 0, 0x5e, 0x10, 0, 0xab]);
        let check = |text: &str, expected| {
            assert_eq!(text.parse::<MacAddr>().ok().map(|mac| mac.0), expected, "{text:?}");
        };
        check("02:00:5e:10:00:ab", expected);
        check("02-00-5E-10-00-AB", expected);
        check("0200.5e10.00ab", expected);
        for invalid in
            ["", "02:00:5e:10:00", "2:0:5e:10:0:ab:11111", "02:00:5e:10:00-ab", "+2:00:5e:10:00:ab"]
        {
            check(invalid, None);
        }
        assert_eq!("0200.5E10.00AB".parse::<MacAddr>().unwrap().to_string(), "02:00:5e:10:00:ab");
    }

    #[test]
    fn random_mac_is_local_unicast() {
        let mac = MacAddr::random().unwrap();
        assert_eq!(mac.0[0] & 3, 2);
        assert_ne!(mac, MacAddr::random().unwrap());
    }

    proptest! {
        #[test]
        fn parsers_never_panic(text: String, bytes: Vec<u8>) {
            let _ = text.parse::<MacAddr>();
            if let Ok(name) = text.parse::<IfName>() {
                prop_assert_eq!(name.as_str(), text);
            }
            if let Some(name) = IfName::from_kernel(&bytes) {
                let _ = name.to_string();
            }
        }

        #[test]
        fn mac_text_round_trips(octets: [u8; 6]) {
            prop_assert_eq!(MacAddr(octets).to_string().parse(), Ok(MacAddr(octets)));
        }
    }
}
