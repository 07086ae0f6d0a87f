// SPDX-License-Identifier: Apache-2.0
//! A lock per plugin and attachment, across processes. An ADD and a DEL that run at the same time would each see half
//! of the other's work.

use std::io::ErrorKind;
use std::time::Duration;

use crate::error::{Code, Error};
use crate::plugin::{Host, Plugin};
use crate::request::{Command, Request};

/// Number of lock files. The files are never removed, so their number is limited. Two attachments that share a file
/// occasionally wait for each other.
const LOCK_FILES: u64 = 1024;

/// Maximum time to wait for the lock. An ADD takes milliseconds, or seconds with a DHCP server.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until no other call of this plugin changes the attachment.
///
/// Returns `None` for a command that changes nothing and for a host without locks. A delegate also gets `None`, because
/// the first plugin of the chain holds the lock.
pub(crate) fn acquire(
    host: &Host,
    plugin: &Plugin,
    request: &Request,
) -> Result<Option<fsutil::Lock>, Error> {
    acquire_within(host, plugin, request, TIMEOUT)
}

fn acquire_within(
    host: &Host,
    plugin: &Plugin,
    request: &Request,
    timeout: Duration,
) -> Result<Option<fsutil::Lock>, Error> {
    let needs_lock =
        matches!(request.command, Command::Add | Command::Del) && request.delegation.depth == 0;
    let Some(directory) = host.locks.as_ref().filter(|_| needs_lock) else {
        return Ok(None);
    };
    let parts = [plugin.name, &request.network, &request.container_id, &request.ifname];
    let name = format!("attachment-{}", hash(&parts) % LOCK_FILES);
    let failed = |code: Code, cause: &std::io::Error| {
        let doing = format!("lock {}", directory.join(&name).display());
        Error::because(code, doing, cause)
    };
    let file = match fsutil::open_lock(directory, &name) {
        Ok(file) => file,
        Err(cause) if fsutil::is_wrong_kind(&cause) => return Err(failed(Code::IO, &cause)),
        // Root of a user namespace cannot create the directory. Then only the runtime orders the calls.
        Err(_) => return Ok(None),
    };
    fsutil::lock(file, timeout).map(Some).map_err(|cause| match cause.kind() {
        ErrorKind::TimedOut => failed(Code::TRY_LATER, &cause),
        _ => failed(Code::IO, &cause),
    })
}

/// FNV-1a. Processes of different podwire versions must agree on the hash, and the standard library's hasher may
/// change with the compiler.
fn hash(parts: &[&str]) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    // No part can contain a slash, so the slash separates them without ambiguity.
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
    fn hash_is_fnv_1a() {
        // FNV-1a of "bridge/net/c1/eth0/".
        assert_eq!(hash(&["bridge", "net", "c1", "eth0"]), 0x5bb0_1145_6209_a71c);
        assert_ne!(hash(&["a", "bc"]), hash(&["ab", "c"]));
    }

    #[test]
    fn second_call_for_an_attachment_waits() {
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
        let timeout = Duration::from_millis(20);
        let acquire = |request: &Request| acquire_within(&host, &PLUGIN, request, timeout);
        let held = acquire(&add).unwrap();
        assert!(held.is_some());
        let del = Request { command: Command::Del, ..add.clone() };
        let error = acquire(&del).unwrap_err();
        assert_eq!(error.code, Code::TRY_LATER);
        assert!(error.msg.contains(&format!("process {} (", std::process::id())), "{error}");
        // A delegate in another process, a command that changes nothing, another container.
        let delegation = Delegation { depth: 1, ..Delegation::default() };
        assert!(acquire(&Request { delegation, ..del.clone() }).unwrap().is_none());
        assert!(acquire(&Request { command: Command::Check, ..del.clone() }).unwrap().is_none());
        assert!(acquire(&Request { container_id: "c2".into(), ..del.clone() }).unwrap().is_some());
        drop(held);
        assert!(acquire(&del).unwrap().is_some());
    }
}
