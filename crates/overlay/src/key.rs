// SPDX-License-Identifier: Apache-2.0
//! Keys of WireGuard as people write them: base64 of 32 bytes.

use std::fmt;
use std::str::FromStr;

use cni::runtime::base64;

/// A public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub [u8; 32]);

/// Why a text is no key. The text may be a secret, so it is not told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected base64 of 32 bytes")]
pub struct KeyError;

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let bytes = base64::decode(text).ok_or(KeyError)?;
        bytes.try_into().map(Self).map_err(|_| KeyError)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base64::encode(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A key that all nodes share, which no log shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Psk(pub Key);

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Psk(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_32_bytes_are_a_key() {
        let text = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        let key: Key = text.parse().unwrap();
        assert_eq!(key.0[31], 31);
        assert_eq!(key.to_string(), text);
        for bad in ["", "AAEC", "not base64", &text[4..], &format!("{text} ")] {
            assert_eq!(bad.parse::<Key>(), Err(KeyError), "{bad:?}");
        }
    }

    #[test]
    fn a_shared_key_is_not_shown() {
        assert_eq!(format!("{:?}", Psk(Key([7; 32]))), "Psk(..)");
    }
}
