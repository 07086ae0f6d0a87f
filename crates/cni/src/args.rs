// SPDX-License-Identifier: Apache-2.0
//! CNI_ARGS: extra arguments from the runtime, as `KEY=VALUE;KEY=VALUE` in the environment.

use text::shorten_value;

use crate::error::{Code, Error};

/// The pairs of CNI_ARGS in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Args(Vec<(String, String)>);

impl Args {
    /// Parses CNI_ARGS. Each pair must contain exactly one `=`.
    pub fn parse(text: &str) -> Result<Args, Error> {
        if text.is_empty() {
            return Ok(Args::default());
        }
        let pair = |pair: &str| match pair.split('=').collect::<Vec<_>>()[..] {
            [key, value] => Ok((key.to_owned(), value.to_owned())),
            _ => Err(Error::new(
                Code::BAD_ENVIRONMENT,
                format!("ARGS: invalid pair {:?}", shorten_value(pair)),
            )
            .with_details("CNI_ARGS takes KEY=VALUE pairs with ';' between them")),
        };
        text.split(';').map(pair).collect::<Result<_, _>>().map(Args)
    }

    /// Returns the value of a key, which is case-sensitive. If a key is repeated, the last value wins.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().rfind(|(other, _)| other == key).map(|(_, value)| value.as_str())
    }

    /// Returns an error if there is a key that is not in `known`, unless `IgnoreUnknown` is set.
    pub fn allow_only(&self, known: &[&str]) -> Result<(), Error> {
        if self.ignores_unknown()? {
            return Ok(());
        }
        let unknown: Vec<String> = self
            .0
            .iter()
            .filter(|(key, _)| key != "IgnoreUnknown" && !known.contains(&&**key))
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let msg = shorten_value(format_args!("ARGS: unknown args {unknown:?}"));
        Err(Error::new(Code::BAD_ENVIRONMENT, msg)
            .with_details("add IgnoreUnknown=1 to CNI_ARGS to ignore them"))
    }

    fn ignores_unknown(&self) -> Result<bool, Error> {
        match self.get("IgnoreUnknown").map(str::to_ascii_lowercase).as_deref() {
            None | Some("0" | "false") => Ok(false),
            Some("1" | "true") => Ok(true),
            Some(other) => {
                let value = shorten_value(other);
                let msg = format!("ARGS: IgnoreUnknown is {value:?}, expected 1, true, 0 or false");
                Err(Error::new(Code::BAD_ENVIRONMENT, msg))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn args_with_pairs_are_parsed() {
        let args = Args::parse("IP=10.0.0.5;MAC=aa:bb:cc:dd:ee:ff;empty=").expect("pairs");
        assert_eq!(args.get("IP"), Some("10.0.0.5"));
        assert_eq!(args.get("empty"), Some(""));
        assert_eq!(args.get("ip"), None);
        assert_eq!(Args::parse("").expect("nothing"), Args::default());
    }

    #[test]
    fn args_with_malformed_pair_are_rejected() {
        for bad in ["IP", "IP=1;", ";", "A=b=c"] {
            let error = Args::parse(bad).expect_err(bad);
            assert_eq!(error.code, Code::BAD_ENVIRONMENT, "{bad}");
        }
    }

    #[test]
    fn args_with_unknown_key_need_ignore_unknown() {
        let check = |text: &str| Args::parse(text).and_then(|args| args.allow_only(&["IP"]));
        assert!(check("IP=1").is_ok());
        assert!(check("IP=1;K8S_POD_NAME=a").is_err());
        assert!(check("IgnoreUnknown=TRUE;K8S_POD_NAME=a").is_ok());
        assert!(check("IgnoreUnknown=0;K8S_POD_NAME=a").is_err());
        assert!(check("IgnoreUnknown=maybe").is_err());
    }
}
