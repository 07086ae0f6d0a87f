// SPDX-License-Identifier: Apache-2.0
//! The servers of a cluster, and which of them comes next.

use text::url;
use tonic::transport::Uri;

use crate::{Error, Result};

/// Understands endpoints as they are written in configurations.
pub fn parse(endpoints: &[String], has_tls: bool) -> Result<Vec<Uri>> {
    if endpoints.is_empty() {
        return Err(Error::Invalid("no endpoint of etcd is given".to_owned()));
    }
    let parse = |endpoint: &String| {
        // They are not used, as flannel does not use them either; and errors must not show a password.
        let plain = url::without_credentials(endpoint.trim());
        parse_one(plain.as_deref().unwrap_or(endpoint.trim()), has_tls)
    };
    endpoints.iter().map(parse).collect()
}

fn parse_one(endpoint: &str, has_tls: bool) -> Result<Uri> {
    let invalid = |why: &str| Err(Error::Invalid(format!("the etcd endpoint {endpoint:?} {why}")));
    let scheme = if has_tls { "https" } else { "http" };
    let whole = match endpoint.contains("://") {
        true => endpoint.to_owned(),
        false => format!("{scheme}://{endpoint}"),
    };
    let Ok(uri) = whole.parse::<Uri>() else {
        return invalid("is not an address such as http://10.0.0.1:2379");
    };
    if uri.host().is_none_or(str::is_empty) {
        return invalid("names no host");
    }
    if !matches!(uri.path(), "" | "/") {
        return invalid("has a path, and etcd serves none");
    }
    match uri.scheme_str() {
        Some("http") => Ok(uri),
        Some("https") if has_tls => Ok(uri),
        Some("https") => invalid("needs the file of a certificate authority"),
        _ => invalid("is neither http nor https"),
    }
}

/// The name or address that the server's certificate must be for.
pub fn server_name(uri: &Uri) -> &str {
    uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}

/// One after the other, and round again.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    count: usize,
    at: usize,
}

impl Rotation {
    /// Of `count` endpoints, starting anywhere, so that many nodes use all servers alike.
    pub fn new(count: usize, noise: u64) -> Self {
        let count = count.max(1);
        let spread = u64::try_from(count).unwrap_or(u64::MAX);
        Self { count, at: usize::try_from(noise % spread).unwrap_or_default() }
    }

    pub fn at(self) -> usize {
        self.at
    }

    pub fn advance(&mut self) {
        self.at = (self.at + 1) % self.count;
    }
}

/// How often all endpoints were tried in vain, after so many failures: only then is it worth waiting.
pub fn rounds(failures: u32, endpoints: usize) -> u32 {
    failures / u32::try_from(endpoints).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_understood_as_written() {
        fn check(endpoint: &str, has_tls: bool, expected: &str) {
            let parsed = parse(&[endpoint.to_owned()], has_tls).unwrap();
            assert_eq!(parsed[0].to_string(), expected, "{endpoint}");
        }
        check("http://127.0.0.1:2379", false, "http://127.0.0.1:2379/");
        check(" https://etcd.example:2379/ ", true, "https://etcd.example:2379/");
        check("10.0.0.1:2379", false, "http://10.0.0.1:2379/");
        check("10.0.0.1:2379", true, "https://10.0.0.1:2379/");
        check("http://[fd00::1]:2379", true, "http://[fd00::1]:2379/");
        check("http://root:hush@10.0.0.1:2379", false, "http://10.0.0.1:2379/");
    }

    #[test]
    fn bad_endpoints_are_named() {
        fn check(endpoint: &str, reason: &str) {
            let why = parse(&[endpoint.to_owned()], false).unwrap_err().to_string();
            assert!(why.contains(endpoint) && why.contains(reason), "{why}");
        }
        check("https://10.0.0.1:2379", "certificate authority");
        check("unix://localhost:1", "neither http nor https");
        check("http://10.0.0.1:2379/v2", "path");
        check("http://", "not an address");
        check("", "");
        assert!(parse(&[], false).is_err());
        let why = parse(&["ftp://root:hush@a".to_owned()], false).unwrap_err().to_string();
        assert!(why.contains("ftp://a") && !why.contains("hush"), "{why}");
    }

    #[test]
    fn server_name_has_no_brackets() {
        assert_eq!(server_name(&"https://[::1]:2379".parse().unwrap()), "::1");
        assert_eq!(server_name(&"https://etcd.example".parse().unwrap()), "etcd.example");
    }

    #[test]
    fn rotation_visits_all_before_it_pauses() {
        let mut rotation = Rotation::new(3, 4);
        let visited: Vec<_> = (0..4)
            .map(|_| {
                let at = rotation.at();
                rotation.advance();
                at
            })
            .collect();
        assert_eq!(visited, [1, 2, 0, 1]);
        assert_eq!([0, 2, 3, 5, 6].map(|failures| rounds(failures, 3)), [0, 0, 1, 1, 2]);
        assert_eq!(Rotation::new(1, u64::MAX).at(), 0);
        assert_eq!(rounds(2, 1), 2);
    }
}
