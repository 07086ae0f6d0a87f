// SPDX-License-Identifier: Apache-2.0
//! The owner of an address: the text of its file, and the name of its entry in the index.

use std::fmt::Write as _;
use std::net::IpAddr;

/// The separator between container and interface in a file, on every system.
const LINE_BREAK: &str = "\r\n";

/// The maximum length of a file name on Linux.
const MAX_NAME: usize = 255;

/// A reserved address with its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub ip: IpAddr,
    pub id: String,
    /// `None` in files of early versions of the Go plugin and in files created by hand.
    pub ifname: Option<String>,
}

/// A container and its interface; old files have no interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner<'a> {
    pub(super) id: &'a str,
    pub(super) ifname: Option<&'a str>,
}

impl Reservation {
    pub(super) fn owner(&self) -> Owner<'_> {
        Owner { id: &self.id, ifname: self.ifname.as_deref() }
    }
}

impl<'a> Owner<'a> {
    pub(super) fn new(id: &'a str, ifname: &'a str) -> Self {
        let ifname = Some(ifname).filter(|name| !name.is_empty());
        Self { id: id.trim(), ifname }
    }

    /// The same container as an old file names it.
    pub(super) fn legacy(self) -> Self {
        Self { ifname: None, ..self }
    }

    /// Parses the text of an address file.
    pub(super) fn parse(text: &'a str) -> Self {
        let text = text.trim();
        match text.split_once(LINE_BREAK) {
            Some((id, ifname)) => Self { id, ifname: Some(ifname) },
            None => Self { id: text, ifname: None },
        }
    }

    /// The text of an address file.
    pub(super) fn text(self) -> String {
        format!("{}{LINE_BREAK}{}", self.id, self.ifname.unwrap_or_default())
    }

    /// The name of the entry in the index: `id:ifname`, or `id:` for an old file. Names are unique
    /// because escaping removes colons from both parts.
    pub(super) fn entry_name(self) -> String {
        let mut name = String::with_capacity(MAX_NAME);
        escape(self.id, &mut name);
        name.push(':');
        escape(self.ifname.unwrap_or_default(), &mut name);
        if name.len() <= MAX_NAME {
            return name;
        }
        // No other name contains a tilde. The first part keeps the name readable.
        let digest = fnv1a(name.as_bytes());
        name.truncate(100);
        let _ = write!(name, "~{digest:032x}");
        name
    }
}

/// Container and interface names stay unchanged; files of other programs may contain anything.
fn escape(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"_.-".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02x}");
        }
    }
}

/// FNV-1a with 128 bits. The hasher of std may change between compiler versions, and these names
/// must be stable.
fn fnv1a(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_matches_the_go_plugin() {
        assert_eq!(Owner::new(" abc\n", "eth0").text(), "abc\r\neth0");
        for (text, id, ifname) in [
            ("abc\r\neth0", "abc", Some("eth0")),
            ("abc\r\neth0\n", "abc", Some("eth0")),
            ("abc", "abc", None),
            ("abc\r\n", "abc", None),
            ("abc\neth0", "abc\neth0", None),
            ("", "", None),
        ] {
            assert_eq!(Owner::parse(text), Owner { id, ifname }, "{text:?}");
        }
    }

    #[test]
    fn entry_names_are_readable_and_limited() {
        assert_eq!(Owner::new("abc", "eth0").entry_name(), "abc:eth0");
        assert_eq!(Owner::new("abc", "").entry_name(), "abc:");
        assert_eq!(Owner::new("..", "").entry_name(), "..:");
        assert_eq!(Owner::new("a/b:%", "x y").entry_name(), "a%2fb%3a%25:x%20y");
        let long = "a".repeat(250);
        assert_eq!(Owner::new(&long, "eth0").entry_name().len(), 255);
        assert_eq!(Owner::new(&long, "eth00").entry_name().len(), 133);
        assert_ne!(
            Owner::new(&long, "eth01").entry_name(),
            Owner::new(&long, "eth02").entry_name()
        );
    }

    #[test]
    fn fnv1a_matches_the_draft() {
        assert_eq!(fnv1a(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        // draft-eastlake-fnv, appendix C
        assert_eq!(fnv1a(b"foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    proptest! {
        #[test]
        fn parse_never_panics(text in ".*", bytes in any::<Vec<u8>>()) {
            Owner::parse(&text).entry_name();
            Owner::parse(&String::from_utf8_lossy(&bytes)).entry_name();
        }

        #[test]
        fn text_reads_back(id in "[a-zA-Z0-9][a-zA-Z0-9_.-]{0,80}", ifname in "[a-z0-9.@_-]{1,15}") {
            let owner = Owner::new(&id, &ifname);
            let text = owner.text();
            prop_assert_eq!(Owner::parse(&text), owner);
        }

        #[test]
        fn entry_names_are_unique(
            a in ("[a-b:/~%]{0,300}", "[a-b:]{0,3}"),
            b in ("[a-b:/~%]{0,300}", "[a-b:]{0,3}"),
        ) {
            let (x, y) = (Owner::new(&a.0, &a.1), Owner::new(&b.0, &b.1));
            prop_assert_eq!(x == y, x.entry_name() == y.entry_name());
            prop_assert!(x.entry_name().len() <= MAX_NAME && !x.entry_name().contains('/'));
        }
    }
}
