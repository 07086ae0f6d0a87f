// SPDX-License-Identifier: Apache-2.0
//! Container IDs: cnitool's, so that each tool finds attachments made by the other, and random ones
//! for pod sandboxes.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha512};

/// The ID that cnitool uses for the container in this namespace.
pub(crate) fn of_netns(netns: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    format!("cnitool-{}", digest(netns.as_os_str().as_bytes()))
}

/// A random sandbox ID as container runtimes create them: 64 hexadecimal digits.
pub(crate) fn random() -> Result<String> {
    let uuid =
        || std::fs::read_to_string("/proc/sys/kernel/random/uuid").context("generate a sandbox ID");
    let text = uuid()? + &uuid()?;
    Ok(text.chars().filter(char::is_ascii_hexdigit).collect())
}

/// The first ten bytes of the SHA-512 hash, in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let hash = Sha512::digest(bytes);
    hash.iter().take(10).fold(String::with_capacity(20), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netns_id_equals_cnitools() {
        // printf %s /var/run/netns/testing | sha512sum | cut -c-20
        assert_eq!(of_netns(Path::new("/var/run/netns/testing")), "cnitool-77383ca0a0715733ca6f");
    }

    #[test]
    fn random_ids_are_valid_and_differ() {
        let id = random().unwrap();
        assert_eq!(id.len(), 64, "{id}");
        assert_ne!(id, random().unwrap());
        assert!(cni::validate::container_id(&id).is_ok());
    }
}
