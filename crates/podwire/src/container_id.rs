// SPDX-License-Identifier: Apache-2.0
//! Container ids: cnitool's, so that attachments of either tool are found by the other, and a
//! fresh one for each pod's sandbox.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha512};

/// What cnitool calls the container of a namespace.
pub fn of_netns(netns: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    format!("cnitool-{}", digest(netns.as_os_str().as_bytes()))
}

/// A sandbox id as container runtimes make them: 64 hexadecimal digits.
pub fn fresh() -> Result<String> {
    let uuid =
        || std::fs::read_to_string("/proc/sys/kernel/random/uuid").context("make a new sandbox id");
    let text = uuid()? + &uuid()?;
    Ok(text.chars().filter(char::is_ascii_hexdigit).collect())
}

/// The first ten bytes of SHA-512 in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
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
    fn id_of_a_namespace_is_cnitools() {
        // printf %s /var/run/netns/testing | sha512sum | cut -c-20
        assert_eq!(of_netns(Path::new("/var/run/netns/testing")), "cnitool-77383ca0a0715733ca6f");
    }

    #[test]
    fn fresh_ids_differ() {
        let id = fresh().unwrap();
        assert_eq!(id.len(), 64, "{id}");
        assert_ne!(id, fresh().unwrap());
        assert!(cni::validate::container_id(&id).is_ok());
    }
}
