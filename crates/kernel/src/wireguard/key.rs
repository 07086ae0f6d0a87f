// SPDX-License-Identifier: Apache-2.0
//! Keys: 32 bytes, encoded in base64 as by `wg`. Secret keys do not appear in debug output.

use std::fmt;
use std::str::FromStr;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Result};

const LEN: usize = 32; // linux/wireguard.h, WG_KEY_LEN
const TEXT_LEN: usize = LEN.div_ceil(3) * 4;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text is not a key. The error does not contain the text, which may be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a WireGuard key is 44 characters of base64")]
pub struct KeyError;

/// Public key of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; LEN]);

/// Private key of a node.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(pub [u8; LEN]);

/// Secret shared by two peers.
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedKey(pub [u8; LEN]);

impl PrivateKey {
    /// Generates a key.
    pub fn random() -> Result<Self> {
        let mut bytes = random()?;
        // Clamp the scalar of Curve25519 (RFC 7748, section 5), as the kernel does: then the kernel
        // reports the same key that it was given.
        bytes[0] &= 0xf8;
        bytes[31] = (bytes[31] & 0x7f) | 0x40;
        Ok(Self(bytes))
    }

    /// Encodes the key as in a key file.
    pub fn to_base64(&self) -> String {
        encode(&self.0)
    }
}

impl PresharedKey {
    /// Generates a key.
    pub fn random() -> Result<Self> {
        random().map(Self)
    }

    /// Encodes the key as in a configuration.
    pub fn to_base64(&self) -> String {
        encode(&self.0)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&encode(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(private key)")
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(preshared key)")
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> std::result::Result<Self, KeyError> {
        decode(text).map(Self).ok_or(KeyError)
    }
}

impl FromStr for PrivateKey {
    type Err = KeyError;

    fn from_str(text: &str) -> std::result::Result<Self, KeyError> {
        decode(text).map(Self).ok_or(KeyError)
    }
}

impl FromStr for PresharedKey {
    type Err = KeyError;

    fn from_str(text: &str) -> std::result::Result<Self, KeyError> {
        decode(text).map(Self).ok_or(KeyError)
    }
}

fn random() -> Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|errno| Error::from_errno("generate WireGuard key", "", errno))?;
    Ok(bytes)
}

fn encode(bytes: &[u8; LEN]) -> String {
    let mut text = String::with_capacity(TEXT_LEN);
    for group in bytes.chunks(3) {
        let mut padded = [0; 4];
        padded[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(padded);
        for place in 0..=group.len() {
            let sextet = bits >> (18 - 6 * place) & 0x3f;
            text.push(char::from(ALPHABET[sextet as usize]));
        }
    }
    // 32 bytes are one short of a multiple of three, so one padding character is needed.
    text.push('=');
    text
}

fn decode(text: &str) -> Option<[u8; LEN]> {
    let sextets = text.strip_suffix('=').filter(|rest| rest.len() == TEXT_LEN - 1)?.as_bytes();
    let mut bytes = [0; LEN];
    for (group, sextets) in bytes.chunks_mut(3).zip(sextets.chunks(4)) {
        let mut bits = 0;
        for (place, letter) in sextets.iter().enumerate() {
            let sextet = ALPHABET.iter().position(|known| known == letter)?;
            bits |= u32::try_from(sextet).ok()? << (18 - 6 * place);
        }
        let [_, decoded @ ..] = bits.to_be_bytes();
        group.copy_from_slice(&decoded[..group.len()]);
    }
    // The last character has two unused bits; `wg` rejects a key in which they are set.
    (encode(&bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_encoded_as_by_wg() {
        let zero = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        assert_eq!(PublicKey([0; 32]).to_string(), zero);
        assert_eq!(zero.parse::<PublicKey>(), Ok(PublicKey([0; 32])));
        // wg genkey | tee /dev/stderr | base64 -d | xxd
        let text = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
        let key: PrivateKey = text.parse().unwrap();
        assert_eq!(key.0[..4], [0xc8, 0x09, 0xf3, 0xe5]);
        assert_eq!(key.to_base64(), text);
        for invalid in [
            "",
            "=",
            "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB=",
            "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==",
            "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA-=",
            "éAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        ] {
            assert_eq!(invalid.parse::<PublicKey>(), Err(KeyError), "{invalid}");
        }
    }

    #[test]
    fn secret_keys_are_hidden_in_debug_output() {
        let private = PrivateKey::random().unwrap();
        let shared = PresharedKey::random().unwrap();
        assert_eq!(format!("{private:?} {shared:?}"), "(private key) (preshared key)");
        assert_eq!((private.0[0] & 7, private.0[31] & 0xc0), (0, 0x40));
        assert_ne!(private, PrivateKey::random().unwrap());
    }

    proptest! {
        #[test]
        fn keys_round_trip(bytes: [u8; 32], text: String) {
            prop_assert_eq!(encode(&bytes).len(), TEXT_LEN);
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
            let _ = decode(&text);
        }
    }
}
