// SPDX-License-Identifier: Apache-2.0
//! Addresses of servers, which may hold a user name and a password: `http://user:password@host:port/`.

/// Returns the address without user name and password, or none if it has neither.
pub fn without_credentials(address: &str) -> Option<String> {
    let start = address.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = address.split_at(start);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let authority = &rest[..end];
    let at = match authority.rfind('@') {
        Some(at) => at,
        // A password with one of these characters, which should have been written as %2F, %3F or %23.
        None if !has_port(authority) => rest.rfind('@')?,
        None => return None,
    };
    Some(format!("{scheme}{}", &rest[at + 1..]))
}

/// Whether there is a number, or nothing, after a host.
fn has_port(authority: &str) -> bool {
    let host_end = authority.rfind(']').unwrap_or(0);
    let port = authority[host_end..].rsplit_once(':').map_or("", |(_, port)| port);
    port.chars().all(|digit| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_removed_and_all_else_stays() {
        let check = |address: &str, rest: Option<&str>| {
            assert_eq!(without_credentials(address).as_deref(), rest, "{address}");
        };
        check("http://10.0.0.1:2379", None);
        check("https://[fd00::1]:2379/", None);
        check("10.0.0.1:2379", None);
        check("https://proxy/a@b", None);
        check("", None);
        check("http://root:hush@10.0.0.1:2379/", Some("http://10.0.0.1:2379/"));
        check("root:hush@10.0.0.1:2379", Some("10.0.0.1:2379"));
        check("https://root@[fd00::1]:2379", Some("https://[fd00::1]:2379"));
        check("http://root:h@u:s@h@host", Some("http://host"));
        check("http://root:h/u?sh@host:1/x", Some("http://host:1/x"));
    }
}
