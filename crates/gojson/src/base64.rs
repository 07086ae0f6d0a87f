// SPDX-License-Identifier: Apache-2.0
//! Base64 with padding (RFC 4648, section 4), as Go encodes bytes in JSON. WireGuard keys use the same encoding.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = (0..3)
            .fold(0, |group: usize, at| group << 8 | chunk.get(at).copied().map_or(0, usize::from));
        for at in 0..4 {
            let digit = char::from(ALPHABET[group >> (18 - 6 * at) & 63]);
            text.push(if at <= chunk.len() { digit } else { '=' });
        }
    }
    text
}

/// Decodes a text. Returns `None` if it is not valid base64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for chunk in digits.chunks(4) {
        let mut group = 0;
        for at in 0..4 {
            let digit = chunk.get(at).unwrap_or(&b'A');
            group = group << 6 | ALPHABET.iter().position(|known| known == digit)?;
        }
        let three = [group >> 16, group >> 8, group].map(|byte| (byte & 255) as u8);
        bytes.extend_from_slice(&three[..chunk.len() - 1]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_the_examples_of_the_rfc() {
        let check = |plain: &str, coded: &str| {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded).as_deref(), Some(plain.as_bytes()));
        };
        check("", "");
        check("f", "Zg==");
        check("fo", "Zm8=");
        check("foo", "Zm9v");
        check("foob", "Zm9vYg==");
        check("fooba", "Zm9vYmE=");
        check("foobar", "Zm9vYmFy");
        assert_eq!(encode(&[0xfb, 0xff, 0xbf]), "+/+/");
    }

    #[test]
    fn invalid_base64_is_rejected() {
        for bad in ["Z", "Zg", "Zg=", "Z===", "====", "Zm9v!mFy", "Zm9vYg=="[1..].into(), "é==="] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn encoding_and_decoding_keeps_bytes(bytes: Vec<u8>) {
            proptest::prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
