// SPDX-License-Identifier: Apache-2.0
//! firewalld: a container's addresses are sources of a zone.

use std::net::IpAddr;

use cni::{Code, Error};

use crate::dbus::{Bus, Fault, Method};
use crate::iptables::host;

const NAME: &str = "org.fedoraproject.FirewallD1";

/// A connection to firewalld.
#[derive(Debug)]
pub struct Firewalld {
    bus: Bus,
}

impl Firewalld {
    /// The one that runs on this host, if any. Where there is no bus, this is one failed connect.
    pub fn find() -> Option<Self> {
        Self::look_for().ok().flatten()
    }

    fn look_for() -> Result<Option<Self>, Fault> {
        let mut bus = Bus::system()?;
        Ok(bus.has_owner(NAME)?.then_some(Self { bus }))
    }

    /// The same for those who cannot do without.
    pub fn required() -> Result<Self, Error> {
        let found = Self::look_for()
            .map_err(|fault| Error::because(Code::TRY_LATER, "firewalld does not run", &fault))?;
        found.ok_or_else(|| {
            Error::new(Code::TRY_LATER, "firewalld does not run")
                .with_details(format!("nobody owns {NAME} on the system's D-Bus"))
        })
    }

    /// Puts an address into the zone.
    pub fn add(&mut self, zone: &str, address: IpAddr) -> Result<(), Error> {
        match self.call("addSource", zone, address) {
            Err(Fault::Refused(words))
                if is_done(&words, &["ZONE_ALREADY_SET", "ALREADY_ENABLED"]) =>
            {
                Ok(())
            }
            other => other.map(drop).map_err(|fault| failed("add", zone, address, &fault)),
        }
    }

    /// Takes an address out of the zone.
    pub fn remove(&mut self, zone: &str, address: IpAddr) -> Result<(), Error> {
        match self.call("removeSource", zone, address) {
            Err(Fault::Refused(words)) if is_done(&words, &["NOT_ENABLED", "UNKNOWN_SOURCE"]) => {
                Ok(())
            }
            other => other.map(drop).map_err(|fault| failed("remove", zone, address, &fault)),
        }
    }

    /// Whether an address is in the zone.
    pub fn has(&mut self, zone: &str, address: IpAddr) -> Result<bool, Error> {
        let answer = self.call("querySource", zone, address);
        let body = answer.map_err(|fault| failed("look for", zone, address, &fault))?;
        Ok(body.iter().any(|byte| *byte != 0))
    }

    fn call(&mut self, name: &str, zone: &str, address: IpAddr) -> Result<Vec<u8>, Fault> {
        let method = Method {
            service: NAME,
            path: "/org/fedoraproject/FirewallD1",
            interface: "org.fedoraproject.FirewallD1.zone",
            name,
        };
        self.bus.call(method, &[zone, &host(address)])
    }
}

fn is_done(words: &str, kinds: &[&str]) -> bool {
    kinds.iter().any(|kind| words.contains(kind))
}

fn failed(doing: &str, zone: &str, address: IpAddr, fault: &Fault) -> Error {
    let doing = format!("{doing} source {address} of firewalld's zone {zone:?}");
    Error::because(Code::INTERNAL, doing, fault)
}
