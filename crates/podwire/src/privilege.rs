// SPDX-License-Identifier: Apache-2.0
//! Capabilities of this process, for hints when the kernel denies an operation: root in a container
//! often lacks the capabilities that networking needs.

/// Bit of `CAP_NET_ADMIN` in a capability set: links, addresses, routes, nf_tables.
const NET_ADMIN: u32 = 12; // linux/capability.h
/// Bit of `CAP_NET_RAW`: raw sockets, for the agent's path check and for DHCP.
const NET_RAW: u32 = 13; // linux/capability.h
/// Bit of `CAP_SYS_ADMIN`: creating and entering namespaces.
const SYS_ADMIN: u32 = 21; // linux/capability.h

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Privilege {
    pub(crate) is_root: bool,
    /// The effective set, one bit per capability.
    pub(crate) capabilities: u64,
}

impl Privilege {
    /// Root with all capabilities.
    #[cfg(test)]
    pub(crate) const ALL: Privilege = Privilege { is_root: true, capabilities: u64::MAX };

    /// Reads them from /proc. If that fails, assumes all capabilities.
    pub(crate) fn of_process() -> Privilege {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let is_root = rustix::process::geteuid().is_root();
        Privilege { is_root, capabilities: effective(&status).unwrap_or(u64::MAX) }
    }

    /// The hint for an error with this text: the missing capabilities and how to get them.
    pub(crate) fn hint(self, text: &str) -> Option<String> {
        let concerns = |words: &[&str]| words.iter().any(|word| text.contains(word));
        let needed = [
            (NET_ADMIN, "NET_ADMIN", true),
            (NET_RAW, "NET_RAW", concerns(&["raw socket", "packet socket"])),
            (SYS_ADMIN, "SYS_ADMIN", concerns(&["namespace", "netns", "mount"])),
        ];
        let is_missing = |bit: u32| self.capabilities & (1 << bit) == 0;
        let missing =
            needed.into_iter().filter(|(bit, _, is_needed)| *is_needed && is_missing(*bit));
        how_to_get(&missing.map(|(_, name, _)| name).collect::<Vec<_>>())
    }

    /// The hint for a command that requires `CAP_NET_ADMIN`; `None` if the process has it.
    pub(crate) fn lacks_net_admin(self) -> Option<String> {
        let is_missing = self.capabilities & (1 << NET_ADMIN) == 0;
        how_to_get(is_missing.then_some("NET_ADMIN").as_slice())
    }
}

fn how_to_get(missing: &[&str]) -> Option<String> {
    let names: Vec<String> = missing.iter().map(|name| format!("CAP_{name}")).collect();
    let flags: Vec<String> = missing.iter().map(|name| format!("--cap-add {name}")).collect();
    let (names, flags, short) = (names.join(" and "), flags.join(" "), missing.join(", "));
    (!missing.is_empty()).then(|| {
        format!(
            "this process lacks {names}: run it as root outside of containers, or start its container with {flags} (Kubernetes: securityContext.capabilities.add [{short}])"
        )
    })
}

/// `CapEff` of `/proc/<pid>/status`.
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_names_the_missing_capability() {
        let status = "Name:\tpodwire\nCapPrm:\t00000000a80425fb\nCapEff:\t00000000a80425fb\n";
        let capabilities = effective(status).unwrap();
        let docker = Privilege { is_root: true, capabilities };
        let hint = docker.hint("create link veth1").unwrap();
        assert!(hint.starts_with("this process lacks CAP_NET_ADMIN: "), "{hint}");
        assert!(hint.contains("--cap-add NET_ADMIN (Kubernetes: "), "{hint}");
        let hint = docker.hint("create network namespace: Operation not permitted").unwrap();
        assert!(hint.contains("CAP_NET_ADMIN and CAP_SYS_ADMIN"), "{hint}");
        assert_eq!(Privilege::ALL.hint("create network namespace"), None);
        assert_eq!(effective("Name:\tpodwire\n"), None);
    }
}
