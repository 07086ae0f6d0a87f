// SPDX-License-Identifier: Apache-2.0
//! firewalld: the container's addresses become sources of a zone.

use std::net::IpAddr;

use cni::{Code, Error};

use crate::compat::iptables::host;
use crate::dbus::{self, Bus, Method};

const NAME: &str = "org.fedoraproject.FirewallD1";

/// A connection to firewalld.
#[derive(Debug)]
pub(super) struct Firewalld {
    bus: Bus,
}

impl Firewalld {
    /// Connects to firewalld if it runs on this host. Without a bus this costs one failed connect.
    pub(super) fn find() -> Option<Self> {
        Self::connect().ok().flatten()
    }

    fn connect() -> Result<Option<Self>, dbus::Error> {
        let mut bus = Bus::system()?;
        Ok(bus.has_owner(NAME)?.then_some(Self { bus }))
    }

    /// Connects to firewalld; an error if it does not run.
    pub(super) fn required() -> Result<Self, Error> {
        let found = Self::connect()
            .map_err(|cause| Error::because(Code::TRY_LATER, "firewalld does not run", &cause))?;
        found.ok_or_else(|| {
            Error::new(Code::TRY_LATER, "firewalld does not run")
                .with_details(format!("no program owns {NAME} on the system D-Bus"))
        })
    }

    /// Adds an address to the zone.
    pub(super) fn add(&mut self, zone: &str, address: IpAddr) -> Result<(), Error> {
        match self.call("addSource", zone, address) {
            Err(dbus::Error::Refused(msg))
                if contains_any(&msg, &["ZONE_ALREADY_SET", "ALREADY_ENABLED"]) =>
            {
                Ok(())
            }
            other => other.map(drop).map_err(|cause| failed("add", zone, address, &cause)),
        }
    }

    /// Removes an address from the zone.
    pub(super) fn remove(&mut self, zone: &str, address: IpAddr) -> Result<(), Error> {
        match self.call("removeSource", zone, address) {
            Err(dbus::Error::Refused(msg))
                if contains_any(&msg, &["NOT_ENABLED", "UNKNOWN_SOURCE"]) =>
            {
                Ok(())
            }
            other => other.map(drop).map_err(|cause| failed("remove", zone, address, &cause)),
        }
    }

    /// Whether an address is in the zone.
    pub(super) fn has(&mut self, zone: &str, address: IpAddr) -> Result<bool, Error> {
        let reply = self.call("querySource", zone, address);
        let body = reply.map_err(|cause| failed("look for", zone, address, &cause))?;
        Ok(body.iter().any(|byte| *byte != 0))
    }

    fn call(&mut self, name: &str, zone: &str, address: IpAddr) -> Result<Vec<u8>, dbus::Error> {
        let method = Method {
            service: NAME,
            path: "/org/fedoraproject/FirewallD1",
            interface: "org.fedoraproject.FirewallD1.zone",
            name,
        };
        self.bus.call(method, &[zone, &host(address)])
    }
}

fn contains_any(msg: &str, errors: &[&str]) -> bool {
    errors.iter().any(|error| msg.contains(error))
}

fn failed(doing: &str, zone: &str, address: IpAddr, cause: &dbus::Error) -> Error {
    let doing = format!("{doing} source {address} of firewalld's zone {zone:?}");
    Error::because(Code::INTERNAL, doing, cause)
}
