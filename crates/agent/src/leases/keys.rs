// SPDX-License-Identifier: Apache-2.0
//! Which key is what. Pure.

use overlay::lease::{self, Lease};
use store::Entry;

use super::{NodeSeen, NodeState, Seen};

/// flannel's layout under a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// Without a slash at its end.
    prefix: String,
}

impl Keys {
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.trim_end_matches('/').to_owned() }
    }

    /// What all keys begin with.
    pub fn all(&self) -> String {
        format!("{}/", self.prefix)
    }

    /// The network's configuration.
    pub fn config(&self) -> String {
        format!("{}/config", self.prefix)
    }

    /// A node's lease, by the node's name here.
    pub fn lease(&self, name: &str) -> String {
        format!("{}/subnets/{name}", self.prefix)
    }

    /// The name of a node whose lease this key is.
    pub fn name<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.prefix)?.strip_prefix("/subnets/")
    }

    /// What an entry says; nothing where it is none of ours.
    pub fn seen(&self, entry: &Entry) -> Option<Seen> {
        if entry.key == self.config() {
            if let Some(why) = entry.refusal() {
                return Some(Seen::ConfigRefused(why));
            }
            return Some(Seen::Config(Some(String::from_utf8_lossy(&entry.value).into_owned())));
        }
        let name = self.name(&entry.key)?;
        let state = match (entry.refusal(), Lease::parse(name, &entry.value)) {
            (Some(why), _) => NodeState::Bad(why),
            (None, Ok(lease)) => NodeState::In { since: entry.created.0, lease: Box::new(lease) },
            (None, Err(why)) => NodeState::Bad(why.to_string()),
        };
        Some(Seen::Node(NodeSeen { name: name.to_owned(), revision: entry.revision, state }))
    }

    /// The entry as the choice of a subnet sees it: one whose value is damaged is taken all the same.
    pub fn taken(&self, entry: &Entry) -> Option<overlay::allocate::Entry> {
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
    use store::{Event, Revision};

    use super::super::layout::Layout;
    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        let (revision, created) = (Revision(7), Revision(3));
        let (key, value) = (key.to_owned(), value.into());
        Entry { key, value, revision, created, expires: true, oversized: None }
    }

    const HOST_GW: &str =
        r#"{"PublicIP":"192.168.90.1","PublicIPv6":null,"BackendType":"host-gw"}"#;

    #[test]
    fn keys_are_flannels() {
        let keys = Keys::new("/coreos.com/network/");
        assert_eq!(keys.config(), "/coreos.com/network/config");
        assert_eq!(keys.lease("10.5.37.0-24"), "/coreos.com/network/subnets/10.5.37.0-24");
        assert_eq!(keys.name("/coreos.com/network/subnets/10.5.37.0-24"), Some("10.5.37.0-24"));
        for other in ["/coreos.com/network/config", "/coreos.com/networks/subnets/x", "x"] {
            assert_eq!(keys.name(other), None, "{other}");
        }
    }

    #[test]
    fn entries_and_events_are_understood() {
        let keys = Keys::new("/n");
        let config = keys.seen(&entry("/n/config", "{}"));
        assert_eq!(config, Some(Seen::Config(Some("{}".to_owned()))));
        let Some(Seen::Node(node)) = keys.seen(&entry("/n/subnets/10.5.37.0-24", HOST_GW)) else {
            panic!("a lease is a node");
        };
        assert_eq!((node.name.as_str(), node.revision), ("10.5.37.0-24", Revision(7)));
        assert!(matches!(node.state, NodeState::In { since: 3, .. }));
        let Some(Seen::Node(node)) = keys.seen(&entry("/n/subnets/nonsense", HOST_GW)) else {
            panic!("a lease that cannot be read is a node all the same");
        };
        assert!(matches!(node.state, NodeState::Bad(why) if why.contains("nonsense")));
        assert_eq!(keys.seen(&entry("/n/other", "")), None);
        let gone = |key: &str| {
            let event = Event::Deleted { key: key.to_owned(), revision: Revision(9) };
            Layout::Keys(keys.clone()).changed(&event)
        };
        assert_eq!(gone("/n/config"), Some(Seen::Config(None)));
        assert!(matches!(
            gone("/n/subnets/10.5.37.0-24"),
            Some(Seen::Node(NodeSeen { state: NodeState::Gone, .. }))
        ));
        assert_eq!(gone("/n/other"), None);
    }

    #[test]
    fn oversized_values_are_refused_by_name_and_keep_their_subnet() {
        let keys = Keys::new("/n");
        let large =
            |key: &str| Entry { oversized: Some(1_000_000), ..entry(&format!("/n/{key}"), "") };
        let why = "its value has at least 1000000 bytes; the limit is 16384";
        let Some(Seen::Node(node)) = keys.seen(&large("subnets/10.5.37.0-24")) else {
            panic!("a lease that is too large is a node all the same");
        };
        assert_eq!(node.state, NodeState::Bad(why.to_owned()));
        assert!(keys.taken(&large("subnets/10.5.37.0-24")).is_some());
        assert_eq!(keys.seen(&large("config")), Some(Seen::ConfigRefused(why.to_owned())));
    }

    #[test]
    fn a_damaged_value_keeps_its_subnet_taken() {
        let keys = Keys::new("/n");
        let taken = keys.taken(&entry("/n/subnets/10.5.37.0-24", "{")).unwrap();
        assert_eq!(taken.public, overlay::Addresses::default());
        assert!(!taken.is_reservation);
        let kept = Entry { expires: false, ..entry("/n/subnets/10.5.37.0-24", HOST_GW) };
        assert!(keys.taken(&kept).unwrap().is_reservation);
    }
}
