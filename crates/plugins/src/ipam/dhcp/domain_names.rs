// SPDX-License-Identifier: Apache-2.0
//! Lists of domain names as DNS writes them; both families have them.

/// The most names that are read out of one list.
const MAX_NAMES: usize = 64;

/// The names, with references back to earlier ones (RFC 3397).
pub fn names(value: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < value.len() && found.len() < MAX_NAMES {
        let Some((name, next)) = name(value, at) else { break };
        if !name.is_empty() {
            found.push(name);
        }
        at = next;
    }
    found
}

/// The name at an offset, and the offset behind it.
fn name(value: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut labels: Vec<String> = Vec::new();
    let mut behind = None;
    loop {
        match usize::from(*value.get(at)?) {
            0 => return Some((labels.join("."), behind.unwrap_or(at + 1))),
            high if high & 0xc0 == 0xc0 => {
                let target = (high & 0x3f) << 8 | usize::from(*value.get(at + 1)?);
                // Only backwards, or it would never end.
                if target >= at {
                    return None;
                }
                behind = behind.or(Some(at + 2));
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
    fn names_refer_back() {
        let value = b"\x03eng\x05apple\x03com\0\x09marketing\xc0\x04\x01x\xc0\xff";
        assert_eq!(names(value), ["eng.apple.com", "marketing.apple.com"]);
    }

    proptest! {
        #[test]
        fn any_value_is_read_without_panic(value: Vec<u8>) {
            let _ = names(&value);
        }
    }
}
