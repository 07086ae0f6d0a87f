// SPDX-License-Identifier: Apache-2.0
//! The requested MAC address of the container's interface.

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

/// A source of the requested address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// `runtimeConfig.mac`, the capability `mac`.
    RuntimeConfig,
    /// `args.cni.mac` of the configuration.
    Args,
    /// `MAC` in CNI_ARGS.
    Environment,
    /// `mac` of the configuration.
    Conf,
}

/// The address from the first of these sources that has one. If CNI_ARGS is a source, it must
/// contain no unknown key.
pub(crate) fn requested(request: &Request, sources: &[Source]) -> Result<Option<MacAddr>, Error> {
    let conf: Conf = request.conf()?;
    let mut requested = None;
    for source in sources.iter().rev() {
        let (key, code, value) = match source {
            Source::RuntimeConfig => {
                ("key \"runtimeConfig.mac\"", Code::INVALID_CONFIG, conf.runtime_config.mac.clone())
            }
            Source::Args => {
                ("key \"args.cni.mac\"", Code::INVALID_CONFIG, conf.args.cni.mac.clone())
            }
            Source::Conf => ("key \"mac\"", Code::INVALID_CONFIG, conf.mac.clone()),
            Source::Environment => ("MAC in CNI_ARGS", Code::BAD_ENVIRONMENT, from_env(request)?),
        };
        requested = value.map(|text| (key, code, text)).or(requested);
    }
    let Some((key, code, text)) = requested else { return Ok(None) };
    let wrong = format!("invalid args {text} for MAC addr");
    let mac: MacAddr = text.parse().map_err(|cause| {
        Error::because(code, &wrong, &cause).with_details(format!("{key} is {text:?}"))
    })?;
    if !mac.is_unicast() {
        let details = format!("{key} is {text:?}, a unicast address is required");
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
