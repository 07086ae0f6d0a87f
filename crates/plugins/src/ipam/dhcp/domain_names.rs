// SPDX-License-Identifier: Apache-2.0
//! Lists of domain names in DNS encoding, which both DHCP versions use.

/// Maximum number of names in a list.
const MAX_NAMES: usize = 64;

/// Decodes a list of names, with references back to earlier names (RFC 3397).
pub(super) fn names(value: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let mut at = 0;
    while at < value.len() && names.len() < MAX_NAMES {
        let Some((name, next)) = name(value, at) else { break };
        if !name.is_empty() {
            names.push(name);
        }
        at = next;
    }
    names
}

/// Returns the name at an offset, and the offset after it.
fn name(value: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut labels: Vec<String> = Vec::new();
    let mut end = None;
    loop {
        match usize::from(*value.get(at)?) {
            0 => return Some((labels.join("."), end.unwrap_or(at + 1))),
            high if high & 0xc0 == 0xc0 => {
                let target = (high & 0x3f) << 8 | usize::from(*value.get(at + 1)?);
                // Only references to earlier offsets, because others could form a loop.
                if target >= at {
                    return None;
                }
                end = end.or(Some(at + 2));
                at = target;
            }
            length if length < 64 && labels.len() < MAX_NAMES => {
                let label = value.get(at + 1..at + 1 + length)?;
                labels.push(String::from_utf8_lossy(label).into_owned());
                at += 1 + length;
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn references_to_earlier_names_are_resolved() {
        let value = b"\x03eng\x05apple\x03com\0\x09marketing\xc0\x04\x01x\xc0\xff";
        assert_eq!(names(value), ["eng.apple.com", "marketing.apple.com"]);
    }

    proptest! {
        #[test]
        fn decoding_never_panics(value: Vec<u8>) {
            let _ = names(&value);
        }
    }
}
