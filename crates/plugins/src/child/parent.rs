// SPDX-License-Identifier: Apache-2.0
//! The interface that the container's one hangs on.

use cni::{Code, Error};
use kernel::link::{self, Link};
use kernel::route::{self, Route, RouteFilter};
use kernel::{Family, IfIndex, IfName, Netlink};

use crate::fault::OrFault;

/// What the container's interface hangs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// Nothing.
    None,
    /// The interface of this name.
    Named(IfName),
    /// The interface of the default route.
    OfDefaultRoute,
    /// One that only an ADD would tell.
    Unknown,
}

impl Parent {
    /// The `master` of a configuration.
    pub fn understand(master: &str) -> Result<Parent, Error> {
        if master.is_empty() {
            return Ok(Parent::OfDefaultRoute);
        }
        let name = master.parse().map_err(|cause: kernel::IfNameError| {
            Error::because(Code::INVALID_CONFIG, "key \"master\"", &cause)
        })?;
        Ok(Parent::Named(name))
    }

    /// The interface, which must be there; none where there need not be one.
    pub fn find(self, nl: &Netlink, in_container: bool) -> Result<Option<Link>, Error> {
        match self {
            Parent::None | Parent::Unknown => Ok(None),
            Parent::Named(name) => {
                let found = link::by_name(nl, name).or_fault("look for the master")?;
                found.map(Some).ok_or_else(|| {
                    let place = if in_container { " in the container" } else { "" };
                    let msg = format!("failed to lookup master \"{name}\": Link not found{place}");
                    Error::invalid_config(msg).with_details(format!("key \"master\" is \"{name}\""))
                })
            }
            Parent::OfDefaultRoute => {
                let index = of_default_route(nl).or_fault("look for the default route")?;
                let link = index.map(|index| link::by_index(nl, index)).transpose();
                let link = link.or_fault("look for the master")?.flatten();
                link.map(Some).ok_or_else(|| {
                    Error::invalid_config("no default route interface found")
                        .with_details("set key \"master\"")
                })
            }
        }
    }
}

/// The interface of the first default route, IPv4's before IPv6's. The kernel lists those of one
/// destination by their metric, and cannot be asked for one destination alone.
fn of_default_route(nl: &Netlink) -> kernel::Result<Option<IfIndex>> {
    for family in Family::ALL {
        let table = Some(route::TABLE_MAIN);
        let filter = RouteFilter { family: Some(family), table, ..RouteFilter::default() };
        let routes = route::list(nl, filter)?;
        if let Some(index) = routes.iter().filter(|route| is_default(route)).find_map(|r| r.oif) {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// A default route that refuses or drops, which IPv6 shows on the loopback, leads nowhere.
fn is_default(route: &Route) -> bool {
    route.dst.prefix_len() == 0 && route.kind == route::KIND_UNICAST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn master_is_understood() {
        assert_eq!(Parent::understand(""), Ok(Parent::OfDefaultRoute));
        let named = Parent::Named("eth0.5".parse().expect("a name"));
        assert_eq!(Parent::understand("eth0.5"), Ok(named));
        let error = Parent::understand("a/b").expect_err("no name");
        assert_eq!(error.code, Code::INVALID_CONFIG);
        assert!(error.msg.contains("\"master\"") && error.msg.contains("\"a/b\""), "{}", error.msg);
    }

    #[test]
    fn default_routes_lead_somewhere() {
        let check = |dst: &str, kind: u8, expected: bool| {
            let route = Route { kind, ..Route::new(dst.parse().expect("a network")) };
            assert_eq!(is_default(&route), expected, "{dst} {kind}");
        };
        check("0.0.0.0/0", route::KIND_UNICAST, true);
        check("::/0", route::KIND_UNICAST, true);
        check("::/0", route::KIND_BLACKHOLE, false);
        check("10.0.0.0/8", route::KIND_UNICAST, false);
    }
}
