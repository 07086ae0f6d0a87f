// SPDX-License-Identifier: Apache-2.0
//! Reports unknown keys of the network configuration. Such keys are ignored, as in flannel, but may be
//! typing errors.

use serde_json::{Map, Value};

use crate::backend::KEYS;

/// Keys of the file itself.
const FILE_KEYS: &str = "Network SubnetLen SubnetMin SubnetMax EnableIPv4 EnableIPv6 EnableNFTables \
    IPv6Network IPv6SubnetLen IPv6SubnetMin IPv6SubnetMax Backend";

/// Returns a message for each unknown key of a file.
pub fn unknown_keys(text: &str) -> Vec<String> {
    let Ok(Value::Object(object)) = serde_json::from_str(text) else { return Vec::new() };
    let mut lines = unknown(&object, "", &FILE_KEYS.split_whitespace().collect::<Vec<_>>());
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
        Some(similar) => format!("did you mean \"{within}{similar}\"?"),
        None => format!("known keys are {}", known.join(", ")),
    };
    let line = |key: &String| format!("unknown key \"{within}{key}\" is ignored: {}", hint(key));
    others.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_reported_with_a_hint() {
        let text = r#"{"network": "10.5.0.0/16", "SubnetLegn": 24,
            "Backend": {"Type": "UDP", "Prot": 4789, "PORT": 1, "VNI": 1}}"#;
        let expected = [
            "unknown key \"SubnetLegn\" is ignored: did you mean \"SubnetLen\"?",
            "unknown key \"Backend.Prot\" is ignored: did you mean \"Backend.Port\"?",
            "unknown key \"Backend.VNI\" is ignored: known keys are Type, Port",
        ];
        assert_eq!(unknown_keys(text), expected);
    }

    #[test]
    fn keys_in_the_documentation_are_known() {
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
