// SPDX-License-Identifier: Apache-2.0
//! The error object of the specification: a code, a message of one line, and details.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde_json::{Value, json};
use text::{ErrorChain, shorten};

use crate::Version;

/// An error code from the specification's table. Codes from 100 on are defined by each plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Code(pub u32);

impl Code {
    /// The plugin does not support the configuration's version.
    pub const INCOMPATIBLE_VERSION: Code = Code(1);
    /// A field of the configuration is not supported.
    pub const UNSUPPORTED_FIELD: Code = Code(2);
    /// The container is unknown or gone.
    pub const UNKNOWN_CONTAINER: Code = Code(3);
    /// An environment variable is missing or malformed.
    pub const BAD_ENVIRONMENT: Code = Code(4);
    /// Reading or writing failed.
    pub const IO: Code = Code(5);
    /// The input is not valid JSON or has the wrong types.
    pub const DECODE: Code = Code(6);
    /// The configuration contradicts itself or the plugin's rules.
    pub const INVALID_CONFIG: Code = Code(7);
    /// CNI_NETNS is the plugin's own namespace. The specification does not list this code, but its library uses it.
    pub const INVALID_NETNS: Code = Code(8);
    /// A temporary condition; the runtime should try again.
    pub const TRY_LATER: Code = Code(11);
    /// STATUS: the plugin cannot handle an ADD.
    pub const NOT_AVAILABLE: Code = Code(50);
    /// STATUS: the plugin cannot handle an ADD, and existing containers have limited connectivity.
    pub const LIMITED: Code = Code(51);
    /// Any other error.
    pub const INTERNAL: Code = Code(999);
}

/// Maximum length of [`Error::msg`] in a reply, in characters.
const MSG_LIMIT: usize = 2000;
/// Maximum length of [`Error::details`], which may list many files or containers.
const DETAILS_LIMIT: usize = 8000;

/// The reply of a plugin that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind of failure.
    pub code: Code,
    /// Message of one line.
    pub msg: String,
    /// The chain of causes, or empty.
    pub details: String,
}

impl Error {
    /// Creates an error without details.
    pub fn new(code: Code, msg: impl Into<String>) -> Error {
        Error { code, msg: msg.into(), details: String::new() }
    }

    /// Replaces the details.
    pub fn with_details(mut self, details: impl Into<String>) -> Error {
        self.details = details.into();
        self
    }

    /// Creates an error about a failed operation. The causes of `cause` become the details.
    pub fn because(code: Code, doing: impl fmt::Display, cause: &dyn std::error::Error) -> Error {
        let details = cause.source().map(|deeper| ErrorChain(deeper).to_string());
        Error { code, msg: format!("{doing}: {cause}"), details: details.unwrap_or_default() }
    }

    /// Creates an error with [`Code::INVALID_CONFIG`].
    pub fn invalid_config(msg: impl Into<String>) -> Error {
        Error::new(Code::INVALID_CONFIG, msg)
    }

    /// Creates an error with [`Code::INTERNAL`].
    pub fn internal(msg: impl Into<String>) -> Error {
        Error::new(Code::INTERNAL, msg)
    }

    /// Combines errors into one with the code of the first and the texts of all. A single error stays unchanged.
    pub fn join(errors: Vec<Error>) -> Result<(), Error> {
        let mut errors = errors.into_iter();
        let Some(first) = errors.next() else { return Ok(()) };
        let others: Vec<String> = errors.map(|error| error.to_string()).collect();
        match others.as_slice() {
            [] => Err(first),
            others => Err(Error::new(first.code, format!("{first}; {}", others.join("; ")))),
        }
    }

    /// Combines the results of operations that were all tried: success, or all failures as one error.
    pub fn all(results: impl IntoIterator<Item = Result<(), Error>>) -> Result<(), Error> {
        Error::join(results.into_iter().filter_map(Result::err).collect())
    }

    /// Returns the object that a plugin prints on standard output.
    pub fn to_json(&self, version: Version) -> Value {
        let mut object = json!({
            "cniVersion": version.as_str(),
            "code": self.code.0,
            "msg": self.msg,
        });
        if !self.details.is_empty() {
            object["details"] = Value::String(self.details.clone());
        }
        object
    }

    /// Parses the output of another plugin. Returns `None` if it is not an error object.
    pub fn from_json(value: &Value) -> Option<Error> {
        #[derive(Deserialize)]
        struct Wire {
            code: Option<u32>,
            #[serde(default)]
            msg: String,
            #[serde(default)]
            details: String,
        }
        let wire: Wire = gojson::decode(value).ok()?;
        let (code, msg, details) = (wire.code?, wire.msg, wire.details);
        Some(Error { code: Code(code), msg, details }.bounded())
    }

    /// Shortens the texts, because they may quote input of any length, such as a configuration value.
    pub(crate) fn bounded(mut self) -> Error {
        for (text, limit) in [(&mut self.msg, MSG_LIMIT), (&mut self.details, DETAILS_LIMIT)] {
            if let Cow::Owned(short) = shorten(text, limit) {
                *text = short;
            }
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.msg)?;
        if !self.details.is_empty() {
            write!(f, "; {}", self.details)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_printed_and_parsed_is_unchanged() {
        let error = Error::new(Code::TRY_LATER, "no address").with_details("all 253 are taken");
        let printed = error.to_json(Version::V1_0_0);
        assert_eq!(printed["cniVersion"], "1.0.0");
        assert_eq!(Error::from_json(&printed), Some(error));
        assert_eq!(Error::from_json(&json!({"ips": []})), None);
        assert_eq!(Error::from_json(&json!("text")), None);
    }

    #[test]
    fn joined_errors_have_the_first_code() {
        assert_eq!(Error::join(vec![]), Ok(()));
        let all = vec![Error::new(Code(103), "one"), Error::internal("two").with_details("deep")];
        assert_eq!(Error::join(all[1..].to_vec()), Err(all[1].clone()));
        let joined = Error::join(all).expect_err("two errors");
        assert_eq!(joined.code, Code(103));
        assert_eq!(joined.msg, "one; two; deep");
    }
}
