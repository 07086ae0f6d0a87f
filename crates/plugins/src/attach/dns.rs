// SPDX-License-Identifier: Apache-2.0
//! The key `dns` of a network configuration, which overrides the DNS settings of the IPAM plugin.

use cni::{CniResult, Dns};
use serde::Deserialize;

/// The key `dns`. An empty list overrides the IPAM plugin's settings, a missing list does not, as
/// in the Go plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct DnsConf {
    nameservers: Option<Vec<String>>,
    domain: String,
    search: Option<Vec<String>>,
    options: Option<Vec<String>>,
}

impl DnsConf {
    fn is_set(&self) -> bool {
        let lists = [&self.nameservers, &self.search, &self.options];
        !self.domain.is_empty() || lists.iter().any(|list| list.is_some())
    }

    /// Replaces the DNS settings of a result if any field is set.
    pub(crate) fn override_in(&self, result: &mut CniResult) {
        if !self.is_set() {
            return;
        }
        let list = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
        result.dns = Dns {
            nameservers: list(&self.nameservers),
            domain: self.domain.clone(),
            search: list(&self.search),
            options: list(&self.options),
            ..Dns::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn empty_list_overrides_and_missing_list_does_not() {
        let ipam = Dns { nameservers: vec!["10.0.0.3".into()], ..Dns::default() };
        let check = |written: serde_json::Value, overrides: bool| {
            let conf: DnsConf = gojson::decode(&written).expect("a valid key");
            let mut result = CniResult { dns: ipam.clone(), ..CniResult::default() };
            conf.override_in(&mut result);
            assert_eq!(result.dns != ipam, overrides, "{written}");
        };
        check(json!({}), false);
        check(json!({"nameservers": null, "domain": ""}), false);
        for key in ["nameservers", "search", "options", "NameServers"] {
            check(json!({key: []}), true);
        }
        check(json!({"domain": "example.org"}), true);
    }
}
