// SPDX-License-Identifier: Apache-2.0
//! Decoding as Go's library does it, so that a configuration that works there works here: keys
//! match whatever their case, `null` means absent, unknown keys are passed over, an empty text is
//! an unset option. Errors name the key and the value.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};
use text::{shorten, shorten_value};

/// Maximum length of what is said about a value, in characters.
const PROBLEM_LIMIT: usize = 1000;

/// Why a value did not decode: where it stood, what it was, what was wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    /// Keys and indexes from the outside in, such as `ipam.ranges[0][0].subnet`; may be empty.
    pub path: String,
    /// The value itself when it is short.
    pub value: Option<String>,
    /// What was wrong with it.
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

    fn invalid_type(found: de::Unexpected, wanted: &dyn de::Expected) -> DecodeError {
        let found = match found {
            de::Unexpected::Map => ", not an object",
            de::Unexpected::Seq => ", not a list",
            // A plain value stands before the problem.
            _ => "",
        };
        de::Error::custom(format_args!("expected {}{found}", in_words_of_json(wanted)))
    }

    fn invalid_value(_: de::Unexpected, wanted: &dyn de::Expected) -> DecodeError {
        de::Error::custom(format_args!("expected {}", in_words_of_json(wanted)))
    }
}

/// What serde expects, for people who write JSON and not Rust.
fn in_words_of_json(wanted: &dyn de::Expected) -> String {
    match wanted.to_string().as_str() {
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
    /// An error about the value of this key.
    pub fn at(key: &str, value: impl fmt::Display, problem: impl fmt::Display) -> DecodeError {
        DecodeError {
            path: key.to_owned(),
            value: Some(shorten_value(value)),
            problem: shorten(&problem.to_string(), PROBLEM_LIMIT).into_owned(),
        }
    }

    /// The same error seen from outside the object under this key.
    pub fn within(self, key: &str) -> DecodeError {
        self.inside(key, None)
    }

    /// The same error seen from outside the list under this key.
    pub fn under(self, key: &str, at: usize) -> DecodeError {
        self.inside(&format!("{key}[{at}]"), None)
    }

    /// The same error seen from one level further out.
    fn inside(mut self, step: &str, value: Option<String>) -> DecodeError {
        let joint = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        if self.path.is_empty() {
            self.value = value;
        }
        self.path = format!("{step}{joint}{}", self.path);
        self
    }
}

/// Decodes a value into a type as Go would.
pub fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, DecodeError> {
    T::deserialize(GoValue::of(value))
}

/// The same for an object.
pub fn decode_object<T: DeserializeOwned>(object: &Map<String, Value>) -> Result<T, DecodeError> {
    T::deserialize(GoValue::Object(object))
}

/// Takes the value of a key from an object, whatever the key's case; the last of several such
/// keys wins and `null` counts as absent, as in Go.
pub fn take(object: &mut Map<String, Value>, key: &str) -> Option<Value> {
    if let Some(value) = object.remove(key) {
        return Some(value).filter(|value| !value.is_null());
    }
    let other = object.keys().rfind(|other| other.eq_ignore_ascii_case(key))?.clone();
    object.remove(&other).filter(|value| !value.is_null())
}

/// Takes and decodes the value of a key; an empty text is as good as no value.
pub fn take_as<T: DeserializeOwned>(
    object: &mut Map<String, Value>,
    key: &str,
) -> Result<Option<T>, DecodeError> {
    let Some(value) = take(object, key) else { return Ok(None) };
    decode::<Option<T>>(&value).map_err(|error| error.inside(key, short(&value)))
}

/// Like [`Map::get`], whatever the key's case.
pub fn get<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    let found = object.get(key).or_else(|| {
        object.iter().rfind(|(other, _)| other.eq_ignore_ascii_case(key)).map(|(_, value)| value)
    });
    found.filter(|value| !value.is_null())
}

/// Indented by four spaces and without a newline at the end, as every CNI plugin prints.
pub fn to_pretty(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    serde::Serialize::serialize(value, &mut serializer)
        .expect("a JSON value with text keys always prints into memory");
    out
}

fn short(value: &Value) -> Option<String> {
    match value {
        Value::Array(_) | Value::Object(_) | Value::Null => None,
        Value::String(text) if text.len() > 400 => Some(format!("a text of {} bytes", text.len())),
        other => Some(other.to_string()),
    }
}

/// A value to be read, borrowed: a configuration is read by several plugins of one process.
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
            // Go's addresses, and its texts, read an empty text as unset.
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

    /// Without a look inside: most of a configuration is another plugin's.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map identifier
    }
}

/// Gives each key the spelling of the field it means and leaves out what is `null`. Where two
/// spellings of one field stand side by side the exact one wins.
fn fold_keys<'a>(
    map: &'a Map<String, Value>,
    fields: &'static [&'static str],
) -> Vec<(&'a str, &'a Value)> {
    let mut folded: Vec<(&str, &Value)> = Vec::with_capacity(map.len());
    for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
        let is_exact = fields.contains(&&**key);
        let field = fields.iter().find(|field| field.eq_ignore_ascii_case(key));
        let name = field.filter(|_| !is_exact).map_or(key.as_str(), |field| *field);
        match folded.iter_mut().find(|(other, _)| *other == name) {
            Some(slot) if is_exact => slot.1 = value,
            Some(_) => {}
            None => folded.push((name, value)),
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
        seed.deserialize(GoValue::of(value)).map_err(|error| error.inside(key, short(value)))
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
        let Some((at, value)) = self.items.next() else { return Ok(None) };
        let read = seed.deserialize(GoValue::of(value)).map(Some);
        read.map_err(|error| error.inside(&format!("[{at}]"), short(value)))
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
    fn keys_match_in_any_case_and_null_is_absent() {
        let value = json!({"ISGATEWAY": true, "Mtu": 1500, "address": null, "other": 1});
        let sample: Sample = decode(&value).expect("decodes");
        assert_eq!(sample, Sample { is_gateway: true, mtu: 1500, ..Sample::default() });
    }

    #[test]
    fn the_exact_spelling_wins() {
        let sample: Sample = decode(&json!({"MTU": 1, "mtu": 2, "mTU": 3})).expect("decodes");
        assert_eq!(sample.mtu, 2);
    }

    #[test]
    fn errors_name_key_and_value() {
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
    fn take_is_blind_to_case() {
        let mut object = json!({"IPS": [1], "x": null}).as_object().expect("object").clone();
        assert_eq!(take(&mut object, "ips"), Some(json!([1])));
        assert_eq!(take(&mut object, "x"), None);
        assert!(object.is_empty());
    }

    #[test]
    fn an_empty_text_is_no_address() {
        let mut object = json!({"gateway": "", "gw": "x"}).as_object().expect("object").clone();
        assert_eq!(take_as::<std::net::IpAddr>(&mut object, "gateway"), Ok(None));
        let error = take_as::<std::net::IpAddr>(&mut object, "gw").expect_err("no address");
        let words = r#"key "gw" is "x": expected an address such as 10.1.2.3"#;
        assert_eq!(error.to_string(), words);
    }
}
