// SPDX-License-Identifier: Apache-2.0
//! `hello`: a chained plugin that adds a search domain to the result.

use std::io::{self, Write};
use std::process::ExitCode;

use cni::plugin::{self, Env};
use cni::{CniResult, Error, Host, Plugin, Request, Version};
use serde::Deserialize;

const HELLO: Plugin = Plugin {
    name: "hello",
    about: "adds a search domain to the result",
    versions: Version::ALL,
    add,
    del: |_| Ok(()),
    check,
    status: |request| parse(request).map(drop),
    gc: |_| Ok(()),
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct HelloConf {
    search_domain: String,
}

fn parse(request: &Request) -> Result<String, Error> {
    let conf: HelloConf = request.conf()?;
    if conf.search_domain.is_empty() {
        return Err(Error::invalid_config("key \"searchDomain\" must be set"));
    }
    Ok(conf.search_domain)
}

fn add(request: &Request) -> Result<CniResult, Error> {
    let domain = parse(request)?;
    let mut result = request.required_prev_result()?;
    result.dns.search.push(domain);
    Ok(result)
}

fn check(request: &Request) -> Result<(), Error> {
    let domain = parse(request)?;
    let result = request.required_prev_result()?;
    match result.dns.search.contains(&domain) {
        true => Ok(()),
        false => Err(Error::internal(format!("search domain {domain:?} is not in the result"))),
    }
}

fn main() -> ExitCode {
    let host = Host::of_this_program(&[&HELLO]);
    let env = Env::read(|name| std::env::var(name).ok());
    let reply = plugin::answer(&HELLO, &env, &mut io::stdin().lock(), &host);
    let printed = io::stdout().write_all(&reply.stdout);
    let explained = io::stderr().write_all(&reply.stderr);
    match reply.success && printed.is_ok() && explained.is_ok() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
