// SPDX-License-Identifier: Apache-2.0
//! All pools of a network, and the choice of pools for a request.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::calico::{Malformed, Reservation};
use crate::pool::{Labels, Pool, PoolConf, PoolError, Use};
use crate::{Timestamp, cidr};

/// The valid pools, ordered by name, and the invalid ones with reasons.
#[derive(Debug, Clone, Default)]
pub struct Pools {
    valid: Vec<Pool>,
    rejected: Vec<RejectedPool>,
}

/// A pool that is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("IPPool {name}: {reason}")]
pub struct RejectedPool {
    pub name: String,
    pub reason: PoolError,
}

/// Reason why no pool can be used for a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    #[error("there is no pool with {0} addresses")]
    NoPool(&'static str),
    #[error("requested pool {0:?} does not exist; run `podwire pool list`")]
    Unknown(String),
    #[error("requested pool {name} {reason}")]
    Unusable { name: String, reason: &'static str },
    #[error(
        "no pool with {family} addresses selects this node and namespace; rejected: {rejected}"
    )]
    NoneEligible { family: &'static str, rejected: String },
}

/// Packets that are masqueraded: those from `sources` to destinations outside of `excluded`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NatOutgoing {
    pub sources: Vec<IpNet>,
    pub excluded: Vec<IpNet>,
}

impl Pools {
    /// Checks all pools. If pools overlap, the oldest is valid; equally old ones are ordered by name.
    pub fn new(confs: impl IntoIterator<Item = PoolConf>, node_addresses: &[IpAddr]) -> Self {
        let mut confs: Vec<_> = confs.into_iter().collect();
        confs.sort_by(|a, b| {
            let age = |conf: &PoolConf| conf.created.unwrap_or(Timestamp::from_millis(0));
            (age(a), &a.name).cmp(&(age(b), &b.name))
        });
        let mut pools = Self::default();
        for conf in confs {
            let name = conf.name.clone();
            match pools.check(conf, node_addresses) {
                Ok(pool) => pools.valid.push(pool),
                Err(reason) => pools.rejected.push(RejectedPool { name, reason }),
            }
        }
        pools.valid.sort_by(|a, b| a.name().cmp(b.name()));
        pools.rejected.sort_by(|a, b| a.name.cmp(&b.name));
        pools
    }

    fn check(&self, conf: PoolConf, node_addresses: &[IpAddr]) -> Result<Pool, PoolError> {
        let pool = Pool::new(conf)?;
        let cidr = pool.cidr();
        if let Some(other) = self.valid.iter().find(|other| cidr::overlap(cidr, other.cidr())) {
            let (other, other_cidr) = (other.name().to_owned(), other.cidr());
            return Err(PoolError::Overlap { cidr, other, other_cidr });
        }
        if let Some(address) = node_addresses.iter().find(|address| cidr.contains(*address)) {
            return Err(PoolError::NodeAddress { cidr, address: *address });
        }
        Ok(pool)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.valid.iter()
    }

    pub fn rejected(&self) -> &[RejectedPool] {
        &self.rejected
    }

    /// Returns the pool that contains an address.
    pub fn containing(&self, address: IpAddr) -> Option<&Pool> {
        self.valid.iter().find(|pool| pool.cidr().contains(&address))
    }

    /// Returns the pools for a request, in the order in which they are tried: the requested ones, or else all that are
    /// eligible. Requested pools need not select the node, as in Calico.
    pub fn choose(
        &self,
        ipv6: bool,
        requested: &[String],
        purpose: Use,
        labels: &Labels<'_>,
    ) -> Result<Vec<&Pool>, ChoiceError> {
        if !requested.is_empty() {
            return requested.iter().map(|text| self.requested(text, ipv6, purpose)).collect();
        }
        let family = if ipv6 { "IPv6" } else { "IPv4" };
        let mut of_family = self.valid.iter().filter(|pool| pool.is_ipv6() == ipv6).peekable();
        if of_family.peek().is_none() && self.rejected.is_empty() {
            return Err(ChoiceError::NoPool(family));
        }
        let eligible: Vec<_> = of_family.filter(|pool| pool.is_eligible(purpose, labels)).collect();
        if eligible.is_empty() {
            let rejected: Vec<_> = self.rejected.iter().map(ToString::to_string).collect();
            let rejected =
                if rejected.is_empty() { "none".to_owned() } else { rejected.join("; ") };
            return Err(ChoiceError::NoneEligible { family, rejected });
        }
        Ok(eligible)
    }

    /// Finds a pool by name or CIDR.
    fn requested(&self, text: &str, ipv6: bool, purpose: Use) -> Result<&Pool, ChoiceError> {
        let cidr = text.parse::<IpNet>().ok().map(|cidr| cidr.trunc());
        let found = |pool: &&Pool| pool.name() == text || Some(pool.cidr()) == cidr;
        let Some(pool) = self.valid.iter().find(found) else {
            return Err(ChoiceError::Unknown(text.to_owned()));
        };
        let unusable = |reason| Err(ChoiceError::Unusable { name: text.to_owned(), reason });
        if pool.is_ipv6() != ipv6 {
            return unusable("has addresses of the other family");
        }
        if pool.conf().disabled {
            return unusable("is disabled");
        }
        if !pool.allows(purpose) {
            return unusable("is not for this use; see allowedUses");
        }
        Ok(pool)
    }

    /// Returns what is masqueraded. Destinations in any pool are excluded, and addresses of nodes if `hosts` has them
    /// (Felix's setting `natOutgoingExclusions`).
    pub fn nat_outgoing(&self, hosts: &[IpAddr]) -> NatOutgoing {
        let sources = self.valid.iter().filter(|pool| pool.conf().nat_outgoing);
        let excluded = self.valid.iter().map(Pool::cidr);
        NatOutgoing {
            sources: sources.map(Pool::cidr).collect(),
            excluded: excluded.chain(hosts.iter().copied().map(IpNet::from)).collect(),
        }
    }
}

/// Addresses that may not be assigned unless a request names them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reservations(Vec<IpNet>);

impl Reservations {
    pub fn new<'a>(reservations: impl IntoIterator<Item = &'a Reservation>) -> Self {
        Self(reservations.into_iter().flat_map(|reservation| reservation.cidrs.clone()).collect())
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|cidr| cidr.contains(&address))
    }

    /// Returns whether a single reservation covers all addresses of a prefix.
    pub fn covers(&self, prefix: IpNet) -> bool {
        self.0.iter().any(|cidr| cidr.contains(&prefix))
    }
}

/// Separates objects that can be read from those that cannot.
pub fn separate<T>(
    objects: impl IntoIterator<Item = Result<T, Malformed>>,
) -> (Vec<T>, Vec<Malformed>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for object in objects {
        match object {
            Ok(object) => good.push(object),
            Err(error) => bad.push(error),
        }
    }
    (good, bad)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::pool::Assignment;

    fn conf(name: &str, cidr: &str) -> PoolConf {
        PoolConf::new(name, cidr.parse().unwrap())
    }

    fn names(result: Result<Vec<&Pool>, ChoiceError>) -> String {
        match result {
            Ok(pools) => pools.iter().map(|pool| pool.name()).collect::<Vec<_>>().join(" "),
            Err(e) => e.to_string(),
        }
    }

    fn choose(pools: &Pools, ipv6: bool, requested: &[&str]) -> String {
        let none = BTreeMap::new();
        let labels = Labels { node: &none, namespace: &none };
        let requested: Vec<_> = requested.iter().map(|text| (*text).to_owned()).collect();
        names(pools.choose(ipv6, &requested, Use::Workload, &labels))
    }

    #[test]
    fn overlapping_pool_is_rejected_and_others_remain() {
        let old = Timestamp::parse("2026-01-01T00:00:00Z");
        let new = Timestamp::parse("2026-01-02T00:00:00Z");
        let pools = Pools::new(
            [
                PoolConf { created: new, ..conf("a", "10.0.0.0/16") },
                PoolConf { created: old, ..conf("b", "10.0.128.0/17") },
                conf("c", "10.1.0.0/16"),
                conf("d", "10.2.0.0/16"),
                PoolConf { block_size: Some(1), ..conf("e", "10.3.0.0/16") },
            ],
            &["10.2.0.9".parse().unwrap()],
        );
        let rejected: Vec<_> = pools.rejected().iter().map(ToString::to_string).collect();
        assert_eq!(
            rejected,
            [
                "IPPool a: cidr 10.0.0.0/16 overlaps 10.0.128.0/17 of IPPool b",
                "IPPool d: cidr 10.2.0.0/16 contains 10.2.0.9, which is an address of this node",
                "IPPool e: blockSize 1 is out of range; 20 to 32 are allowed",
            ]
        );
        assert_eq!(choose(&pools, false, &[]), "b c");
        assert_eq!(pools.containing("10.1.2.3".parse().unwrap()).unwrap().name(), "c");
        assert!(pools.containing("10.2.2.3".parse().unwrap()).is_none());
    }

    #[test]
    fn requested_pools_come_first_even_if_not_eligible() {
        let manual = PoolConf { assignment: Assignment::Manual, ..conf("manual", "10.1.0.0/16") };
        let elsewhere = PoolConf { node_selector: "has(x)".to_owned(), ..conf("x", "10.2.0.0/16") };
        let disabled = PoolConf { disabled: true, ..conf("off", "10.3.0.0/16") };
        let pools = Pools::new(
            [conf("z", "10.0.0.0/16"), manual, elsewhere, disabled, conf("six", "fd00::/64")],
            &[],
        );
        assert_eq!(choose(&pools, false, &[]), "z");
        assert_eq!(choose(&pools, true, &[]), "six");
        assert_eq!(choose(&pools, false, &["x", "10.1.0.0/16", "z"]), "x manual z");
        assert_eq!(choose(&pools, false, &["off"]), "requested pool off is disabled");
        assert_eq!(
            choose(&pools, false, &["six"]),
            "requested pool six has addresses of the other family"
        );
        assert_eq!(
            choose(&pools, false, &["q"]),
            "requested pool \"q\" does not exist; run `podwire pool list`"
        );
        assert_eq!(choose(&Pools::default(), false, &[]), "there is no pool with IPv4 addresses");
    }

    #[test]
    fn nat_outgoing_excludes_all_pools_and_hosts() {
        let nat = PoolConf { nat_outgoing: true, ..conf("a", "10.0.0.0/16") };
        let pools = Pools::new([nat, conf("b", "10.1.0.0/16")], &[]);
        let nat = pools.nat_outgoing(&["192.0.2.1".parse().unwrap()]);
        assert_eq!(nat.sources, ["10.0.0.0/16".parse().unwrap()]);
        let excluded: Vec<_> = nat.excluded.iter().map(ToString::to_string).collect();
        assert_eq!(excluded, ["10.0.0.0/16", "10.1.0.0/16", "192.0.2.1/32"]);
    }

    #[test]
    fn reservations_cover_single_addresses_and_prefixes() {
        let reservation = Reservation {
            cidrs: vec!["10.0.0.0/25".parse().unwrap(), "10.0.1.7/32".parse().unwrap()],
            ..Reservation::default()
        };
        let reservations = Reservations::new([&reservation]);
        assert!(reservations.contains("10.0.1.7".parse().unwrap()));
        assert!(!reservations.contains("10.0.1.8".parse().unwrap()));
        assert!(reservations.covers("10.0.0.64/26".parse().unwrap()));
        assert!(!reservations.covers("10.0.0.0/24".parse().unwrap()));
    }
}
