// SPDX-License-Identifier: Apache-2.0
//! Takes known fields out of a JSON object, so that the unknown ones remain.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::calico::{Malformed, Preserved};

/// Fields of a JSON object that were not taken yet.
pub(crate) struct Fields {
    /// Name of the object for errors.
    object: String,
    /// Path of this part of the object for errors, such as `spec.`.
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    pub(crate) fn parse(object: &impl ToString, bytes: &[u8]) -> Result<Self, Malformed> {
        let object = object.to_string();
        match serde_json::from_slice(bytes) {
            Ok(value) => Self::new(object, String::new(), value),
            Err(e) => Err(Malformed { object, reason: format!("not valid JSON: {e}") }),
        }
    }

    pub(crate) fn of(object: &impl ToString, value: Value) -> Result<Self, Malformed> {
        Self::new(object.to_string(), String::new(), value)
    }

    fn new(object: String, path: String, value: Value) -> Result<Self, Malformed> {
        match value {
            Value::Object(map) => Ok(Self { object, path, map }),
            other => {
                let name = path.trim_end_matches('.');
                let reason = format!("{name} is {}; expected an object", kind(&other));
                Err(Malformed { object, reason: reason.trim_start().to_owned() })
            }
        }
    }

    /// Takes a field. As in Go, `null` means absent.
    pub(crate) fn optional<T: DeserializeOwned>(
        &mut self,
        key: &str,
    ) -> Result<Option<T>, Malformed> {
        match self.map.remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match serde_json::from_value(value) {
                Ok(value) => Ok(Some(value)),
                Err(e) => Err(self.error(key, e)),
            },
        }
    }

    pub(crate) fn required<T: DeserializeOwned>(&mut self, key: &str) -> Result<T, Malformed> {
        self.optional(key)?.ok_or_else(|| self.error(key, "missing"))
    }

    /// Takes a field that is an object itself. An absent object is empty.
    pub(crate) fn nested(&mut self, key: &str) -> Result<Self, Malformed> {
        let value = match self.map.remove(key) {
            None | Some(Value::Null) => Value::Object(Map::new()),
            Some(value) => value,
        };
        Self::new(self.object.clone(), format!("{}{key}.", self.path), value)
    }

    pub(crate) fn error(&self, key: &str, reason: impl std::fmt::Display) -> Malformed {
        Malformed { object: self.object.clone(), reason: format!("{}{key}: {reason}", self.path) }
    }

    /// Returns the fields that were not taken.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.map
    }

    /// Returns a field that stays in the object.
    pub(crate) fn peek(&self, key: &str) -> Option<&Value> {
        self.map.get(key)
    }
}

/// A resource: fields of `spec`, and everything beside `spec`.
pub(crate) struct Resource {
    pub(crate) spec: Fields,
    pub(crate) envelope: Map<String, Value>,
}

impl Resource {
    pub(crate) fn split(mut fields: Fields) -> Result<Self, Malformed> {
        let spec = fields.nested("spec")?;
        Ok(Self { spec, envelope: fields.rest() })
    }

    pub(crate) fn preserved(self) -> Preserved {
        Preserved { envelope: self.envelope, spec: self.spec.rest() }
    }
}

/// Puts a resource together. `metadata` of another writer is kept, except for the name.
pub(crate) fn resource(
    api_version: &str,
    kind: &str,
    name: &str,
    envelope: &Map<String, Value>,
    spec: Map<String, Value>,
) -> Map<String, Value> {
    let mut object = envelope.clone();
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    metadata(&mut object).insert("name".to_owned(), name.into());
    object.insert("spec".to_owned(), spec.into());
    object
}

/// Returns `metadata` of a resource for changes.
pub(crate) fn metadata(object: &mut Map<String, Value>) -> &mut Map<String, Value> {
    nested(object, "metadata")
}

/// Returns an object inside of an object, which is created if it does not exist.
pub(crate) fn nested<'a>(
    object: &'a mut Map<String, Value>,
    key: &str,
) -> &'a mut Map<String, Value> {
    let value = object.entry(key).or_insert_with(|| Value::Object(Map::new()));
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("the value was made an object")
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
