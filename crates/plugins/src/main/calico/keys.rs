// SPDX-License-Identifier: Apache-2.0
//! Single keys of a configuration, by their path. Smaller than a struct for each of Calico's nested
//! objects: most of their keys are ignored.

use std::path::PathBuf;

use cni::{Code, Error, Request};
use gojson::DecodeError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub(crate) struct Keys<'a>(&'a Map<String, Value>);

impl<'a> Keys<'a> {
    pub(crate) fn new(config: &'a Map<String, Value>) -> Self {
        Self(config)
    }

    pub(crate) fn of(request: &'a Request) -> Self {
        Self(&request.config)
    }

    /// The value under a path such as `policy.type`. If a key contains dots, write the path with `/`.
    pub(crate) fn find(&self, path: &str) -> Result<Option<&'a Value>, Error> {
        let separator = if path.contains('/') { '/' } else { '.' };
        let (mut object, mut rest) = (self.0, path);
        while let Some((key, deeper)) = rest.split_once(separator) {
            object = match gojson::get(object, key) {
                None => return Ok(None),
                Some(Value::Object(object)) => object,
                Some(other) => {
                    return Err(invalid(&DecodeError::at(key, other, "expected an object")));
                }
            };
            rest = deeper;
        }
        Ok(gojson::get(object, rest))
    }

    /// The default value if the key is absent.
    pub(crate) fn get<T: DeserializeOwned + Default>(&self, path: &str) -> Result<T, Error> {
        let Some(value) = self.find(path)? else { return Ok(T::default()) };
        let found = gojson::decode::<Option<T>>(value);
        found.map(Option::unwrap_or_default).map_err(|problem| match problem.path.as_str() {
            "" => invalid(&DecodeError::at(path, value, problem.problem)),
            _ => invalid(&problem.within(path)),
        })
    }

    pub(crate) fn number(&self, path: &str, min: i64, max: i64) -> Result<i64, Error> {
        let number = self.get(path)?;
        if (min..=max).contains(&number) {
            return Ok(number);
        }
        let msg = format!("key {path:?} is {number}, allowed are 0 to {max}");
        Err(Error::invalid_config(msg))
    }

    pub(crate) fn path(&self, path: &str, default: &str) -> Result<PathBuf, Error> {
        let text: String = self.get(path)?;
        Ok(if text.is_empty() { default.into() } else { text.into() })
    }
}

fn invalid(problem: &DecodeError) -> Error {
    Error::because(Code::INVALID_CONFIG, "failed to load netconf", problem)
}
