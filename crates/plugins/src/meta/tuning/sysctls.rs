// SPDX-License-Identifier: Apache-2.0
//! Sysctls of the container's network namespace.

use cni::{Code, Error};
use kernel::{Errno, Netns, sysctl};

/// One to be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sysctl {
    /// As the configuration names it, for the allowlist and for errors.
    pub key: String,
    /// Its path below /proc/sys.
    pub path: String,
    pub value: String,
}

impl Sysctl {
    /// Separators are dots or slashes; the first `IFNAME` stands for the interface, whose own name
    /// may hold dots.
    pub fn new(key: String, value: String, ifname: &str) -> Result<Sysctl, Error> {
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

/// What a sysctl was: its path and value.
pub type Before = (String, String);

/// Writes all, or puts back those that were written before one that fails.
pub fn write(ns: &Netns, sysctls: &[Sysctl]) -> Result<Vec<Before>, Error> {
    if sysctls.is_empty() {
        return Ok(Vec::new());
    }
    inside(ns, || {
        let mut before = Vec::with_capacity(sysctls.len());
        for one in sysctls {
            // One that can only be written, such as net.ipv4.route.flush, has nothing to put back.
            let old = sysctl::read(&one.path).ok();
            let written = sysctl::write(&one.path, &one.value);
            written.map_err(|cause| refused(one, &cause)).inspect_err(|_| rewrite(&before))?;
            before.extend(old.map(|old| (one.path.clone(), old)));
        }
        Ok(before)
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
        return error.with_details("this kernel has no such sysctl for each network namespace");
    }
    error
}

/// Puts back what was there before.
pub fn put_back(ns: &Netns, before: &[Before]) {
    if !before.is_empty() {
        // The error that made this necessary is the one to tell.
        let _ = ns.enter(|| rewrite(before));
    }
}

fn rewrite(before: &[Before]) {
    for (path, value) in before.iter().rev() {
        let _ = sysctl::write(path, value);
    }
}

/// Every one must still have its value.
pub fn check(ns: &Netns, sysctls: &[Sysctl]) -> Result<(), Error> {
    if sysctls.is_empty() {
        return Ok(());
    }
    inside(ns, || sysctls.iter().try_for_each(check_one))
}

fn check_one(one: &Sysctl) -> Result<(), Error> {
    let found = match sysctl::read(&one.path) {
        Ok(found) => found,
        // It can only be written.
        Err(error) if matches!(error.errno, Errno::ACCESS | Errno::PERM) => return Ok(()),
        Err(cause) => {
            return Err(Error::because(Code::INTERNAL, format!("sysctl {:?}", one.key), &cause));
        }
    };
    // The kernel separates several numbers by tabs, whatever they were written with.
    if found.split_whitespace().eq(one.value.split_whitespace()) {
        return Ok(());
    }
    let (key, wanted) = (&one.key, &one.value);
    let msg =
        format!("Error: Tuning configured value of {key} is {wanted}, current value is {found}");
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
    fn keys_lead_below_net_and_nowhere_else() {
        let path = |key: &str, ifname: &str| {
            Sysctl::new(key.to_owned(), String::new(), ifname).ok().map(|one| one.path)
        };
        let check = |key: &str, wanted: Option<&str>| {
            assert_eq!(path(key, "eth0.7").as_deref(), wanted, "{key:?}");
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
