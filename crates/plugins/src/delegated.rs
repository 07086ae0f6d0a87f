// SPDX-License-Identifier: Apache-2.0
//! Addresses by the network's IPAM plugin, for plugins that make interfaces. A network without
//! one gives none, and then every verb here has nothing to do.

use cni::delegate::{self, Target};
use cni::{CniResult, Command, Error, Request};

use crate::pod;

/// Asks for addresses; `None` where the network gives none.
pub fn add(request: &Request) -> Result<Option<CniResult>, Error> {
    let Some(kind) = request.ipam_type()? else { return Ok(None) };
    let target = delegate::find(request.host, kind, &request.path)?;
    if let Target::Program(_) = target {
        // A program that fails is asked to DEL, which would free the address of a live container.
        pod::refuse_existing(request)?;
    }
    ask(request, kind, &target).map(Some)
}

/// The same for an interface that this very ADD has made. An IPAM plugin such as dhcp needs it; that
/// it was made tells that this is no second ADD.
pub fn add_to_new(request: &Request) -> Result<Option<CniResult>, Error> {
    let Some(kind) = request.ipam_type()? else { return Ok(None) };
    let target = delegate::find(request.host, kind, &request.path)?;
    ask(request, kind, &target).map(Some)
}

fn ask(request: &Request, kind: &str, target: &Target) -> Result<CniResult, Error> {
    let result = delegate::add(request, target)?;
    if result.ips.is_empty() {
        // Best effort: the missing address is the error to tell.
        let _ = del(request);
        return Err(Error::internal(format!("IPAM plugin {kind:?} returned missing IP config")));
    }
    Ok(result)
}

/// Gives the addresses back.
pub fn del(request: &Request) -> Result<(), Error> {
    forward(request, Command::Del)
}

/// Asks whether the addresses are still ours.
pub fn check(request: &Request) -> Result<(), Error> {
    forward(request, Command::Check)
}

/// Asks whether there are addresses to give.
pub fn status(request: &Request) -> Result<(), Error> {
    forward(request, Command::Status)
}

/// Frees the addresses of attachments that are gone.
pub fn gc(request: &Request) -> Result<(), Error> {
    forward(request, Command::Gc)
}

fn forward(request: &Request, command: Command) -> Result<(), Error> {
    match request.ipam_type()? {
        Some(kind) => delegate::forward(request, kind, command),
        None => Ok(()),
    }
}
