// SPDX-License-Identifier: Apache-2.0
//! The flags of Calico's programs, which its installer uses: `-v` prints the version, `-t` tests the
//! connection to the daemon of this node.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use cni::plugin::Reply;
use cni::{Code, Error, Plugin, Version};
use serde_json::{Map, Value};

use super::keys::Keys;
use crate::ipam::calico_ipam::{self, Agent};

/// Exit status of Go programs for an unknown flag.
const USAGE: u8 = 2;

/// Runs a program that was started with flags.
pub fn command_line(plugin: &Plugin, args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let args: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    let name = plugin.name;
    let (text, code) = match args[..] {
        ["-v" | "--v"] => (concat!(env!("CARGO_PKG_VERSION"), "\n").into(), ExitCode::SUCCESS),
        ["-t" | "--t"] if name == super::PLUGIN.name => match test_connection() {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => (Reply::failure(&error, Version::LATEST).stdout, ExitCode::FAILURE),
        },
        _ => {
            let test = if name == super::PLUGIN.name { " | -t" } else { "" };
            let text =
                format!("error: unknown flags {}\nusage: {name} [-v{test}]\n", args.join(" "));
            let _ = io::stderr().write_all(text.as_bytes());
            return ExitCode::from(USAGE);
        }
    };
    match io::stdout().write_all(&text) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Reads the configuration from standard input and asks the node agent whether it is ready.
fn test_connection() -> Result<(), Error> {
    let failed =
        |why: String| Error::new(Code(100), "data store connection failed").with_details(why);
    let mut text = Vec::new();
    io::stdin().read_to_end(&mut text).map_err(|cause| failed(cause.to_string()))?;
    let config: Map<String, Value> = serde_json::from_slice(&text)
        .map_err(|cause| failed(format!("failed to load netconf: {cause}")))?;
    let keys = Keys::new(&config);
    let kind: String = keys.get("ipam.type")?;
    let agent = Agent::of(&keys)?;
    let tested = agent.require_ready(kind == calico_ipam::PLUGIN.name);
    tested.map_err(|error| failed(error.to_string()))
}
