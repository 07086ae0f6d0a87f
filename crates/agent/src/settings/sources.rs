// SPDX-License-Identifier: Apache-2.0
//! The sources of options. Flags follow the rules of Go's `flag` package: one dash or two, the value after `=` or as
//! the next argument, and a switch without a value is true. The file is TOML with option names as keys.

use toml::{Table, Value};

use super::Error;
use super::table::{Kind, OPTIONS, Spec};
use super::values::{RawValue, RawValues};

/// A command line, split into options.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CommandLine {
    Values(RawValues),
    Help,
    Version,
}

pub(super) fn parse_flags(args: &[String]) -> Result<CommandLine, Error> {
    let mut values = RawValues::default();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let Some(flag) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
            return Err(Error::new(
                format!("argument {arg:?}"),
                "unexpected, options begin with --",
            ));
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        match name {
            "h" | "help" => return Ok(CommandLine::Help),
            "version" => return Ok(CommandLine::Version),
            _ => {}
        }
        let place = format!("flag --{name}");
        let spec = find_option(&place, name)?;
        let value = match (value, spec.kind) {
            (Some(value), _) => value,
            (None, Kind::Switch) => "true".to_owned(),
            (None, _) => rest.next().cloned().ok_or_else(|| Error::new(&place, "missing value"))?,
        };
        values.push(spec.name, place, value);
    }
    Ok(CommandLine::Values(values))
}

/// Adds the environment variables of options that have no flag.
pub(super) fn add_variables(values: &mut RawValues, var: impl Fn(&str) -> Option<String>) {
    for spec in OPTIONS {
        for name in spec.variables() {
            if let Some(text) = var(&name) {
                let place = format!("variable {name}");
                values.set_default(spec.name, RawValue { place, texts: vec![text] });
            }
        }
    }
}

/// Parses a TOML file. `path` is for errors.
pub(super) fn parse_file(path: &str, text: &str) -> Result<RawValues, Error> {
    let table: Table = text.parse().map_err(|cause: toml::de::Error| {
        let line = cause.span().map_or(1, |span| text[..span.start].lines().count().max(1));
        Error::new(format!("{path}, line {line}"), cause.message())
    })?;
    let mut values = RawValues::default();
    for (key, value) in table {
        let place = format!("key {key:?} of {path}");
        let spec = find_option(&place, &key)?;
        let texts = match value {
            Value::Array(items) => {
                items.into_iter().map(|item| text_of(&place, item)).collect::<Result<_, _>>()?
            }
            one => vec![text_of(&place, one)?],
        };
        values.set_default(spec.name, RawValue { place, texts });
    }
    Ok(values)
}

fn text_of(place: &str, value: Value) -> Result<String, Error> {
    match value {
        Value::String(text) => Ok(text),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Boolean(flag) => Ok(flag.to_string()),
        other => {
            let kind = other.type_str();
            let problem = format!("unexpected {kind}, expected a string, integer or boolean");
            Err(Error::new(place, problem))
        }
    }
}

/// Returns the option of this name. The error suggests the most similar name.
fn find_option(place: &str, name: &str) -> Result<&'static Spec, Error> {
    Spec::by_name(name).ok_or_else(|| {
        let similar = text::suggest(name, OPTIONS.iter().map(|spec| spec.name));
        let hint = similar.map(|name| format!(" (did you mean {name}?)")).unwrap_or_default();
        Error::new(place, format!("unknown option{hint}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn flag_values(text: &str, name: &str) -> Vec<String> {
        match parse_flags(&args(text)).unwrap() {
            CommandLine::Values(values) => {
                values.get(name).map(|value| value.texts.clone()).unwrap_or_default()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_in_every_go_form_are_accepted() {
        assert_eq!(flag_values("-iface eth0 --iface=eth1", "iface"), ["eth0", "eth1"]);
        assert_eq!(flag_values("--ip-masq --v=2", "ip-masq"), ["true"]);
        assert_eq!(flag_values("--ip-masq=false", "ip-masq"), ["false"]);
        assert_eq!(flag_values("--public-ip=", "public-ip"), [""]);
    }

    #[test]
    fn help_and_version_flags_take_precedence() {
        assert_eq!(parse_flags(&args("--ip-masq -h --nonsense")).unwrap(), CommandLine::Help);
        assert_eq!(parse_flags(&args("--version")).unwrap(), CommandLine::Version);
    }

    #[test]
    fn flag_that_is_invalid_is_named() {
        let error = |text: &str| parse_flags(&args(text)).unwrap_err().to_string();
        assert_eq!(
            error("--etcd-endpoint x"),
            "flag --etcd-endpoint: unknown option (did you mean etcd-endpoints?)"
        );
        assert_eq!(error("--zzz"), "flag --zzz: unknown option");
        assert_eq!(error("--iface"), "flag --iface: missing value");
        assert_eq!(error("eth0"), "argument \"eth0\": unexpected, options begin with --");
    }

    #[test]
    fn file_keys_are_option_names() {
        let text = "iface = [\"eth0\", \"eth1\"]\nip-masq = true\nhealthz-port = 8081\n";
        let values = parse_file("a.toml", text).unwrap();
        let texts = |name: &str| &values.get(name).unwrap().texts;
        assert_eq!(*texts("iface"), ["eth0", "eth1"]);
        assert_eq!(*texts("ip-masq"), ["true"]);
        assert_eq!(*texts("healthz-port"), ["8081"]);
    }

    #[test]
    fn file_key_that_is_invalid_is_named() {
        let error = |text: &str| parse_file("a.toml", text).unwrap_err().to_string();
        assert!(error("ip-masq = true\nx =\n").starts_with("a.toml, line 2: "));
        assert_eq!(
            error("ifaces = \"eth0\""),
            "key \"ifaces\" of a.toml: unknown option (did you mean iface?)"
        );
        assert_eq!(
            error("v = 1.5"),
            "key \"v\" of a.toml: unexpected float, expected a string, integer or boolean"
        );
    }
}
