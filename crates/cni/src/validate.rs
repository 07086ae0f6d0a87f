// SPDX-License-Identifier: Apache-2.0
//! Rules for container IDs, network names and interface names.

use std::borrow::Cow;

use text::shorten;

use crate::error::{Code, Error};

/// Maximum length of a file name on Linux.
pub(crate) const NAME_MAX: usize = 255;

/// Rule for container IDs and network names.
const PLAIN_NAME: &str = "allowed are letters, digits, '_', '.', '-', the first a letter or digit";

/// Checks CNI_CONTAINERID: letters, digits, `_`, `.`, `-`, the first a letter or digit.
pub fn container_id(id: &str) -> Result<(), Error> {
    if id.is_empty() {
        return Err(Error::new(Code::UNKNOWN_CONTAINER, "missing containerID"));
    }
    if is_plain_name(id) {
        let code = Code::BAD_ENVIRONMENT;
        return require_file_name(id).map_err(|why| Error::new(code, format!("containerID {why}")));
    }
    let details = format!("CNI_CONTAINERID is {:?}, {PLAIN_NAME}", short(id));
    Err(Error::new(Code::BAD_ENVIRONMENT, "invalid characters in containerID")
        .with_details(details))
}

/// Checks the `name` of a network by the rule for container IDs.
pub fn network_name(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(
            Error::invalid_config("missing network name").with_details("key \"name\" must be set")
        );
    }
    if is_plain_name(name) {
        return require_file_name(name)
            .map_err(|why| Error::invalid_config(format!("network name {why}")));
    }
    let details = format!("key \"name\" is {:?}, {PLAIN_NAME}", short(name));
    Err(Error::invalid_config("invalid characters found in network name").with_details(details))
}

/// Checks CNI_IFNAME by the kernel's rules.
pub fn interface_name(name: &str) -> Result<(), Error> {
    let msg = if name.is_empty() {
        "interface name is empty"
    } else if name.len() > 15 {
        "interface name is too long"
    } else if name == "." || name == ".." {
        "interface name is . or .."
    } else if name.contains(['/', ':']) || name.contains(char::is_whitespace) {
        "interface name contains / or : or whitespace characters"
    } else if name.contains('%') {
        "interface name contains the character '%'"
    } else {
        return Ok(());
    };
    let details = format!("CNI_IFNAME is {:?}, allowed are 1 to 15 bytes", short(name));
    Err(Error::new(Code::BAD_ENVIRONMENT, msg).with_details(details))
}

/// Checks the length of a name that becomes the name of a file or directory.
fn require_file_name(name: &str) -> Result<(), String> {
    match name.len() {
        ..=NAME_MAX => Ok(()),
        length => {
            Err(format!("{:?} has {length} bytes, at most {NAME_MAX} are allowed", short(name)))
        }
    }
}

fn is_plain_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    text.bytes().all(plain) && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
}

/// Shortens a name for an error message.
fn short(text: &str) -> Cow<'_, str> {
    shorten(text, 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_specification() {
        for good in ["a", "0", "a-b_c.d", "Z9"] {
            assert!(container_id(good).is_ok(), "{good}");
            assert!(network_name(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", ".a", "a/b", "a b", "a\n", "é"] {
            assert!(container_id(bad).is_err(), "{bad:?}");
            assert!(network_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_longer_than_file_names_are_rejected() {
        let longest = "x".repeat(255);
        assert!(container_id(&longest).is_ok() && network_name(&longest).is_ok());
        let long = "x".repeat(256);
        let code = |checked: Result<(), Error>| {
            let error = checked.unwrap_err();
            assert!(error.msg.ends_with("has 256 bytes, at most 255 are allowed"), "{error}");
            assert!(error.msg.len() < 200, "{error}");
            error.code
        };
        assert_eq!(code(container_id(&long)), Code::BAD_ENVIRONMENT);
        assert_eq!(code(network_name(&long)), Code::INVALID_CONFIG);
    }

    #[test]
    fn interface_names_follow_the_kernel() {
        for good in ["eth0", "a.b", "123456789012345", "é"] {
            assert!(interface_name(good).is_ok(), "{good}");
        }
        let long = "x".repeat(300);
        for bad in
            ["", ".", "..", "a/b", "a:b", "a%d", "a b", "a\u{a0}b", "1234567890123456", &long]
        {
            let error = interface_name(bad).expect_err(bad);
            assert_eq!(error.code, Code::BAD_ENVIRONMENT);
            assert!(error.msg.len() < 200, "{}", error.msg);
        }
    }
}
