// SPDX-License-Identifier: Apache-2.0
//! A value that is never printed in logs, errors or status.

use std::fmt;

const REDACTED: &str = "[redacted]";

/// A secret, such as a password. `Debug` and `Display` do not print it, and it cannot be serialized. Call
/// [`expose`](Secret::expose) to use the value.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret<T = String>(T);

impl<T> Secret<T> {
    pub fn new(value: T) -> Secret<T> {
        Secret(value)
    }

    /// Returns the secret value.
    pub fn expose(&self) -> &T {
        &self.0
    }

    /// Returns the secret value and consumes the wrapper.
    pub fn into_exposed(self) -> T {
        self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl<T> fmt::Display for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Secret {
        Secret(value)
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Secret {
        Secret(value.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_not_printed() {
        let secret = Secret::from("hush");
        assert_eq!(format!("{secret} {secret:?} {:#?}", Some(&secret)).matches("hush").count(), 0);
        assert_eq!(secret.expose(), "hush");
        assert_eq!(secret.into_exposed(), "hush");
    }
}
