// SPDX-License-Identifier: Apache-2.0
//! From a list of standard plugins to one of `podwire`. Pure.

use cni::Error;
use serde_json::{Map, Value, json};

use super::PLUGIN;

/// A list in which every run of plugins that this program holds has become one plugin `podwire`, and
/// how many they were. Plugins of others stay in their place.
pub fn convert(mut list: Value, held: &[&str]) -> Result<(Value, usize), Error> {
    let Some(Value::Array(plugins)) = list.get_mut("plugins") else {
        return Err(Error::invalid_config("key \"plugins\" is missing: it is no network list"));
    };
    let mut converted: Vec<Value> = Vec::new();
    let mut count = 0;
    for plugin in std::mem::take(plugins) {
        if plugin["type"] == PLUGIN.name {
            converted.push(plugin);
            continue;
        }
        let is_held = plugin["type"].as_str().is_some_and(|kind| held.contains(&kind));
        if !is_held {
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

/// The whole needs every capability that one of its plugins has.
fn append(whole: &mut Value, plugin: Value) {
    if let Some(Value::Object(flags)) = plugin.get("capabilities") {
        let enabled = flags.iter().filter(|(_, flag)| **flag == Value::Bool(true));
        for (name, flag) in enabled {
            if !whole["capabilities"].is_object() {
                whole["capabilities"] = Value::Object(Map::new());
            }
            whole["capabilities"][name] = flag.clone();
        }
    }
    if let Some(Value::Array(plugins)) = whole.get_mut("plugins") {
        plugins.push(plugin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: &[&str] = &["bridge", "portmap", "tuning", "podwire"];

    fn list(plugins: &Value) -> Value {
        json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins})
    }

    fn check(from: &Value, to: &Value, count: usize) {
        assert_eq!(convert(list(from), HELD).unwrap(), (list(to), count), "{from}");
    }

    #[test]
    fn runs_of_our_plugins_become_one() {
        let bridge = json!({"type": "bridge", "ipam": {"type": "host-local"}});
        let portmap =
            json!({"type": "portmap", "capabilities": {"portMappings": true, "x": false}});
        let foreign = json!({"type": "calico"});
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
        let whole = json!([{"type": "podwire", "plugins": [bridge]}]);
        check(&whole, &whole, 0);
        check(&json!([foreign]), &json!([foreign]), 0);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        assert!(convert(json!({"type": "bridge"}), HELD).is_err());
    }
}
