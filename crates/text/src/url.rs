// SPDX-License-Identifier: Apache-2.0
//! URLs that may contain a user name and a password: `http://user:password@host:port/`.

/// Returns the URL without user name and password, or `None` if it has neither.
pub fn without_credentials(url: &str) -> Option<String> {
    let start = url.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = url.split_at(start);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let authority = &rest[..end];
    let at = match authority.rfind('@') {
        Some(at) => at,
        // The password contains one of these characters unescaped; it should be written as %2F, %3F or %23.
        None if !has_port(authority) => rest.rfind('@')?,
        None => return None,
    };
    Some(format!("{scheme}{}", &rest[at + 1..]))
}

/// Returns whether the host is followed by a port number or by nothing.
fn has_port(authority: &str) -> bool {
    let host_end = authority.rfind(']').unwrap_or(0);
    let port = authority[host_end..].rsplit_once(':').map_or("", |(_, port)| port);
    port.chars().all(|digit| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_removed_from_urls() {
        let check = |url: &str, rest: Option<&str>| {
            assert_eq!(without_credentials(url).as_deref(), rest, "{url}");
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
