// SPDX-License-Identifier: Apache-2.0
//! Calls of the network's IPAM plugin, for plugins that create interfaces. If the network has no
//! IPAM plugin, these functions do nothing.

use cni::delegate::{self, Target};
use cni::{CniResult, Code, Command, Error, Request};

use crate::attach::netns;
use crate::attach::undo::Undo;
use crate::registry::{self, IPAM};

/// The network's IPAM plugin, if it has one. A plugin of another kind is refused: one that creates
/// interfaces would call itself forever.
fn ipam_type<'a>(request: &'a Request) -> Result<Option<&'a str>, Error> {
    let kind = request.ipam_type()?;
    let Some(wrong) = kind.filter(|kind| registry::is_not_ipam(kind)) else { return Ok(kind) };
    let names: Vec<&str> = IPAM.iter().map(|plugin| plugin.name).collect();
    let msg = format!("key \"ipam.type\" is {wrong:?}, which is not an IPAM plugin");
    Err(Error::invalid_config(msg).with_details(format!("IPAM plugins are {}", names.join(", "))))
}

/// Whether the IPAM plugin works through the container's interface, as dhcp does. The interface
/// must be up and connected before [`add_after_link`], and must exist until [`del`] and [`gc`] have
/// returned.
pub(crate) fn needs_interface(request: &Request) -> Result<bool, Error> {
    Ok(ipam_type(request)? == Some("dhcp"))
}

/// Fails early if [`add_after_link`] would fail anyway: invalid configuration, no dhcp daemon. Only
/// for plugins of this program; an external plugin is started once, by the ADD itself.
pub(crate) fn check_available(request: &Request) -> Result<(), Error> {
    let kind = ipam_type(request)?.unwrap_or_default();
    let Target::Function(plugin) = delegate::find(request.host, kind, &request.path)? else {
        return Ok(());
    };
    (plugin.status)(request).map_err(|error| match error.code {
        Code::NOT_AVAILABLE => Error { code: Code::TRY_LATER, ..error },
        _ => error,
    })
}

/// Refuses an IPAM plugin that works through the interface, for the given reason.
pub(crate) fn refuse_if_needs_interface(request: &Request, reason: &str) -> Result<(), Error> {
    if !needs_interface(request)? {
        return Ok(());
    }
    let kind = ipam_type(request)?.unwrap_or_default();
    let msg = format!("key \"ipam.type\" is {kind:?}, which needs the interface: {reason}");
    Err(Error::invalid_config(msg).with_details("host-local and static give addresses without it"))
}

/// Requests addresses before the interface exists. `None` if the network has no IPAM plugin.
pub(crate) fn add(request: &Request) -> Result<Option<CniResult>, Error> {
    let Some(kind) = ipam_type(request)? else { return Ok(None) };
    let target = delegate::find(request.host, kind, &request.path)?;
    if matches!(target, Target::Program(_)) || kind == "calico-ipam" {
        // If an external plugin fails, it gets a DEL, which would release the address of the
        // running container in case of a second ADD. The node agent returns the same addresses to
        // a second ADD, which would then fail and release them.
        netns::refuse_existing(request)?;
    }
    call_add(request, kind, &target).map(Some)
}

/// Requests addresses after the interface was created, which also proves that this is not a second
/// ADD. `None` if the network has no IPAM plugin.
pub(crate) fn add_after_link(request: &Request) -> Result<Option<CniResult>, Error> {
    let Some(kind) = ipam_type(request)? else { return Ok(None) };
    let target = delegate::find(request.host, kind, &request.path)?;
    call_add(request, kind, &target).map(Some)
}

fn call_add(request: &Request, kind: &str, target: &Target) -> Result<CniResult, Error> {
    let result = delegate::add(request, target).map_err(|error| match error.code {
        // The calling plugin has accepted CNI_ARGS, so the error is about the IPAM plugin's part.
        Code::BAD_ENVIRONMENT => {
            Error { msg: format!("IPAM plugin {kind:?}: {}", error.msg), ..error }
        }
        _ => error,
    })?;
    if result.ips.is_empty() {
        // Best effort: the missing address is the error to report.
        let _ = del(request);
        return Err(Error::internal("IPAM plugin returned missing IP config")
            .with_details(format!("key \"ipam.type\" is {kind:?}")));
    }
    Ok(result)
}

/// Creates the interface and requests addresses. The addresses come first because IPAM fails most
/// often and then little has to be undone. If the IPAM plugin needs the interface, the interface is
/// created and brought up first.
pub(crate) fn add_with_interface<'a, T>(
    request: &'a Request,
    create: impl FnOnce(&mut Undo<'a>) -> Result<T, Error>,
    bring_up: impl FnOnce() -> Result<(), Error>,
    undo: &mut Undo<'a>,
) -> Result<(Option<CniResult>, T), Error> {
    let release = move || drop(del(request));
    if !needs_interface(request)? {
        let result = add(request)?;
        undo.push(release);
        return Ok((result, create(undo)?));
    }
    check_available(request)?;
    let created = create(undo)?;
    bring_up()?;
    let result = add_after_link(request)?;
    undo.push(release);
    Ok((result, created))
}

/// Removes the interface and releases the addresses. The interface goes first, so that an address
/// is not assigned to another container while it is in use. If the IPAM plugin needs the interface,
/// the addresses go first; a failure of IPAM does not keep the interface.
pub(crate) fn del_with_interface(
    request: &Request,
    remove: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    if !matches!(needs_interface(request), Ok(true)) {
        remove()?;
        return del(request);
    }
    let released = del(request);
    let removed = remove();
    Error::all([released, removed])
}

/// GC in the same order as [`del_with_interface`].
pub(crate) fn gc_with_interfaces(
    request: &Request,
    remove: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let (removed, released) = if matches!(needs_interface(request), Ok(true)) {
        let released = gc(request);
        (remove(), released)
    } else {
        (remove(), gc(request))
    };
    Error::all([removed, released])
}

/// Releases the addresses.
pub(crate) fn del(request: &Request) -> Result<(), Error> {
    forward(request, Command::Del)
}

/// Checks that the addresses are still assigned.
pub(crate) fn check(request: &Request) -> Result<(), Error> {
    forward(request, Command::Check)
}

/// Checks that the IPAM plugin can assign addresses.
pub(crate) fn status(request: &Request) -> Result<(), Error> {
    forward(request, Command::Status)
}

/// Releases the addresses of attachments that no longer exist.
pub(crate) fn gc(request: &Request) -> Result<(), Error> {
    forward(request, Command::Gc)
}

fn forward(request: &Request, command: Command) -> Result<(), Error> {
    match ipam_type(request)? {
        Some(kind) => delegate::forward(request, kind, command),
        None => Ok(()),
    }
}
