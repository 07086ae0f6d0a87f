// SPDX-License-Identifier: Apache-2.0
//! Decoding by the rules of Go's `encoding/json`: keys match in any case, `null` means absent, unknown keys are ignored,
//! an empty string is an unset option. Errors name the key and the value.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};
use text::{shorten, shorten_value};

/// Maximum length of [`DecodeError::problem`] in characters.
const PROBLEM_LIMIT: usize = 1000;

/// The reason why a value could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    /// Keys and indexes from the outermost object inward, such as `ipam.ranges[0][0].subnet`; may be empty.
    pub path: String,
    /// The value, if it is short.
    pub value: Option<String>,
    /// Description of the problem.
    pub problem: String,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&*self.path, &self.value) {
            ("", _) => f.write_str(&self.problem),
            (path, None) => write!(f, "key {path:?}: {}", self.problem),
            (path, Some(value)) => write!(f, "key {path:?} is {value}: {}", self.problem),
        }
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(msg: T) -> DecodeError {
        let problem = match msg.to_string().as_str() {
            "invalid IP address syntax" => "expected an address such as 10.1.2.3".to_owned(),
            other => shorten(other, PROBLEM_LIMIT).into_owned(),
        };
        DecodeError { path: String::new(), value: None, problem }
    }

    fn missing_field(field: &'static str) -> DecodeError {
        let problem = "it must be set".to_owned();
        DecodeError { path: field.to_owned(), value: None, problem }
    }

    fn invalid_type(actual: de::Unexpected, expected: &dyn de::Expected) -> DecodeError {
        let actual = match actual {
            de::Unexpected::Map => ", not an object",
            de::Unexpected::Seq => ", not a list",
            // The error message already contains a plain value.
            _ => "",
        };
        de::Error::custom(format_args!("expected {}{actual}", json_type(expected)))
    }

    fn invalid_value(_: de::Unexpected, expected: &dyn de::Expected) -> DecodeError {
        de::Error::custom(format_args!("expected {}", json_type(expected)))
    }
}

/// Translates serde's description of a Rust type into JSON terms.
fn json_type(expected: &dyn de::Expected) -> String {
    match expected.to_string().as_str() {
        "a sequence" => "a list".to_owned(),
        "a map" => "an object".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" | "path string" => "a text".to_owned(),
        "u8" => format!("a whole number from 0 to {}", u8::MAX),
        "u16" => format!("a whole number from 0 to {}", u16::MAX),
        "u32" => format!("a whole number from 0 to {}", u32::MAX),
        "u64" | "usize" => "a whole number, 0 or more".to_owned(),
        "i64" => "a whole number".to_owned(),
        other => other.to_owned(),
    }
}

impl DecodeError {
    /// Creates an error about the value of a key.
    pub fn at(key: &str, value: impl fmt::Display, problem: impl fmt::Display) -> DecodeError {
        DecodeError {
            path: key.to_owned(),
            value: Some(shorten_value(value)),
            problem: shorten(&problem.to_string(), PROBLEM_LIMIT).into_owned(),
        }
    }

    /// Prepends the key of the object that contains the value.
    pub fn within(self, key: &str) -> DecodeError {
        self.with_prefix(key, None)
    }

    /// Prepends the key of the list that contains the value, with its index.
    pub fn under(self, key: &str, index: usize) -> DecodeError {
        self.with_prefix(&format!("{key}[{index}]"), None)
    }

    /// Prepends one step to the path. `value` is used if the error is about the value at this step itself.
    fn with_prefix(mut self, step: &str, value: Option<String>) -> DecodeError {
        let separator = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        if self.path.is_empty() {
            self.value = value;
        }
        self.path = format!("{step}{separator}{}", self.path);
        self
    }
}

/// Decodes a value.
pub fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, DecodeError> {
    T::deserialize(GoValue::of(value))
}

/// Decodes an object.
pub fn decode_object<T: DeserializeOwned>(object: &Map<String, Value>) -> Result<T, DecodeError> {
    T::deserialize(GoValue::Object(object))
}

/// Removes a key in any case from an object and returns its value. As in Go, the last of several such keys wins and
/// `null` counts as absent.
pub fn take(object: &mut Map<String, Value>, key: &str) -> Option<Value> {
    if let Some(value) = object.remove(key) {
        return Some(value).filter(|value| !value.is_null());
    }
    let other = object.keys().rfind(|other| other.eq_ignore_ascii_case(key))?.clone();
    object.remove(&other).filter(|value| !value.is_null())
}

/// Removes a key from an object and decodes its value. An empty string counts as absent.
pub fn take_as<T: DeserializeOwned>(
    object: &mut Map<String, Value>,
    key: &str,
) -> Result<Option<T>, DecodeError> {
    let Some(value) = take(object, key) else { return Ok(None) };
    decode::<Option<T>>(&value).map_err(|error| error.with_prefix(key, short(&value)))
}

/// Returns the value of a key in any case. `null` counts as absent.
pub fn get<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    let value = object.get(key).or_else(|| {
        object.iter().rfind(|(other, _)| other.eq_ignore_ascii_case(key)).map(|(_, value)| value)
    });
    value.filter(|value| !value.is_null())
}

/// Prints a value indented by four spaces and without a final newline, like the Go plugins.
pub fn to_pretty(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    serde::Serialize::serialize(value, &mut serializer)
        .expect("a JSON value always serializes into memory");
    out
}

fn short(value: &Value) -> Option<String> {
    match value {
        Value::Array(_) | Value::Object(_) | Value::Null => None,
        Value::String(text) if text.len() > 400 => Some(format!("a text of {} bytes", text.len())),
        other => Some(other.to_string()),
    }
}

/// A deserializer for a borrowed value. Several plugins of one process decode the same configuration.
enum GoValue<'a> {
    Object(&'a Map<String, Value>),
    Other(&'a Value),
}

impl<'a> GoValue<'a> {
    fn of(value: &'a Value) -> GoValue<'a> {
        match value {
            Value::Object(map) => GoValue::Object(map),
            other => GoValue::Other(other),
        }
    }
}

impl<'de> de::Deserializer<'de> for GoValue<'_> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let value = match self {
            GoValue::Object(map) => {
                let fields = map.iter().map(|(key, value)| (key.as_str(), value)).collect();
                return visitor.visit_map(GoFields::new(fields));
            }
            GoValue::Other(value) => value,
        };
        match value {
            Value::Bool(flag) => visitor.visit_bool(*flag),
            Value::String(text) => visitor.visit_str(text),
            Value::Array(items) => visitor.visit_seq(GoItems { items: items.iter().enumerate() }),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(unsigned), _) => visitor.visit_u64(unsigned),
                (None, Some(signed)) => visitor.visit_i64(signed),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::Null | Value::Object(_) => visitor.visit_unit(),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            GoValue::Other(Value::Null) => visitor.visit_none(),
            // Go treats an empty string as an unset address and as an unset text.
            GoValue::Other(Value::String(text)) if text.is_empty() => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self {
            GoValue::Object(map) => visitor.visit_map(GoFields::new(fold_keys(map, fields))),
            GoValue::Other(_) => Err(de::Error::custom("expected an object")),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self {
            GoValue::Other(Value::String(text)) if variants.contains(&&**text) => {
                visitor.visit_enum(text.as_str().into_deserializer())
            }
            _ => Err(de::Error::custom(format_args!("expected one of {}", variants.join(", ")))),
        }
    }

    /// Skips the value without visiting it, because most keys of a configuration belong to other plugins.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map identifier
    }
}

/// Renames each key to the field it matches and leaves out `null` values. If several keys match a field, the exact
/// spelling wins. Looks only at earlier keys of the same field: an object can have any number of unknown keys.
fn fold_keys<'a>(
    map: &'a Map<String, Value>,
    fields: &'static [&'static str],
) -> Vec<(&'a str, &'a Value)> {
    let mut folded: Vec<(&str, &Value)> = Vec::with_capacity(map.len());
    let mut positions: Vec<Option<usize>> = vec![None; fields.len()];
    for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
        let exact = fields.iter().position(|field| field == key);
        let field = exact.or_else(|| fields.iter().position(|f| f.eq_ignore_ascii_case(key)));
        let Some(field) = field else {
            folded.push((key, value));
            continue;
        };
        match positions[field] {
            Some(position) if exact.is_some() => folded[position].1 = value,
            Some(_) => {}
            None => {
                positions[field] = Some(folded.len());
                folded.push((fields[field], value));
            }
        }
    }
    folded
}

struct GoFields<'a> {
    fields: std::vec::IntoIter<(&'a str, &'a Value)>,
    pending: Option<(&'a str, &'a Value)>,
}

impl<'a> GoFields<'a> {
    fn new(fields: Vec<(&'a str, &'a Value)>) -> GoFields<'a> {
        GoFields { fields: fields.into_iter(), pending: None }
    }
}

impl<'de> MapAccess<'de> for GoFields<'_> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DecodeError> {
        self.pending = self.fields.next();
        let Some((key, _)) = self.pending else { return Ok(None) };
        let key: StrDeserializer<'_, DecodeError> = key.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, DecodeError> {
        let (key, value) = self.pending.take().unwrap_or(("", &Value::Null));
        seed.deserialize(GoValue::of(value)).map_err(|error| error.with_prefix(key, short(value)))
    }
}

struct GoItems<'a> {
    items: std::iter::Enumerate<std::slice::Iter<'a, Value>>,
}

impl<'de> SeqAccess<'de> for GoItems<'_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        let Some((index, value)) = self.items.next() else { return Ok(None) };
        let decoded = seed.deserialize(GoValue::of(value)).map(Some);
        decoded.map_err(|error| error.with_prefix(&format!("[{index}]"), short(value)))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Sample {
        is_gateway: bool,
        mtu: u32,
        nested: Vec<Sample>,
        address: Option<std::net::IpAddr>,
    }

    #[test]
    fn decode_matches_keys_in_any_case() {
        let value = json!({"ISGATEWAY": true, "Mtu": 1500, "address": null, "other": 1});
        let sample: Sample = decode(&value).expect("decodes");
        assert_eq!(sample, Sample { is_gateway: true, mtu: 1500, ..Sample::default() });
    }

    #[test]
    fn decode_prefers_the_exact_spelling() {
        let sample: Sample = decode(&json!({"MTU": 1, "mtu": 2, "mTU": 3})).expect("decodes");
        assert_eq!(sample.mtu, 2);
    }

    /// A comparison of all pairs of keys would take many minutes.
    #[test]
    fn decode_of_many_unknown_keys_is_fast() {
        let unknown = (0..300_000).map(|number| (format!("unknown{number}"), json!(1)));
        let object: Map<String, Value> = unknown.chain([("MTU".into(), json!(9000))]).collect();
        let start = std::time::Instant::now();
        let sample: Sample = decode_object(&object).expect("decodes");
        assert_eq!(sample.mtu, 9000);
        assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    }

    #[test]
    fn decode_error_names_key_and_value() {
        let check = |value: Value, expected: &str| {
            let error = decode::<Sample>(&value).expect_err("must not decode");
            assert_eq!(error.to_string(), expected);
        };
        check(
            json!({"nested": [{"nested": [{}, {"mtu": "big"}]}]}),
            r#"key "nested[0].nested[1].mtu" is "big": expected a whole number from 0 to 4294967295"#,
        );
        check(
            json!({"address": "10.0.0"}),
            r#"key "address" is "10.0.0": expected an address such as 10.1.2.3"#,
        );
        check(json!([]), "expected an object");
        check(json!({"nested": [3]}), r#"key "nested[0]" is 3: expected an object"#);
    }

    #[test]
    fn take_matches_keys_in_any_case() {
        let mut object = json!({"IPS": [1], "x": null}).as_object().expect("object").clone();
        assert_eq!(take(&mut object, "ips"), Some(json!([1])));
        assert_eq!(take(&mut object, "x"), None);
        assert!(object.is_empty());
    }

    #[test]
    fn take_as_treats_empty_string_as_absent() {
        let mut object = json!({"gateway": "", "gw": "x"}).as_object().expect("object").clone();
        assert_eq!(take_as::<std::net::IpAddr>(&mut object, "gateway"), Ok(None));
        let error = take_as::<std::net::IpAddr>(&mut object, "gw").expect_err("no address");
        let expected = r#"key "gw" is "x": expected an address such as 10.1.2.3"#;
        assert_eq!(error.to_string(), expected);
    }
}
