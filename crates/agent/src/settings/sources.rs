// SPDX-License-Identifier: Apache-2.0
//! The command line, in the manner of Go's flags: one dash or two, `=` or the next word, and a switch
//! alone means true.

use super::table::{Kind, Spec};
use super::{Error, Told, Values};

/// What a command line says.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    Values(Values),
    Help,
    Version,
}

pub fn parse(args: &[String]) -> Result<Parsed, Error> {
    let mut values = Values::new();
    let mut rest = args.iter();
    while let Some(word) = rest.next() {
        let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            return Err(Error::new(format!("word {word:?}"), "no option takes it"));
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        match name {
            "h" | "help" => return Ok(Parsed::Help),
            "version" => return Ok(Parsed::Version),
            _ => {}
        }
        let place = format!("flag --{name}");
        let spec = known(&place, name)?;
        let value = match (value, spec.kind) {
            (Some(value), _) => value,
            (None, Kind::Switch) => "true".to_owned(),
            (None, _) => {
                rest.next().cloned().ok_or_else(|| Error::new(&place, "a value is missing"))?
            }
        };
        let told = values.entry(spec.name).or_insert(Told { place, words: Vec::new() });
        told.words.push(value);
    }
    Ok(Parsed::Values(values))
}

/// The option of this name, or an error with the one that looks most like it.
pub fn known(place: &str, name: &str) -> Result<&'static Spec, Error> {
    Spec::by_name(name).ok_or_else(|| {
        let meant = text::suggest(name, super::OPTIONS.iter().map(|spec| spec.name));
        let hint = meant.map(|meant| format!(": did you mean {meant}?")).unwrap_or_default();
        Error::new(place, format!("there is no such option{hint}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn value(text: &str, name: &str) -> Vec<String> {
        match parse(&words(text)).unwrap() {
            Parsed::Values(values) => {
                values.get(name).map(|told| told.words.clone()).unwrap_or_default()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_are_written_as_in_go() {
        assert_eq!(value("-iface eth0 --iface=eth1", "iface"), ["eth0", "eth1"]);
        assert_eq!(value("--ip-masq --v=2", "ip-masq"), ["true"]);
        assert_eq!(value("--ip-masq=false", "ip-masq"), ["false"]);
        assert_eq!(value("--public-ip=", "public-ip"), [""]);
    }

    #[test]
    fn help_and_version_come_first() {
        assert_eq!(parse(&words("--ip-masq -h --nonsense")).unwrap(), Parsed::Help);
        assert_eq!(parse(&words("--version")).unwrap(), Parsed::Version);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refused = |text: &str| parse(&words(text)).unwrap_err().to_string();
        assert_eq!(
            refused("--etcd-endpoint x"),
            "flag --etcd-endpoint: there is no such option: did you mean etcd-endpoints?"
        );
        assert_eq!(refused("--zzz"), "flag --zzz: there is no such option");
        assert_eq!(refused("--iface"), "flag --iface: a value is missing");
        assert_eq!(refused("eth0"), "word \"eth0\": no option takes it");
    }
}
