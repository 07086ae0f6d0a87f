// SPDX-License-Identifier: Apache-2.0
//! The hardware address that a container's interface should have, from all the places that can ask for
//! one.

use cni::{Code, Error, Request};
use kernel::MacAddr;
use serde::Deserialize;

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    mac: Option<String>,
    args: ArgsConf,
    runtime_config: MacConf,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct ArgsConf {
    cni: MacConf,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct MacConf {
    mac: Option<String>,
}

/// A place that can ask, in the words of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The capability `mac`: the runtime's own word.
    RuntimeConfig,
    /// `args.cni.mac` of the configuration.
    Args,
    /// `MAC` in CNI_ARGS.
    Environment,
    /// `mac` of the configuration.
    Conf,
}

/// The address by the first of these sources that names one. CNI_ARGS is read only where it is among
/// them, and then must hold nothing that is unknown.
pub fn wanted(request: &Request, sources: &[Source]) -> Result<Option<MacAddr>, Error> {
    let conf: Conf = request.conf()?;
    let mut found = None;
    for source in sources.iter().rev() {
        let (key, code, stated) = match source {
            Source::RuntimeConfig => {
                ("key \"runtimeConfig.mac\"", Code::INVALID_CONFIG, conf.runtime_config.mac.clone())
            }
            Source::Args => {
                ("key \"args.cni.mac\"", Code::INVALID_CONFIG, conf.args.cni.mac.clone())
            }
            Source::Conf => ("key \"mac\"", Code::INVALID_CONFIG, conf.mac.clone()),
            Source::Environment => ("MAC in CNI_ARGS", Code::BAD_ENVIRONMENT, from_env(request)?),
        };
        found = stated.map(|text| (key, code, text)).or(found);
    }
    let Some((key, code, text)) = found else { return Ok(None) };
    let wrong = format!("invalid args {text} for MAC addr");
    let mac: MacAddr = text.parse().map_err(|cause| {
        Error::because(code, &wrong, &cause).with_details(format!("{key} is {text:?}"))
    })?;
    if !mac.is_unicast() {
        let details =
            format!("{key} is {text:?}, allowed are addresses that are not a group's or zero");
        return Err(Error::new(code, wrong).with_details(details));
    }
    Ok(Some(mac))
}

fn from_env(request: &Request) -> Result<Option<String>, Error> {
    if request.raw_args.is_empty() {
        return Ok(None);
    }
    let args = request.args()?;
    args.allow_only(&["MAC"])?;
    Ok(args.get("MAC").filter(|mac| !mac.is_empty()).map(str::to_owned))
}
