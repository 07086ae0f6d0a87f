// SPDX-License-Identifier: Apache-2.0
//! Sysctls of the container's network namespace.

use cni::{Code, Error};
use kernel::{Errno, Netns, sysctl};

/// A sysctl to set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sysctl {
    /// The key of the configuration, for the allowlist and for errors.
    pub key: String,
    /// The path below /proc/sys.
    pub path: String,
    pub value: String,
}

impl Sysctl {
    /// Separators are dots or slashes. The first `IFNAME` stands for the interface, whose name may
    /// contain dots.
    pub(super) fn new(key: String, value: String, ifname: &str) -> Result<Sysctl, Error> {
        let slashed = key.replace('.', "/").replacen("IFNAME", ifname, 1);
        let parts: Vec<&str> = slashed.split('/').filter(|part| !part.is_empty()).collect();
        if key.contains("..") || parts.len() < 2 || parts[0] != "net" {
            let msg = format!("invalid net sysctl key: {key:?}");
            return Err(Error::invalid_config(msg).with_details(
                "key \"sysctl\": only names below \"net.\", of the container's own network, can be set",
            ));
        }
        let path = parts.join("/");
        Ok(Sysctl { key, path, value })
    }
}

/// The path and the previous value of a sysctl.
pub(super) type Previous = (String, String);

/// Writes all sysctls. If one fails, restores those that were written before.
pub(super) fn write(ns: &Netns, sysctls: &[Sysctl]) -> Result<Vec<Previous>, Error> {
    if sysctls.is_empty() {
        return Ok(Vec::new());
    }
    inside(ns, || {
        let mut previous = Vec::with_capacity(sysctls.len());
        for one in sysctls {
            // A write-only sysctl such as net.ipv4.route.flush has no previous value.
            let old = sysctl::read(&one.path).ok();
            let written = sysctl::write(&one.path, &one.value);
            written.map_err(|cause| refused(one, &cause)).inspect_err(|_| rewrite(&previous))?;
            previous.extend(old.map(|old| (one.path.clone(), old)));
        }
        Ok(previous)
    })
}

fn refused(one: &Sysctl, cause: &kernel::Error) -> Error {
    let (key, value) = (&one.key, &one.value);
    let error = Error::because(
        Code::INTERNAL,
        format!("key \"sysctl\": cannot set {key:?} to {value:?}"),
        cause,
    );
    if cause.is_not_found() {
        return error.with_details("this kernel has no such sysctl per network namespace");
    }
    error
}

pub(super) fn restore(ns: &Netns, previous: &[Previous]) {
    if !previous.is_empty() {
        // The error that caused the rollback is the one to report.
        let _ = ns.enter(|| rewrite(previous));
    }
}

fn rewrite(previous: &[Previous]) {
    for (path, value) in previous.iter().rev() {
        let _ = sysctl::write(path, value);
    }
}

/// CHECK: each sysctl must have its value.
pub(super) fn check(ns: &Netns, sysctls: &[Sysctl]) -> Result<(), Error> {
    if sysctls.is_empty() {
        return Ok(());
    }
    inside(ns, || sysctls.iter().try_for_each(check_one))
}

fn check_one(one: &Sysctl) -> Result<(), Error> {
    let found = match sysctl::read(&one.path) {
        Ok(found) => found,
        // The sysctl is write-only.
        Err(error) if matches!(error.errno, Errno::ACCESS | Errno::PERM) => return Ok(()),
        Err(cause) => {
            return Err(Error::because(Code::INTERNAL, format!("sysctl {:?}", one.key), &cause));
        }
    };
    // The kernel separates several numbers by tabs, whichever separator was written.
    if found.split_whitespace().eq(one.value.split_whitespace()) {
        return Ok(());
    }
    let (key, expected) = (&one.key, &one.value);
    let msg =
        format!("Error: Tuning configured value of {key} is {expected}, current value is {found}");
    Err(Error::internal(msg))
}

fn inside<T>(ns: &Netns, body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let entered = ns.enter(body);
    entered.map_err(|cause| Error::because(Code::INTERNAL, "enter the container", &cause))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_limited_to_net() {
        let path = |key: &str, ifname: &str| {
            Sysctl::new(key.to_owned(), String::new(), ifname).ok().map(|one| one.path)
        };
        let check = |key: &str, expected: Option<&str>| {
            assert_eq!(path(key, "eth0.7").as_deref(), expected, "{key:?}");
        };
        check("net.ipv4.conf.IFNAME.rp_filter", Some("net/ipv4/conf/eth0.7/rp_filter"));
        check("net/ipv4/conf/IFNAME/rp_filter", Some("net/ipv4/conf/eth0.7/rp_filter"));
        check("/net/core/somaxconn", Some("net/core/somaxconn"));
        check("net.IFNAME.IFNAME", Some("net/eth0.7/IFNAME"));
        for bad in [
            "",
            "net",
            "kernel.hostname",
            "netx.core.x",
            "net/../kernel/hostname",
            "net/ipv4/../../kernel/hostname",
            "../net/core/somaxconn",
            "vm.overcommit_memory",
        ] {
            check(bad, None);
        }
    }
}
