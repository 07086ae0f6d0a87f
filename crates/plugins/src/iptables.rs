// SPDX-License-Identifier: Apache-2.0
//! The backend `iptables`, where a configuration asks for it by name: the chains, rules and comments of
//! the Go plugins, so that either set removes what the other made. What is there is read with one
//! `iptables-save`, and the difference written with one `iptables-restore` for each family.

pub mod firewall;
pub mod masquerade;
mod saved;

use std::net::IpAddr;
use std::time::Duration;

use cni::{Code, Error, exec};
use kernel::Netns;

pub use self::saved::{Rule, Saved};
use crate::fault::OrFault;

/// How long the program may wait for others that change rules.
const WAIT: &str = "5";
/// When it is ended.
const DEADLINE: Duration = Duration::from_secs(15);

/// IPv4 or IPv6.
pub use kernel::Family;

/// The family of an address.
pub fn family_of(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// An address with the length that iptables prints.
pub fn host(address: IpAddr) -> String {
    ipnet::IpNet::from(address).to_string()
}

fn program(family: Family, what: &str) -> String {
    match family {
        Family::V4 => format!("iptables-{what}"),
        Family::V6 => format!("ip6tables-{what}"),
    }
}

/// Reads a table, and writes what `change` makes of it. Others of ours wait meanwhile.
pub fn change(
    family: Family,
    table: &str,
    change: impl FnOnce(&Saved) -> String,
) -> Result<(), Error> {
    let namespace = Netns::current().or_fault("look for the host's namespace")?;
    let _lock = namespace.lock("iptables").or_fault("wait for others that change rules")?;
    let lines = change(&read(family, table)?);
    if lines.is_empty() {
        return Ok(());
    }
    let input = format!("*{table}\n{lines}COMMIT\n");
    let args = ["--noflush", "-w", WAIT];
    exec::run_tool(&program(family, "restore"), &args, input.as_bytes(), DEADLINE).map(drop)
}

/// What a table holds.
pub fn read(family: Family, table: &str) -> Result<Saved, Error> {
    let told = exec::run_tool(&program(family, "save"), &["-t", table], b"", DEADLINE)?;
    Ok(Saved::read(&String::from_utf8_lossy(&told)))
}

/// Whether the programs are there.
fn is_installed(family: Family) -> bool {
    exec::has_tool(&program(family, "save")) && exec::has_tool(&program(family, "restore"))
}

/// STATUS of those who need the programs.
pub fn status() -> Result<(), Error> {
    if is_installed(Family::V4) {
        return Ok(());
    }
    Err(Error::new(Code::NOT_AVAILABLE, "there is no program iptables-restore"))
}

/// Go's `%q` of a text that holds nothing special.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// What a name of a chain consists of, in words.
pub const CHAIN_NAME: &str =
    "1 to 28 letters, digits, dots, dashes and underscores, a letter first";

/// A name that both iptables and `nft` can print and read again.
pub fn is_chain_name(name: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.len() <= 28
        && name.bytes().all(is_fine)
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_chains() {
        for good in ["CNI-ADMIN", "a", "my_chain.1"] {
            assert!(is_chain_name(good), "{good}");
        }
        let long = "x".repeat(29);
        for bad in ["", "-x", "1x", "a b", "a\"b", "a;b", &long] {
            assert!(!is_chain_name(bad), "{bad}");
        }
    }
}
