// SPDX-License-Identifier: Apache-2.0
//! Addresses by the network's IPAM plugin, for plugins that make interfaces. A network without
//! one gives none, and then every verb here has nothing to do.

use cni::delegate::{self, Target};
use cni::{CniResult, Code, Command, Error, Request};

use crate::pod;
use crate::registry::{self, IPAM};
use crate::undo::Undo;

/// The network's IPAM plugin; `None` if the network gives no addresses. A plugin that connects
/// containers would call itself without end.
fn ipam_type<'a>(request: &'a Request) -> Result<Option<&'a str>, Error> {
    let kind = request.ipam_type()?;
    let Some(wrong) = kind.filter(|kind| registry::is_not_ipam(kind)) else { return Ok(kind) };
    let names: Vec<&str> = IPAM.iter().map(|plugin| plugin.name).collect();
    let msg = format!("key \"ipam.type\" is {wrong:?}, which is not an IPAM plugin");
    Err(Error::invalid_config(msg).with_details(format!("IPAM plugins are {}", names.join(", "))))
}

/// Whether the addresses are asked for through the container's interface: it must be there, up and
/// connected before [`add_through_interface`], and until [`del`] and [`gc`] have returned.
pub fn needs_interface(request: &Request) -> Result<bool, Error> {
    Ok(ipam_type(request)? == Some("dhcp"))
}

/// Refuses what [`add_through_interface`] would refuse anyway, before anything is made: a wrong
/// configuration, a daemon that is not there. Plugins of others are asked only once.
pub fn refuse_early(request: &Request) -> Result<(), Error> {
    let kind = ipam_type(request)?.unwrap_or_default();
    let Target::Function(plugin) = delegate::find(request.host, kind, &request.path)? else {
        return Ok(());
    };
    (plugin.status)(request).map_err(|error| match error.code {
        Code::NOT_AVAILABLE => Error { code: Code::TRY_LATER, ..error },
        _ => error,
    })
}

/// The error for a plugin whose interface, for this reason, nobody can be asked through.
pub fn refuse_through_interface(request: &Request, reason: &str) -> Result<(), Error> {
    if !needs_interface(request)? {
        return Ok(());
    }
    let kind = ipam_type(request)?.unwrap_or_default();
    let msg = format!("key \"ipam.type\" is {kind:?}, which asks through the interface: {reason}");
    Err(Error::invalid_config(msg).with_details("host-local and static give addresses without it"))
}

/// Asks for addresses before there is an interface; `None` where the network gives none.
pub fn add(request: &Request) -> Result<Option<CniResult>, Error> {
    let Some(kind) = ipam_type(request)? else { return Ok(None) };
    let target = delegate::find(request.host, kind, &request.path)?;
    if let Target::Program(_) = target {
        // A program that fails is asked to DEL, which would free the address of a live container.
        pod::refuse_existing(request)?;
    }
    ask(request, kind, &target).map(Some)
}

/// Asks for addresses where the interface was just made, which is also the proof that this is no second
/// ADD; `None` where the network gives none.
pub fn add_through_interface(request: &Request) -> Result<Option<CniResult>, Error> {
    let Some(kind) = ipam_type(request)? else { return Ok(None) };
    let target = delegate::find(request.host, kind, &request.path)?;
    ask(request, kind, &target).map(Some)
}

fn ask(request: &Request, kind: &str, target: &Target) -> Result<CniResult, Error> {
    let result = delegate::add(request, target).map_err(|error| match error.code {
        // Of CNI_ARGS we have read what is ours, and it is another's word that is unknown.
        Code::BAD_ENVIRONMENT => {
            Error { msg: format!("IPAM plugin {kind:?}: {}", error.msg), ..error }
        }
        _ => error,
    })?;
    if result.ips.is_empty() {
        // Best effort: the missing address is the error to tell.
        let _ = del(request);
        return Err(Error::internal("IPAM plugin returned missing IP config")
            .with_details(format!("key \"ipam.type\" is {kind:?}")));
    }
    Ok(result)
}

/// Makes the interface and asks for addresses, in the order that both can be done in: what fails most
/// often comes first, so that little has to be taken back, but some are asked for through the interface,
/// which then is brought up before.
pub fn add_with_interface<'a, T>(
    request: &'a Request,
    make: impl FnOnce(&mut Undo<'a>) -> Result<T, Error>,
    bring_up: impl FnOnce() -> Result<(), Error>,
    undo: &mut Undo<'a>,
) -> Result<(Option<CniResult>, T), Error> {
    let give_back = move || drop(del(request));
    if !needs_interface(request)? {
        let given = add(request)?;
        undo.push(give_back);
        return Ok((given, make(undo)?));
    }
    refuse_early(request)?;
    let made = make(undo)?;
    bring_up()?;
    let given = add_through_interface(request)?;
    undo.push(give_back);
    Ok((given, made))
}

/// Removes the interface and gives the addresses back, in the order that both can be done in: an
/// address must not be given to another while it is in use, but some can only be given back through
/// the interface. That it fails, or that nobody knows whom to give them back to, does not keep the
/// interface.
pub fn del_with_interface(
    request: &Request,
    remove: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    if !matches!(needs_interface(request), Ok(true)) {
        remove()?;
        return del(request);
    }
    let given_back = del(request);
    let removed = remove();
    Error::all([given_back, removed])
}

/// The same for GC.
pub fn gc_with_interfaces(
    request: &Request,
    remove: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let (removed, freed) = if matches!(needs_interface(request), Ok(true)) {
        let freed = gc(request);
        (remove(), freed)
    } else {
        (remove(), gc(request))
    };
    Error::all([removed, freed])
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
    match ipam_type(request)? {
        Some(kind) => delegate::forward(request, kind, command),
        None => Ok(()),
    }
}
