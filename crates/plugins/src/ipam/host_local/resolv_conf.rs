// SPDX-License-Identifier: Apache-2.0
//! DNS settings of a result from a resolv.conf file.

use cni::Dns;

/// Parses the text of a resolv.conf; unknown lines are ignored.
pub(super) fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim) {
        if line.starts_with(['#', ';']) {
            continue;
        }
        let mut words = line.split_whitespace();
        let Some(keyword) = words.next() else { continue };
        let mut values = words.map(str::to_owned);
        match keyword {
            "nameserver" => dns.nameservers.extend(values.next()),
            "domain" => dns.domain = values.next().unwrap_or(dns.domain),
            "search" => dns.search.extend(values),
            "options" => dns.options.extend(values),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_unknown_lines_are_ignored() {
        let dns = parse(
            "# comment\n; another\nnameserver 10.0.0.1 ignored\n  nameserver fd00::1\n\n\
             domain example.org\nsearch a b\nsearch c\noptions ndots:5 rotate\nsortlist x\ndomain\n",
        );
        assert_eq!(dns.nameservers, ["10.0.0.1", "fd00::1"]);
        assert_eq!(dns.domain, "example.org");
        assert_eq!(dns.search, ["a", "b", "c"]);
        assert_eq!(dns.options, ["ndots:5", "rotate"]);
    }
}
