// SPDX-License-Identifier: Apache-2.0
//! The backend `iptables`, if a configuration asks for it by name. It makes the same chains, rules
//! and comments as the Go plugins, so that each can remove the other's rules. For each family, one
//! `iptables-save` reads the table and one `iptables-restore` writes the difference.

pub(crate) mod firewall;
pub(crate) mod masquerade;
mod saved;

use std::net::IpAddr;
use std::time::Duration;

use cni::{Code, Error, exec};
use kernel::Netns;

pub(crate) use self::saved::{Rule, Saved};
use crate::error::Context;

/// Seconds that iptables-restore waits for the xtables lock.
const WAIT: &str = "5";
/// Time limit for one run of a program.
const DEADLINE: Duration = Duration::from_secs(15);

pub(crate) use kernel::Family;

pub(crate) fn family_of(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// The address with its prefix length, as iptables prints it.
pub(crate) fn host(address: IpAddr) -> String {
    ipnet::IpNet::from(address).to_string()
}

fn program(family: Family, what: &str) -> String {
    match family {
        Family::V4 => format!("iptables-{what}"),
        Family::V6 => format!("ip6tables-{what}"),
    }
}

/// Reads a table and writes the lines that `change` returns. A lock keeps other plugin processes
/// out.
pub(crate) fn change(
    family: Family,
    table: &str,
    change: impl FnOnce(&Saved) -> String,
) -> Result<(), Error> {
    let namespace = Netns::current().context("look for the host's namespace")?;
    let _lock = namespace.lock("iptables").context("wait for the iptables lock")?;
    let lines = change(&read(family, table)?);
    if lines.is_empty() {
        return Ok(());
    }
    let input = format!("*{table}\n{lines}COMMIT\n");
    let args = ["--noflush", "-w", WAIT];
    exec::run_tool(&program(family, "restore"), &args, input.as_bytes(), DEADLINE).map(drop)
}

pub(crate) fn read(family: Family, table: &str) -> Result<Saved, Error> {
    let printed = exec::run_tool(&program(family, "save"), &["-t", table], b"", DEADLINE)?;
    Ok(Saved::parse(&String::from_utf8_lossy(&printed)))
}

fn is_installed(family: Family) -> bool {
    exec::has_tool(&program(family, "save")) && exec::has_tool(&program(family, "restore"))
}

/// STATUS of a plugin that needs the programs.
pub(crate) fn status() -> Result<(), Error> {
    if is_installed(Family::V4) {
        return Ok(());
    }
    Err(Error::new(Code::NOT_AVAILABLE, "program iptables-restore is not installed"))
}

/// Quotes as Go's `%q` does, for text without control characters.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Describes a valid chain name, for error messages.
pub(crate) const CHAIN_NAME: &str =
    "1 to 28 letters, digits, dots, dashes and underscores, a letter first";

/// Whether both iptables and `nft` can print and read this name.
pub(crate) fn is_chain_name(name: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.len() <= 28
        && name.bytes().all(is_valid)
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_chain_name_checks_characters_and_length() {
        for good in ["CNI-ADMIN", "a", "my_chain.1"] {
            assert!(is_chain_name(good), "{good}");
        }
        let long = "x".repeat(29);
        for bad in ["", "-x", "1x", "a b", "a\"b", "a;b", &long] {
            assert!(!is_chain_name(bad), "{bad}");
        }
    }
}
