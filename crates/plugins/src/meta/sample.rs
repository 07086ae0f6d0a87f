// SPDX-License-Identifier: Apache-2.0
//! `sample`: the smallest chained plugin, as a template for new ones. It returns the previous
//! result.

use cni::{CniResult, Error, Plugin, Request, Version};
use serde::Deserialize;

use crate::attach::{ipam, prev_result};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "sample",
    about: "returns the previous result; a template for new plugins",
    versions: Version::ALL,
    add,
    del: |_| Ok(()),
    check,
    status,
    gc: |_| Ok(()),
};

/// The plugin's keys. Replace them by your own.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SampleConf {
    #[serde(default)]
    another_awesome_arg: String,
}

fn parse(request: &Request) -> Result<SampleConf, Error> {
    let conf: SampleConf = request.conf_or("failed to parse network configuration")?;
    if conf.another_awesome_arg.is_empty() {
        return Err(Error::invalid_config("anotherAwesomeArg must be specified"));
    }
    Ok(conf)
}

fn add(request: &Request) -> Result<CniResult, Error> {
    parse(request)?;
    let result = prev_result::required(request, "must be called as chained plugin")?;
    if result.ips.is_empty() {
        return Err(Error::internal("got no container IPs"));
    }
    Ok(result)
}

fn check(request: &Request) -> Result<(), Error> {
    parse(request)?;
    request.required_prev_result().map(drop)
}

fn status(request: &Request) -> Result<(), Error> {
    parse(request)?;
    ipam::status(request)
}
