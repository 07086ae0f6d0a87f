// SPDX-License-Identifier: Apache-2.0
//! The administrator's list of sysctls that configurations may set. Without the file, all are
//! allowed.

use std::io::ErrorKind;
use std::path::Path;

use cni::Error;
use regex_lite::Regex;

use super::sysctls::Sysctl;

/// One regular expression per line. A key is allowed if an expression matches a part of it.
const FILE: &str = "/etc/cni/tuning/allowlist.conf";

/// Refuses sysctls that the list does not allow.
pub(super) fn check(sysctls: &[Sysctl]) -> Result<(), Error> {
    if sysctls.is_empty() {
        return Ok(());
    }
    match fsutil::read_following(Path::new(FILE)) {
        Ok(text) => check_against(&String::from_utf8_lossy(&text), sysctls),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(super::io_error(&format!("read {FILE}"), &cause)),
    }
}

fn check_against(text: &str, sysctls: &[Sysctl]) -> Result<(), Error> {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let expression = |line: &&str| {
        Regex::new(line).map_err(|cause| {
            let msg = format!("{FILE}: {line:?} is not a regular expression");
            Error::invalid_config(msg).with_details(cause.to_string())
        })
    };
    let allowed: Vec<Regex> = lines.iter().map(expression).collect::<Result<_, _>>()?;
    for sysctl in sysctls {
        if !allowed.iter().any(|expression| expression.is_match(&sysctl.key)) {
            let msg = format!(
                "Sysctl {} is not allowed. Only the following sysctls are allowed: [{}]",
                sysctl.key,
                lines.join(" ")
            );
            return Err(Error::invalid_config(msg).with_details(format!("{FILE} lists them")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expression_matches_any_part_of_a_key() {
        let check = |list: &str, key: &str| {
            let sysctl = Sysctl::new(key.to_owned(), "1".to_owned(), "eth0").unwrap();
            check_against(list, &[sysctl]).is_ok()
        };
        let key = "net.ipv4.conf.IFNAME.rp_filter";
        assert!(check("rp_filter", key));
        assert!(check("\n  ^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$  \r\n", key));
        assert!(check("^net.core\n(rp|arp)_filter$", key));
        assert!(!check("^rp_filter", key));
        assert!(!check("", key), "an empty list allows nothing");
        assert!(!check("(", key), "an invalid expression allows nothing");
    }
}
