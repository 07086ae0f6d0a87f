// SPDX-License-Identifier: Apache-2.0
//! Under which names servers know a container. They follow from the attachment alone, so that it
//! gets the same address after a restart, on another node, or after a switch from the Go plugin.

use sha2::{Digest, Sha512};

/// The longest text behind the type byte of a client identifier.
const MAX_LEN: usize = 254;
/// An identifier that is no hardware address (RFC 2132, 9.14).
const NOT_HARDWARE: u8 = 0;
/// DUID-UUID (RFC 6355).
const DUID_UUID: u16 = 4;

/// The attachment as the Go plugin writes it.
pub fn text(container_id: &str, network: &str, ifname: &str) -> String {
    format!("{container_id}/{network}/{ifname}")
}

/// DHCPv4's client identifier, the Go plugin's to the byte.
pub fn client_id(text: &str) -> Vec<u8> {
    let text = text.as_bytes();
    [&[NOT_HARDWARE], &text[..text.len().min(MAX_LEN)]].concat()
}

/// DHCPv6's client identifier, and the number of the interface.
pub fn duid(text: &str) -> (Vec<u8>, u32) {
    let digest = Sha512::digest(text.as_bytes());
    let (uuid, rest) = digest.split_at(16);
    let association = rest.first_chunk().copied().map_or(1, u32::from_be_bytes);
    ([&DUID_UUID.to_be_bytes(), uuid].concat(), association)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_change_between_builds() {
        let text = text("c1", "net", "eth0");
        assert_eq!(client_id(&text), b"\0c1/net/eth0");
        assert_eq!(client_id(&"x".repeat(300)).len(), 255);
        // As `printf c1/net/eth0 | sha512sum` begins.
        let (duid, association) = duid(&text);
        let shown: String = duid.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(shown, "0004f29c52a5ed62d7a390a7170bc3a6c7df");
        assert_eq!(association, 0x738b_1c31);
    }
}
