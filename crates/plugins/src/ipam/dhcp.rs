// SPDX-License-Identifier: Apache-2.0
//! `dhcp`: addresses from the DHCP servers of the network that the container is on. Leases are kept
//! by a daemon, `dhcp daemon`; the plugin itself only asks it.

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
use self::protocol::{AddQuestion, CheckQuestion, Key, Place, Question};

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    name: "dhcp",
    about: "gives addresses of the network's DHCP servers, by way of a daemon",
    versions: Version::ALL,
    add,
    del,
    check,
    status,
    gc,
};

/// More than any server's patience: the daemon gives up first, and says why.
const ADD_PATIENCE: Duration = Duration::from_secs(600);
/// A daemon that is alive answers at once; where it waits for a server's word, for less than this.
const PATIENCE: Duration = Duration::from_secs(5);

fn add(request: &Request) -> Result<CniResult, Error> {
    let dhcp = Dhcp::understand(request)?;
    let question = AddQuestion { place: place(request)?, asked: dhcp.asked };
    let question = Question::Add(Box::new(question));
    let result = protocol::ask(&dhcp.socket, &question, ADD_PATIENCE)
        .map_err(|cause| protocol::no_daemon(Code::TRY_LATER, &dhcp.socket, &cause))??;
    CniResult::parse(result.unwrap_or_default(), Version::LATEST)
}

/// Where there is no daemon, we give the lease back ourselves as far as we can; a container must not
/// stay because of that.
fn del(request: &Request) -> Result<(), Error> {
    let socket = Dhcp::socket(request)?;
    let place = place(request)?;
    match protocol::ask(&socket, &Question::Del(place.clone()), PATIENCE) {
        Ok(answer) => answer.map(drop),
        Err(ClientError::Connect(_)) => {
            daemon::release_without(&place.key);
            Ok(())
        }
        Err(ClientError::NoAnswer(_)) => Ok(()),
    }
}

fn check(request: &Request) -> Result<(), Error> {
    let dhcp = Dhcp::understand(request)?;
    let result = request.required_prev_result()?;
    let addresses = result.ips.iter().map(|ip| ip.address).collect();
    let question = CheckQuestion { place: place(request)?, asked: dhcp.asked, addresses };
    ask(&dhcp.socket, &Question::Check(Box::new(question)), Code::TRY_LATER)
}

fn status(request: &Request) -> Result<(), Error> {
    let dhcp = Dhcp::understand(request)?;
    ask(&dhcp.socket, &Question::Status, Code::NOT_AVAILABLE)
}

fn gc(request: &Request) -> Result<(), Error> {
    let Some(valid) = request.valid_attachments()? else { return Ok(()) };
    let socket = Dhcp::socket(request)?;
    let network = request.network.clone();
    ask(&socket, &Question::Gc { network, valid }, Code::TRY_LATER)
}

fn ask(socket: &Path, question: &Question, code: Code) -> Result<(), Error> {
    protocol::ask(socket, question, PATIENCE)
        .map_err(|cause| protocol::no_daemon(code, socket, &cause))?
        .map(drop)
}

/// The daemon runs in another directory, so the namespace's path must not depend on ours.
fn place(request: &Request) -> Result<Place, Error> {
    let netns = match request.netns.as_str() {
        "" => String::new(),
        path => std::path::absolute(path)
            .map_err(|cause| Error::because(Code::IO, format!("netns {path:?}"), &cause))?
            .display()
            .to_string(),
    };
    let key = Key {
        network: request.network.clone(),
        container_id: request.container_id.clone(),
        ifname: request.ifname.clone(),
    };
    Ok(Place { key, netns })
}
