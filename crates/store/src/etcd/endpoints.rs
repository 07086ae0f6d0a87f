// SPDX-License-Identifier: Apache-2.0
//! The servers of a cluster and their order.

use text::url;
use tonic::transport::Uri;

use crate::{Error, Result};

/// Parses endpoints.
pub(super) fn parse(endpoints: &[String], has_tls: bool) -> Result<Vec<Uri>> {
    if endpoints.is_empty() {
        return Err(Error::Invalid("no etcd endpoint is given".to_owned()));
    }
    let parse = |endpoint: &String| {
        // Credentials in the URL are ignored, as in flannel, and errors must not contain a password.
        let plain = url::without_credentials(endpoint.trim());
        parse_one(plain.as_deref().unwrap_or(endpoint.trim()), has_tls)
    };
    endpoints.iter().map(parse).collect()
}

fn parse_one(endpoint: &str, has_tls: bool) -> Result<Uri> {
    let invalid =
        |reason: &str| Err(Error::Invalid(format!("the etcd endpoint {endpoint:?} {reason}")));
    let scheme = if has_tls { "https" } else { "http" };
    let whole = match endpoint.contains("://") {
        true => endpoint.to_owned(),
        false => format!("{scheme}://{endpoint}"),
    };
    let Ok(uri) = whole.parse::<Uri>() else {
        return invalid("is not a URL such as http://10.0.0.1:2379");
    };
    if uri.host().is_none_or(str::is_empty) {
        return invalid("has no host");
    }
    if !matches!(uri.path(), "" | "/") {
        return invalid("has a path; remove it");
    }
    match uri.scheme_str() {
        Some("http") => Ok(uri),
        Some("https") if has_tls => Ok(uri),
        Some("https") => invalid("uses https; set the CA file"),
        _ => invalid("is neither http nor https"),
    }
}

/// Returns the name or address for which the server's certificate must be valid.
pub(super) fn server_name(uri: &Uri) -> &str {
    uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}

/// The next endpoint, round robin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rotation {
    count: usize,
    at: usize,
}

impl Rotation {
    /// Starts at a random endpoint, so that the nodes use all servers evenly.
    pub(super) fn new(count: usize, random: u64) -> Self {
        let count = count.max(1);
        let spread = u64::try_from(count).unwrap_or(u64::MAX);
        Self { count, at: usize::try_from(random % spread).unwrap_or_default() }
    }

    pub(super) fn at(self) -> usize {
        self.at
    }

    pub(super) fn advance(&mut self) {
        self.at = (self.at + 1) % self.count;
    }
}

/// Returns how often all endpoints have failed. Only then is a delay useful.
pub(super) fn rounds(failures: u32, endpoints: usize) -> u32 {
    failures / u32::try_from(endpoints).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_parsed() {
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
            let error = parse(&[endpoint.to_owned()], false).unwrap_err().to_string();
            assert!(error.contains(endpoint) && error.contains(reason), "{error}");
        }
        check("https://10.0.0.1:2379", "CA file");
        check("unix://localhost:1", "neither http nor https");
        check("http://10.0.0.1:2379/v2", "path");
        check("http://", "not a URL");
        check("", "");
        assert!(parse(&[], false).is_err());
        let error = parse(&["ftp://root:hush@a".to_owned()], false).unwrap_err().to_string();
        assert!(error.contains("ftp://a") && !error.contains("hush"), "{error}");
    }

    #[test]
    fn server_name_has_no_brackets() {
        assert_eq!(server_name(&"https://[::1]:2379".parse().unwrap()), "::1");
        assert_eq!(server_name(&"https://etcd.example".parse().unwrap()), "etcd.example");
    }

    #[test]
    fn rotation_visits_all_endpoints() {
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
