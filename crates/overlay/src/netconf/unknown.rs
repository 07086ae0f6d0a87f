// SPDX-License-Identifier: Apache-2.0
//! Keys that nobody reads. They are passed over, as flannel does; who mistypes one is told.

use serde_json::{Map, Value};

use crate::backend::KEYS;

const ALL: &str = "Network SubnetLen SubnetMin SubnetMax EnableIPv4 EnableIPv6 EnableNFTables \
    IPv6Network IPv6SubnetLen IPv6SubnetMin IPv6SubnetMax Backend";

/// A line for each key of a file that is passed over.
pub fn unknown_keys(text: &str) -> Vec<String> {
    let Ok(Value::Object(object)) = serde_json::from_str(text) else { return Vec::new() };
    let mut lines = unknown(&object, "", &ALL.split_whitespace().collect::<Vec<_>>());
    let Some(Value::Object(backend)) = gojson::get(&object, "Backend") else { return lines };
    let kind = gojson::get(backend, "Type").and_then(Value::as_str).unwrap_or_default();
    if let Some((_, keys)) = KEYS.iter().find(|(name, _)| name.eq_ignore_ascii_case(kind)) {
        let known: Vec<&str> = ["Type"].into_iter().chain(keys.split_whitespace()).collect();
        lines.extend(unknown(backend, "Backend.", &known));
    }
    lines
}

fn unknown(object: &Map<String, Value>, within: &str, known: &[&str]) -> Vec<String> {
    let is_known = |key: &str| known.iter().any(|known| known.eq_ignore_ascii_case(key));
    let others = object.keys().filter(|key| !is_known(key));
    let hint = |key: &str| match text::suggest(key, known.iter().copied()) {
        Some(meant) => format!("did you mean \"{within}{meant}\"?"),
        None => format!("those that are known are {}", known.join(", ")),
    };
    let line = |key: &String| format!("key \"{within}{key}\" is passed over: {}", hint(key));
    others.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_nobody_reads_are_told_with_what_was_meant() {
        let text = r#"{"network": "10.5.0.0/16", "SubnetLegn": 24,
            "Backend": {"Type": "UDP", "Prot": 4789, "PORT": 1, "VNI": 1}}"#;
        let wanted = [
            "key \"SubnetLegn\" is passed over: did you mean \"SubnetLen\"?",
            "key \"Backend.Prot\" is passed over: did you mean \"Backend.Port\"?",
            "key \"Backend.VNI\" is passed over: those that are known are Type, Port",
        ];
        assert_eq!(unknown_keys(text), wanted);
    }

    #[test]
    fn every_key_of_the_page_is_known() {
        let page = include_str!("../../../../docs/agent.md");
        let (_, table) =
            page.split_once("| `Type` | keys | packets go |\n|---|---|---|\n").unwrap();
        let mut rows = 0;
        for row in table.lines().take_while(|row| row.starts_with('|')) {
            let columns: Vec<&str> = row.split('|').collect();
            let words = |column: &str| -> Vec<String> {
                column.split('`').skip(1).step_by(2).map(str::to_owned).collect()
            };
            let keys = words(columns[2]).into_iter().map(|key| (key, Value::Null));
            let mut backend: Map<String, Value> = keys.collect();
            backend.insert("Type".to_owned(), words(columns[1])[0].clone().into());
            let text = serde_json::json!({"Backend": backend}).to_string();
            assert_eq!(unknown_keys(&text), Vec::<String>::new(), "{row}");
            rows += 1;
        }
        assert_eq!(rows, KEYS.len());
    }
}
