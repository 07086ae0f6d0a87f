// SPDX-License-Identifier: Apache-2.0
//! The container's network namespace and the name of its interface, as a request gives them.

use std::fs;
use std::os::unix::fs::MetadataExt;

use cni::{Code, Error, Request};
use kernel::{IfName, Netns, link};

use crate::error::Context;

/// Opens the namespace for ADD and CHECK, which require it.
pub(crate) fn open(request: &Request) -> Result<Netns, Error> {
    Netns::open(&request.netns).map_err(|cause| {
        let code = if cause.is_not_found() { Code::UNKNOWN_CONTAINER } else { Code::INTERNAL };
        Error::because(code, format!("failed to open netns {:?}", request.netns), &cause)
    })
}

/// Opens the namespace for DEL. If the path does not exist or is not a namespace, there is nothing
/// to remove.
pub(crate) fn open_if_exists(request: &Request) -> Option<Netns> {
    if request.netns.is_empty() {
        return None;
    }
    Netns::open(&request.netns).ok()
}

/// Parses CNI_IFNAME.
pub(crate) fn ifname(request: &Request) -> Result<IfName, Error> {
    request.ifname.parse().map_err(|cause| {
        Error::because(Code::BAD_ENVIRONMENT, "CNI_IFNAME", &cause as &kernel::IfNameError)
    })
}

/// Whether the `sandbox` of a result is the request's namespace. The paths may differ: `/var/run`
/// is often a symbolic link to `/run`.
pub(crate) fn is_sandbox(request: &Request, sandbox: &str) -> bool {
    let identity = |path: &str| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    sandbox == request.netns
        || (!sandbox.is_empty()
            && identity(sandbox).is_some_and(|id| Some(id) == identity(&request.netns)))
}

/// Returns the specification's error for a second ADD if the interface exists.
pub(crate) fn refuse_existing(request: &Request) -> Result<(), Error> {
    let inside = open(request)?.netlink().context("open a socket in the container's namespace")?;
    let found = link::by_name(&inside, ifname(request)?).context("look for the interface")?;
    found.map_or(Ok(()), |_| {
        let (ifname, netns) = (&request.ifname, &request.netns);
        let msg = format!("container interface {ifname:?} already exists in {netns}");
        Err(Error::internal(msg))
    })
}
