// SPDX-License-Identifier: Apache-2.0
//! The file: TOML, with the options' names as keys.

use toml::{Table, Value};

use super::{Error, Told, Values, flags};

/// Reads it; `path` is for errors.
pub fn parse(path: &str, text: &str) -> Result<Values, Error> {
    let table: Table = text.parse().map_err(|cause: toml::de::Error| {
        let line = cause.span().map_or(1, |span| text[..span.start].lines().count().max(1));
        Error::new(format!("{path}, line {line}"), cause.message())
    })?;
    let mut values = Values::new();
    for (key, value) in table {
        let place = format!("key {key:?} of {path}");
        let spec = flags::known(&place, &key)?;
        let words = match value {
            Value::Array(items) => {
                items.into_iter().map(|item| word(&place, item)).collect::<Result<_, _>>()?
            }
            one => vec![word(&place, one)?],
        };
        values.insert(spec.name, Told { place, words });
    }
    Ok(values)
}

fn word(place: &str, value: Value) -> Result<String, Error> {
    match value {
        Value::String(text) => Ok(text),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Boolean(flag) => Ok(flag.to_string()),
        other => {
            let kind = other.type_str();
            let problem = format!("is a {kind}, allowed are texts, whole numbers, true and false");
            Err(Error::new(place, problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_options_names() {
        let text = "iface = [\"eth0\", \"eth1\"]\nip-masq = true\nhealthz-port = 8081\n";
        let values = parse("a.toml", text).unwrap();
        assert_eq!(values["iface"].words, ["eth0", "eth1"]);
        assert_eq!(values["ip-masq"].words, ["true"]);
        assert_eq!(values["healthz-port"].words, ["8081"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refused = |text: &str| parse("a.toml", text).unwrap_err().to_string();
        assert!(refused("ip-masq = true\nx =\n").starts_with("a.toml, line 2: "));
        assert_eq!(
            refused("ifaces = \"eth0\""),
            "key \"ifaces\" of a.toml: there is no such option: did you mean iface?"
        );
        assert_eq!(
            refused("v = 1.5"),
            "key \"v\" of a.toml: is a float, allowed are texts, whole numbers, true and false"
        );
    }
}
