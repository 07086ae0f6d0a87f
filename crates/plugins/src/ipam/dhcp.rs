// SPDX-License-Identifier: Apache-2.0
//! `dhcp`: addresses from the DHCP servers of the container's network. A daemon, `dhcp daemon`, acquires and renews the
//! leases. The plugin sends it requests.

mod conf;
pub mod daemon;
mod domain_names;
mod exchange;
mod lease;
mod protocol;
mod state_machine;
mod v4;
mod v6;

use std::path::Path;
use std::time::Duration;

use agent_client::ClientError;
use cni::{CniResult, Code, Error, Plugin, Request, Version};

use self::conf::Dhcp;
use self::protocol::{AddRequest, AttachmentKey, CheckRequest, DaemonRequest, Location};

pub const PLUGIN: Plugin = Plugin {
    name: "dhcp",
    about: "assigns addresses from the DHCP servers of the network, through a daemon",
    versions: Version::ALL,
    add,
    del,
    check,
    status,
    gc,
};

/// Time limit for ADD. Longer than the daemon's own limit, so that the daemon reports the reason.
const ADD_TIMEOUT: Duration = Duration::from_secs(600);
/// Time limit for other commands. The daemon replies at once or waits for a server for less than this.
const TIMEOUT: Duration = Duration::from_secs(5);

fn add(request: &Request) -> Result<CniResult, Error> {
    let dhcp = Dhcp::parse(request)?;
    let request = AddRequest { location: location(request)?, options: dhcp.options };
    let request = DaemonRequest::Add(Box::new(request));
    let result = protocol::ask(&dhcp.socket, &request, ADD_TIMEOUT)
        .map_err(|cause| protocol::no_daemon(Code::TRY_LATER, &dhcp.socket, &cause))??;
    CniResult::parse(result.unwrap_or_default(), Version::LATEST)
}

/// If no daemon runs, the plugin releases the lease itself as far as possible. A missing daemon must not fail DEL.
fn del(request: &Request) -> Result<(), Error> {
    let socket = Dhcp::socket(request)?;
    let location = location(request)?;
    match protocol::ask(&socket, &DaemonRequest::Del(location.clone()), TIMEOUT) {
        Ok(answer) => answer.map(drop),
        Err(ClientError::Connect(_)) => {
            daemon::release_without(&location.key);
            Ok(())
        }
        Err(ClientError::NoAnswer(_)) => Ok(()),
    }
}

fn check(request: &Request) -> Result<(), Error> {
    let dhcp = Dhcp::parse(request)?;
    let result = request.required_prev_result()?;
    let addresses = result.ips.iter().map(|ip| ip.address).collect();
    let request = CheckRequest { location: location(request)?, options: dhcp.options, addresses };
    ask(&dhcp.socket, &DaemonRequest::Check(Box::new(request)), Code::TRY_LATER)
}

fn status(request: &Request) -> Result<(), Error> {
    let dhcp = Dhcp::parse(request)?;
    ask(&dhcp.socket, &DaemonRequest::Status, Code::NOT_AVAILABLE)
}

fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let socket = Dhcp::socket(request)?;
    let network = request.network.clone();
    ask(&socket, &DaemonRequest::Gc { network, valid }, Code::TRY_LATER)
}

fn ask(socket: &Path, request: &DaemonRequest, code: Code) -> Result<(), Error> {
    protocol::ask(socket, request, TIMEOUT)
        .map_err(|cause| protocol::no_daemon(code, socket, &cause))?
        .map(drop)
}

/// Makes the namespace's path absolute, because the daemon runs in another directory.
fn location(request: &Request) -> Result<Location, Error> {
    let netns = match request.netns.as_str() {
        "" => String::new(),
        path => std::path::absolute(path)
            .map_err(|cause| Error::because(Code::IO, format!("netns {path:?}"), &cause))?
            .display()
            .to_string(),
    };
    let key = AttachmentKey {
        network: request.network.clone(),
        container_id: request.container_id.clone(),
        ifname: request.ifname.clone(),
    };
    Ok(Location { key, netns })
}
