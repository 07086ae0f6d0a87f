// SPDX-License-Identifier: Apache-2.0
//! Converts a list of standard plugins to a list with `podwire`. Pure functions.

use cni::Error;
use serde_json::{Map, Value, json};

use super::PLUGIN;

/// Replaces each run of plugins that this program has by one plugin `podwire`. Returns the list and
/// the number of replaced plugins. Other plugins keep their position.
pub fn convert(mut list: Value, known: &[&str]) -> Result<(Value, usize), Error> {
    let Some(Value::Array(plugins)) = list.get_mut("plugins") else {
        return Err(Error::invalid_config("key \"plugins\" is missing: not a network list"));
    };
    let mut converted: Vec<Value> = Vec::new();
    let mut count = 0;
    for plugin in std::mem::take(plugins) {
        if plugin["type"] == PLUGIN.name {
            converted.push(plugin);
            continue;
        }
        let is_known = plugin["type"].as_str().is_some_and(|kind| known.contains(&kind));
        if !is_known {
            converted.push(plugin);
            continue;
        }
        count += 1;
        match converted.last_mut().filter(|last| last["type"] == PLUGIN.name) {
            Some(last) => append(last, plugin),
            None => {
                let mut first = json!({"type": PLUGIN.name, "plugins": []});
                append(&mut first, plugin);
                converted.push(first);
            }
        }
    }
    *plugins = converted;
    Ok((list, count))
}

/// The combined plugin needs the capabilities of all its plugins.
fn append(combined: &mut Value, plugin: Value) {
    if let Some(Value::Object(flags)) = plugin.get("capabilities") {
        let enabled = flags.iter().filter(|(_, flag)| **flag == Value::Bool(true));
        for (name, flag) in enabled {
            if !combined["capabilities"].is_object() {
                combined["capabilities"] = Value::Object(Map::new());
            }
            combined["capabilities"][name] = flag.clone();
        }
    }
    if let Some(Value::Array(plugins)) = combined.get_mut("plugins") {
        plugins.push(plugin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[&str] = &["bridge", "portmap", "tuning", "podwire"];

    fn list(plugins: &Value) -> Value {
        json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins})
    }

    fn check(from: &Value, to: &Value, count: usize) {
        assert_eq!(convert(list(from), KNOWN).unwrap(), (list(to), count), "{from}");
    }

    #[test]
    fn runs_of_known_plugins_are_combined() {
        let bridge = json!({"type": "bridge", "ipam": {"type": "host-local"}});
        let portmap =
            json!({"type": "portmap", "capabilities": {"portMappings": true, "x": false}});
        let foreign = json!({"type": "cilium-cni"});
        check(
            &json!([bridge, portmap]),
            &json!([{"type": "podwire", "capabilities": {"portMappings": true}, "plugins": [bridge, portmap]}]),
            2,
        );
        check(
            &json!([bridge, foreign, portmap]),
            &json!([
                {"type": "podwire", "plugins": [bridge]},
                foreign,
                {"type": "podwire", "capabilities": {"portMappings": true}, "plugins": [portmap]},
            ]),
            2,
        );
        let combined = json!([{"type": "podwire", "plugins": [bridge]}]);
        check(&combined, &combined, 0);
        check(&json!([foreign]), &json!([foreign]), 0);
    }

    #[test]
    fn plugin_without_list_is_refused() {
        assert!(convert(json!({"type": "bridge"}), KNOWN).is_err());
    }
}
