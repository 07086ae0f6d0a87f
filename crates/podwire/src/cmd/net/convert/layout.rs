// SPDX-License-Identifier: Apache-2.0
//! JSON as people write it: keys in their order, and on one line what fits there.

use serde_json::Value;

/// The longest line, unless a single value is longer.
const WIDTH: usize = 90;

/// Lays a network out. Keys keep the order in which the original first names them.
pub fn network(value: &Value, original: &str) -> String {
    format!("{}\n", Layout { original }.block(value, 0))
}

/// Members with their keys, or items without.
type Parts<'v> = Vec<(String, &'v Value)>;

struct Layout<'a> {
    original: &'a str,
}

impl Layout<'_> {
    fn shown(&self, value: &Value, indent: usize) -> String {
        let line = self.line(value);
        if indent + line.len() <= WIDTH { line } else { self.block(value, indent) }
    }

    fn block(&self, value: &Value, indent: usize) -> String {
        let Some((open, parts, close)) = self.parts(value) else { return value.to_string() };
        let (inner, outer) = (" ".repeat(indent + 2), " ".repeat(indent));
        let parts: Vec<String> = parts
            .into_iter()
            .map(|(key, value)| format!("{inner}{key}{}", self.shown(value, indent + 2)))
            .collect();
        format!("{open}\n{}\n{outer}{close}", parts.join(",\n"))
    }

    fn line(&self, value: &Value) -> String {
        let Some((open, parts, close)) = self.parts(value) else { return value.to_string() };
        let parts: Vec<String> =
            parts.into_iter().map(|(key, value)| format!("{key}{}", self.line(value))).collect();
        format!("{open} {} {close}", parts.join(", "))
    }

    /// What an object or a list consists of; `None` for what is one piece.
    fn parts<'v>(&self, value: &'v Value) -> Option<(char, Parts<'v>, char)> {
        match value {
            Value::Object(object) if !object.is_empty() => {
                let mut members: Vec<(&String, &Value)> = object.iter().collect();
                members.sort_by_key(|(key, _)| self.rank(key));
                let named = members
                    .into_iter()
                    .map(|(key, value)| (format!("{}: ", json_text(key)), value));
                Some(('{', named.collect(), '}'))
            }
            Value::Array(items) if !items.is_empty() => {
                Some(('[', items.iter().map(|item| (String::new(), item)).collect(), ']'))
            }
            _ => None,
        }
    }

    /// What a network or a plugin is comes first, and the plugins in it last.
    fn rank(&self, key: &str) -> usize {
        let heads = ["cniVersion", "name", "type"];
        match heads.iter().position(|head| *head == key) {
            Some(at) => at,
            None if key == "plugins" => usize::MAX,
            None => heads.len() + self.position(key).unwrap_or(0),
        }
    }

    /// Where the original first has the key. The same text may stand there as a value.
    fn position(&self, key: &str) -> Option<usize> {
        let quoted = json_text(key);
        let is_key = |at: usize| self.original[at + quoted.len()..].trim_start().starts_with(':');
        self.original.match_indices(&quoted).map(|(at, _)| at).find(|at| is_key(*at))
    }
}

fn json_text(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_keep_their_order_and_short_things_a_line() {
        let original = r#"{"name": "n", "cniVersion": "1.0.0", "plugins": [{"type": "bridge",
            "isGateway": true, "bridge": "b0", "ipam": {"type": "host-local", "ranges": []}}]}"#;
        let inner = json!({"type": "bridge", "bridge": "b0", "isGateway": true,
            "ipam": {"ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]],
                "type": "host-local"}});
        let value = json!({"cniVersion": "1.0.0", "name": "n",
            "plugins": [{"plugins": [inner], "type": "podwire"}]});
        let expected = "\
{
  \"cniVersion\": \"1.0.0\",
  \"name\": \"n\",
  \"plugins\": [
    {
      \"type\": \"podwire\",
      \"plugins\": [
        {
          \"type\": \"bridge\",
          \"isGateway\": true,
          \"bridge\": \"b0\",
          \"ipam\": {
            \"type\": \"host-local\",
            \"ranges\": [ [ { \"subnet\": \"10.88.0.0/24\" } ], [ { \"subnet\": \"fd00:88::/64\" } ] ]
          }
        }
      ]
    }
  ]
}
";
        let text = network(&value, original);
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn it_reads_as_what_it_was() {
        let value = json!({"a\"b": ["\u{1}ü\\", {}, [], null, 1.5], "c": {"d": "x".repeat(200)}});
        assert_eq!(serde_json::from_str::<Value>(&network(&value, "")).unwrap(), value);
    }
}
