// SPDX-License-Identifier: Apache-2.0
//! `attach DIR NETWORK NETNS`: attaches a namespace to a network of a configuration directory,
//! prints its addresses, and detaches it. Plugins are searched in CNI_PATH.

use std::env;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cni::runtime::{Container, Runtime, conf_dir};
use cni::{Error, Host};

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let [dir, network, netns] = words.as_slice() else {
        eprintln!("usage: attach DIR NETWORK NETNS");
        return ExitCode::FAILURE;
    };
    let path = env::var("CNI_PATH").unwrap_or_else(|_| "/opt/cni/bin".to_owned());
    match attach(Path::new(dir), network, netns, path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error {}: {error}", error.code.0);
            ExitCode::FAILURE
        }
    }
}

fn attach(dir: &Path, network: &str, netns: &str, path: String) -> Result<(), Error> {
    // A runtime with built-in plugins lists them here.
    let host = Host::of_this_program(&[]);
    let mut runtime = Runtime::new(&host, path);
    runtime.timeout = Some(Duration::from_secs(30));

    let list = conf_dir::load(dir, network)?;
    runtime.validate(&list)?;
    runtime.status(&list)?;

    let container = Container {
        id: "example".to_owned(),
        netns: netns.to_owned(),
        ifname: "eth0".to_owned(),
        ..Container::default()
    };
    let result = runtime.add(&list, &container)?;
    for ip in &result.ips {
        println!("{}", ip.address);
    }
    let checked = runtime.check(&list, &container);
    runtime.del(&list, &container)?;
    checked
}
