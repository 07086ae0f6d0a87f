// SPDX-License-Identifier: Apache-2.0
//! Keys that occur more than once in one object of a JSON text. A decoded object has only the last value.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Returns the repeated keys of objects under the key `within`, which may be at any depth. Invalid JSON has none.
pub fn repeated_keys(text: &[u8], within: &str) -> Vec<String> {
    let mut repeated = Vec::new();
    let scan = Scan { within, is_inside: false, repeated: &mut repeated };
    match scan.deserialize(&mut serde_json::Deserializer::from_slice(text)) {
        Ok(()) => repeated,
        Err(_) => Vec::new(),
    }
}

struct Scan<'a> {
    within: &'a str,
    is_inside: bool,
    repeated: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Scan<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Scan<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            let is_inside = key.eq_ignore_ascii_case(self.within);
            map.next_value_seed(Scan { within: self.within, is_inside, repeated: self.repeated })?;
            if self.is_inside && !seen.insert(key.clone()) {
                self.repeated.push(key);
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        loop {
            let item = Scan { within: self.within, is_inside: false, repeated: self.repeated };
            if items.next_element_seed(item)?.is_none() {
                return Ok(());
            }
        }
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_keys_are_found_per_object() {
        let check = |text: &str, expected: &[&str]| {
            assert_eq!(repeated_keys(text.as_bytes(), "sysctl"), expected, "{text}");
        };
        check(r#"{"sysctl": {"a": "1", "b": "2", "a": "1"}, "mtu": 1}"#, &["a"]);
        check(r#"{"SysCtl": {"a": 1, "a": -2.5, "a": null}}"#, &["a", "a"]);
        check(r#"{"plugins": [true, {"sysctl": {"a": "1", "a": "2"}}]}"#, &["a"]);
        check(r#"{"mtu": 1, "mtu": 2, "sysctl": {"a": "1"}, "args": {"a": "1"}}"#, &[]);
        check(r#"{"sysctl": {"a": {"b": 1, "b": 2}}}"#, &[]);
        check(r#"{"sysctl": {"a": "1", "a""#, &[]);
        check("", &[]);
    }
}
