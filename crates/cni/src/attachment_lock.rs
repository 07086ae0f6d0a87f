// SPDX-License-Identifier: Apache-2.0
//! Order between calls of one plugin for one attachment, in one process or many: an ADD and a DEL
//! that run at the same time would each see the half of what the other does.

use std::io::ErrorKind;
use std::time::Duration;

use crate::error::{Code, Error};
use crate::plugin::{Host, Plugin};
use crate::request::{Command, Request};

/// The files stay, and are no more than these. Two attachments with the same file wait for each other
/// now and then.
const FILES: u64 = 1024;

/// An ADD takes milliseconds, with a DHCP server seconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until no other call of this plugin changes the attachment. `None` for a verb that changes
/// nothing, for a host without locks, and for a plugin that another process has delegated to: the first
/// plugin of that chain holds the lock of the attachment.
pub(crate) fn acquire(
    host: &Host,
    plugin: &Plugin,
    request: &Request,
) -> Result<Option<fsutil::Lock>, Error> {
    acquire_within(host, plugin, request, PATIENCE)
}

fn acquire_within(
    host: &Host,
    plugin: &Plugin,
    request: &Request,
    patience: Duration,
) -> Result<Option<fsutil::Lock>, Error> {
    let changes = matches!(request.command, Command::Add | Command::Del);
    let Some(directory) = host.locks.as_ref().filter(|_| changes && request.delegation.depth == 0)
    else {
        return Ok(None);
    };
    let parts = [plugin.name, &request.network, &request.container_id, &request.ifname];
    let name = format!("attachment-{}", hash(&parts) % FILES);
    let failed = |code: Code, cause: &std::io::Error| {
        let doing = format!("lock {}", directory.join(&name).display());
        Error::because(code, doing, cause)
    };
    let file = match fsutil::open_lock(directory, &name) {
        Ok(file) => file,
        Err(cause) if fsutil::is_wrong_kind(&cause) => return Err(failed(Code::IO, &cause)),
        // Without a place for locks, as for root of a user namespace, the runtime's order has to do.
        Err(_) => return Ok(None),
    };
    fsutil::lock(file, patience).map(Some).map_err(|cause| match cause.kind() {
        ErrorKind::TimedOut => failed(Code::TRY_LATER, &cause),
        _ => failed(Code::IO, &cause),
    })
}

/// FNV-1a; the standard library's hasher may change with the compiler, and processes of two versions
/// must agree.
fn hash(parts: &[&str]) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    // No part can hold a slash.
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([b'/']));
    bytes.fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use crate::{CniResult, Delegation, Version};

    use super::*;

    const PLUGIN: Plugin = Plugin {
        name: "bridge",
        about: "",
        versions: Version::ALL,
        add: |_| Ok(CniResult::default()),
        del: |_| Ok(()),
        check: |_| Ok(()),
        status: |_| Ok(()),
        gc: |_| Ok(()),
    };

    #[test]
    fn the_hash_is_the_published_one() {
        // FNV-1a of "bridge/net/c1/eth0/".
        assert_eq!(hash(&["bridge", "net", "c1", "eth0"]), 0x5bb0_1145_6209_a71c);
        assert_ne!(hash(&["a", "bc"]), hash(&["ab", "c"]));
    }

    #[test]
    fn one_call_of_an_attachment_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let locks = Some(directory.path().join("locks"));
        let host = Host {
            plugins: &[],
            program: None,
            always_exec: false,
            builtin_fallback: false,
            locks,
        };
        let add = Request {
            command: Command::Add,
            container_id: "c1".into(),
            netns: String::new(),
            ifname: "eth0".into(),
            raw_args: String::new(),
            path: String::new(),
            version: Version::LATEST,
            network: "net".into(),
            config: serde_json::Map::new().into(),
            config_text: Vec::new().into(),
            delegation: Delegation::default(),
            host: &host,
        };
        let soon = Duration::from_millis(20);
        let take = |request: &Request| acquire_within(&host, &PLUGIN, request, soon);
        let held = take(&add).unwrap();
        assert!(held.is_some());
        let del = Request { command: Command::Del, ..add.clone() };
        let error = take(&del).unwrap_err();
        assert_eq!(error.code, Code::TRY_LATER);
        assert!(error.msg.contains(&format!("process {} (", std::process::id())), "{error}");
        // A delegate in another process, a verb that changes nothing, another container.
        let delegation = Delegation { depth: 1, ..Delegation::default() };
        assert!(take(&Request { delegation, ..del.clone() }).unwrap().is_none());
        assert!(take(&Request { command: Command::Check, ..del.clone() }).unwrap().is_none());
        assert!(take(&Request { container_id: "c2".into(), ..del.clone() }).unwrap().is_some());
        drop(held);
        assert!(take(&del).unwrap().is_some());
    }
}
