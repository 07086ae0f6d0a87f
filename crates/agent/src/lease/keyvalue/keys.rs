// SPDX-License-Identifier: Apache-2.0
//! flannel's keys, and what their values mean. Pure.

use overlay::lease::{self, Lease};
use store::{Entry, Event};

use crate::lease::{NodeRecord, NodeRecordState, StoreItem};

/// flannel's keys under a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Keys {
    /// Without a slash at the end.
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.trim_end_matches('/').to_owned() }
    }

    /// Returns the common prefix of all keys.
    pub(super) fn all(&self) -> String {
        format!("{}/", self.prefix)
    }

    /// Returns the key of the network configuration.
    pub(super) fn config(&self) -> String {
        format!("{}/config", self.prefix)
    }

    /// Returns the key of a lease.
    pub(super) fn lease(&self, name: &str) -> String {
        format!("{}/subnets/{name}", self.prefix)
    }

    /// Returns the name of the lease that a key belongs to.
    fn name<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.prefix)?.strip_prefix("/subnets/")
    }

    /// Parses an entry. Returns `None` for unknown keys.
    pub(super) fn parse(&self, entry: &Entry) -> Option<StoreItem> {
        if entry.key == self.config() {
            if let Some(reason) = entry.too_large() {
                return Some(StoreItem::ConfigRejected(reason));
            }
            return Some(StoreItem::Config(Some(
                String::from_utf8_lossy(&entry.value).into_owned(),
            )));
        }
        let name = self.name(&entry.key)?;
        let state = match (entry.too_large(), Lease::parse(name, &entry.value)) {
            (Some(reason), _) => NodeRecordState::Invalid(reason),
            (None, Ok(lease)) => {
                NodeRecordState::Active { since: entry.created.0, lease: Box::new(lease) }
            }
            (None, Err(error)) => NodeRecordState::Invalid(error.to_string()),
        };
        Some(StoreItem::Node(NodeRecord { name: name.to_owned(), revision: entry.revision, state }))
    }

    /// Parses a change.
    pub(super) fn parse_event(&self, event: &Event) -> Option<StoreItem> {
        let (key, revision) = match event {
            Event::Put(entry) => return self.parse(entry),
            Event::Deleted { key, revision } => (key, *revision),
        };
        if *key == self.config() {
            return Some(StoreItem::Config(None));
        }
        let name = self.name(key)?.to_owned();
        Some(StoreItem::Node(NodeRecord { name, revision, state: NodeRecordState::Removed }))
    }

    /// Returns the entry for the choice of a subnet. A subnet counts as taken even if the value of its key is damaged.
    pub(super) fn taken(&self, entry: &Entry) -> Option<overlay::allocate::Entry> {
        let name = self.name(&entry.key)?;
        let subnets = lease::parse_key(name).ok()?;
        let attributes = lease::Attributes::parse(&entry.value).ok();
        Some(overlay::allocate::Entry {
            subnets,
            public: attributes.map(|attributes| attributes.public).unwrap_or_default(),
            is_reservation: !entry.expires,
        })
    }
}

#[cfg(test)]
mod tests {
    use store::Revision;

    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        let (revision, created) = (Revision(7), Revision(3));
        let (key, value) = (key.to_owned(), value.into());
        Entry { key, value, revision, created, expires: true, oversized: None }
    }

    const HOST_GW: &str =
        r#"{"PublicIP":"192.168.90.1","PublicIPv6":null,"BackendType":"host-gw"}"#;

    #[test]
    fn keys_are_those_of_flannel() {
        let keys = Keys::new("/coreos.com/network/");
        assert_eq!(keys.config(), "/coreos.com/network/config");
        assert_eq!(keys.lease("10.5.37.0-24"), "/coreos.com/network/subnets/10.5.37.0-24");
        assert_eq!(keys.name("/coreos.com/network/subnets/10.5.37.0-24"), Some("10.5.37.0-24"));
        for other in ["/coreos.com/network/config", "/coreos.com/networks/subnets/x", "x"] {
            assert_eq!(keys.name(other), None, "{other}");
        }
    }

    #[test]
    fn entries_are_parsed() {
        let keys = Keys::new("/n");
        let config = keys.parse(&entry("/n/config", "{}"));
        assert_eq!(config, Some(StoreItem::Config(Some("{}".to_owned()))));
        let Some(StoreItem::Node(node)) = keys.parse(&entry("/n/subnets/10.5.37.0-24", HOST_GW))
        else {
            panic!("a lease is a node");
        };
        assert_eq!((node.name.as_str(), node.revision), ("10.5.37.0-24", Revision(7)));
        assert!(matches!(node.state, NodeRecordState::Active { since: 3, .. }));
        let Some(StoreItem::Node(node)) = keys.parse(&entry("/n/subnets/nonsense", HOST_GW)) else {
            panic!("an unreadable lease is a node");
        };
        assert!(
            matches!(node.state, NodeRecordState::Invalid(reason) if reason.contains("nonsense"))
        );
        assert_eq!(keys.parse(&entry("/n/other", "")), None);
    }

    #[test]
    fn deletions_are_parsed() {
        let keys = Keys::new("/n");
        let deleted = |key: &str| {
            let event = Event::Deleted { key: key.to_owned(), revision: Revision(9) };
            keys.parse_event(&event)
        };
        assert_eq!(deleted("/n/config"), Some(StoreItem::Config(None)));
        assert!(matches!(
            deleted("/n/subnets/10.5.37.0-24"),
            Some(StoreItem::Node(NodeRecord { state: NodeRecordState::Removed, .. }))
        ));
        assert_eq!(deleted("/n/other"), None);
    }

    #[test]
    fn oversized_value_is_invalid_and_keeps_its_subnet() {
        let keys = Keys::new("/n");
        let large =
            |key: &str| Entry { oversized: Some(1_000_000), ..entry(&format!("/n/{key}"), "") };
        let reason = "its value has at least 1000000 bytes; the limit is 16384";
        let Some(StoreItem::Node(node)) = keys.parse(&large("subnets/10.5.37.0-24")) else {
            panic!("an oversized lease is a node");
        };
        assert_eq!(node.state, NodeRecordState::Invalid(reason.to_owned()));
        assert!(keys.taken(&large("subnets/10.5.37.0-24")).is_some());
        assert_eq!(
            keys.parse(&large("config")),
            Some(StoreItem::ConfigRejected(reason.to_owned()))
        );
    }

    #[test]
    fn damaged_value_keeps_its_subnet() {
        let keys = Keys::new("/n");
        let taken = keys.taken(&entry("/n/subnets/10.5.37.0-24", "{")).unwrap();
        assert_eq!(taken.public, overlay::Addresses::default());
        assert!(!taken.is_reservation);
        let reservation = Entry { expires: false, ..entry("/n/subnets/10.5.37.0-24", HOST_GW) };
        assert!(keys.taken(&reservation).unwrap().is_reservation);
    }
}
