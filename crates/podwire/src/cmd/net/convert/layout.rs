// SPDX-License-Identifier: Apache-2.0
//! Formats JSON in the style of hand-written files: keys keep their order, short values stay on one
//! line.

use serde_json::Value;

/// Maximum length of a line, unless a single value is longer.
const WIDTH: usize = 90;

/// Formats a network. Keys are ordered by their first occurrence in the original.
pub(crate) fn network(value: &Value, original: &str) -> String {
    format!("{}\n", Layout { original }.block(value, 0))
}

/// Members of an object with their keys, or items of an array with empty keys.
type Parts<'v> = Vec<(String, &'v Value)>;

struct Layout<'a> {
    original: &'a str,
}

impl Layout<'_> {
    fn format(&self, value: &Value, indent: usize) -> String {
        let line = self.line(value);
        if indent + line.len() <= WIDTH { line } else { self.block(value, indent) }
    }

    fn block(&self, value: &Value, indent: usize) -> String {
        let Some((open, parts, close)) = self.parts(value) else { return value.to_string() };
        let (inner, outer) = (" ".repeat(indent + 2), " ".repeat(indent));
        let parts: Vec<String> = parts
            .into_iter()
            .map(|(key, value)| format!("{inner}{key}{}", self.format(value, indent + 2)))
            .collect();
        format!("{open}\n{}\n{outer}{close}", parts.join(",\n"))
    }

    fn line(&self, value: &Value) -> String {
        let Some((open, parts, close)) = self.parts(value) else { return value.to_string() };
        let parts: Vec<String> =
            parts.into_iter().map(|(key, value)| format!("{key}{}", self.line(value))).collect();
        format!("{open} {} {close}", parts.join(", "))
    }

    /// Members of an object or items of an array; `None` for other values and empty ones.
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

    /// Sorts the keys that identify a network or a plugin first, and its plugins last.
    fn rank(&self, key: &str) -> usize {
        let heads = ["cniVersion", "name", "type"];
        match heads.iter().position(|head| *head == key) {
            Some(at) => at,
            None if key == "plugins" => usize::MAX,
            None => heads.len() + self.position(key).unwrap_or(0),
        }
    }

    /// Position of the key in the original. A value with the same text does not count.
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
    fn keys_keep_order_and_short_values_one_line() {
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
    fn formatted_json_parses_to_the_same_value() {
        let value = json!({"a\"b": ["\u{1}ü\\", {}, [], null, 1.5], "c": {"d": "x".repeat(200)}});
        assert_eq!(serde_json::from_str::<Value>(&network(&value, "")).unwrap(), value);
    }
}
