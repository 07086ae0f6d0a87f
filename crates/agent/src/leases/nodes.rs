// SPDX-License-Identifier: Apache-2.0
//! Leases in Kubernetes: a node's podCIDRs are its subnets, and flannel's annotations say the rest.

use std::net::IpAddr;
use std::path::PathBuf;

use overlay::lease::annotations::{AnnotationPrefix, NodeFacts, Overwrites};
use overlay::lease::{self, Attributes, Lease};
use store::kubernetes::{Kubernetes, Node};
use store::{Entry, Error, Snapshot, Written};

use super::acquire::{AcquireError, Foreseen, Held, How, Renewal, Want};
use super::{Leases, NodeSeen, NodeState, Seen};

/// The nodes of a cluster.
#[derive(Debug, Clone)]
pub struct Nodes {
    /// Of the annotations.
    pub prefix: AnnotationPrefix,
    /// This node's name.
    pub own: String,
    /// net-conf.json.
    pub config: PathBuf,
}

/// What Kubernetes and its administrator say of this node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnNode {
    /// Its addresses.
    pub internal: Vec<IpAddr>,
    /// What an administrator has written.
    pub overwrites: Overwrites,
}

impl Nodes {
    pub(super) fn all(&self) -> String {
        Kubernetes::key("")
    }

    pub(super) fn lease(&self, name: &str) -> String {
        Kubernetes::key(name)
    }

    pub(super) fn name<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.all())
    }

    /// A node that takes no part, or not yet, is one that is not there.
    pub(super) fn seen(&self, entry: &Entry) -> Option<Seen> {
        let name = self.name(&entry.key)?.to_owned();
        let state = match read(entry) {
            Err(why) => NodeState::Bad(why.to_string()),
            Ok(node) => match self.prefix.read(facts(&node)) {
                Ok(Some(lease)) => NodeState::In { since: entry.created.0, lease: Box::new(lease) },
                Ok(None) | Err(lease::Error::NoPodCidr) => NodeState::Gone,
                Err(why) => NodeState::Bad(why.to_string()),
            },
        };
        Some(Seen::Node(NodeSeen { name, revision: entry.revision, state }))
    }

    /// What a snapshot says of this node.
    pub(super) fn own(&self, snapshot: &Snapshot) -> Result<OwnNode, AcquireError> {
        let node = self.own_node(self.own_entry(snapshot)?)?;
        let overwrites = self.prefix.overwrites(&node.annotations);
        Ok(OwnNode {
            internal: node.internal_ips.iter().filter_map(|ip| ip.parse().ok()).collect(),
            overwrites: overwrites.map_err(|error| AcquireError::NotYet(error.to_string()))?,
        })
    }

    pub(super) fn preview(
        &self,
        snapshot: &Snapshot,
        want: &Want<'_>,
    ) -> Result<Foreseen, AcquireError> {
        let before = self.own_node(self.own_entry(snapshot)?)?;
        let (after, lease) = self.with(&before, want.attributes)?;
        let how = if before == after { How::Kept } else { How::Taken };
        Ok(Foreseen { lease, how, obsolete: Vec::new() })
    }

    fn own_entry<'a>(&self, snapshot: &'a Snapshot) -> Result<&'a Entry, AcquireError> {
        let key = self.lease(&self.own);
        let found = snapshot.entries.iter().find(|entry| entry.key == key);
        found.ok_or_else(|| {
            let name = &self.own;
            AcquireError::NotYet(format!(
                "the cluster has no node {name:?}: NODE_NAME or node-name says which one this is"
            ))
        })
    }

    fn own_node(&self, entry: &Entry) -> Result<Node, AcquireError> {
        Ok(read(entry)?)
    }

    /// The node with annotations that say this, and the lease that follows from it.
    fn with(&self, node: &Node, attributes: &Attributes) -> Result<(Node, Lease), AcquireError> {
        let mut node = node.clone();
        for (name, value) in self.prefix.write(attributes, &Overwrites::default()) {
            match value {
                Some(value) => node.annotations.insert(name, value),
                None => node.annotations.remove(&name),
            };
        }
        let not_yet = |why: String| AcquireError::NotYet(why);
        match self.prefix.read(facts(&node)) {
            Ok(Some(lease)) => Ok((node, lease)),
            Ok(None) => Err(not_yet("the node's annotations do not stay".to_owned())),
            Err(lease::Error::NoPodCidr) => Err(not_yet(format!(
                "the node {:?} has no podCIDR yet: the controller manager gives it one, with allocate-node-cidrs",
                self.own
            ))),
            Err(error) => Err(not_yet(error.to_string())),
        }
    }
}

fn read(entry: &Entry) -> Result<Node, Error> {
    match entry.refusal() {
        Some(why) => Err(Error::Invalid(format!("{}: {why}", entry.key))),
        None => Node::read(&entry.value),
    }
}

fn facts(node: &Node) -> NodeFacts<'_> {
    NodeFacts {
        annotations: &node.annotations,
        pod_cidr: node.pod_cidr.as_deref(),
        pod_cidrs: &node.pod_cidrs,
    }
}

impl Leases {
    /// Tells the cluster what this node is; its subnets are the cluster's to give.
    pub(super) async fn annotate(
        &self,
        nodes: &Nodes,
        snapshot: &Snapshot,
        want: &Want<'_>,
    ) -> Result<Option<Held>, AcquireError> {
        let entry = nodes.own_entry(snapshot)?;
        let (node, lease) = nodes.with(&nodes.own_node(entry)?, want.attributes)?;
        let written = self.store.swap(&entry.key, &node.write(), entry.revision, None).await?;
        Ok(match written {
            Written::Done(revision) => {
                Some(Held { name: nodes.own.clone(), lease, revision, is_reservation: true })
            }
            Written::Conflict(_) => None,
        })
    }

    /// Says it again, where somebody has written over it.
    pub(super) async fn annotate_again(
        &self,
        nodes: &Nodes,
        held: &mut Held,
    ) -> Result<Renewal, Error> {
        let key = nodes.lease(&nodes.own);
        loop {
            let Some(entry) = self.store.get(&key).await? else { return Ok(Renewal::Lost) };
            let node = read(&entry)?;
            let said = nodes.with(&node, &held.lease.attributes).ok();
            let Some((node, _)) = said.filter(|(_, lease)| *lease == held.lease) else {
                return Ok(Renewal::Lost);
            };
            let written = self.store.swap(&key, &node.write(), entry.revision, None).await?;
            if let Written::Done(revision) = written {
                held.revision = revision;
                return Ok(Renewal::Done);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use store::Revision;

    use super::*;

    fn nodes() -> Nodes {
        Nodes { prefix: AnnotationPrefix::default(), own: "a".to_owned(), config: PathBuf::new() }
    }

    fn entry(name: &str, node: &Node) -> Entry {
        let (revision, created) = (Revision(7), Revision(3));
        let (key, value) = (Kubernetes::key(name), node.write());
        Entry { key, value, revision, created, expires: false, oversized: None }
    }

    fn node(cidr: Option<&str>) -> Node {
        Node {
            pod_cidrs: cidr.map(str::to_owned).into_iter().collect(),
            internal_ips: vec!["192.0.2.1".to_owned()],
            ..Node::default()
        }
    }

    fn host_gw() -> Attributes {
        let text = br#"{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"host-gw"}"#;
        Attributes::parse(text).unwrap()
    }

    #[test]
    fn what_a_node_is_told_is_what_others_read() {
        let (said, lease) = nodes().with(&node(Some("10.5.1.0/24")), &host_gw()).unwrap();
        assert_eq!(said.annotations["flannel.alpha.coreos.com/backend-type"], "host-gw");
        let Some(Seen::Node(seen)) = nodes().seen(&entry("a", &said)) else { panic!("a node") };
        assert_eq!(seen.name, "a");
        assert_eq!(seen.state, NodeState::In { since: 3, lease: Box::new(lease) });
    }

    #[test]
    fn who_takes_no_part_or_has_no_subnet_is_not_there() {
        let state = |node: &Node| match nodes().seen(&entry("b", node)) {
            Some(Seen::Node(seen)) => seen.state,
            other => panic!("{other:?}"),
        };
        assert_eq!(state(&node(Some("10.5.1.0/24"))), NodeState::Gone);
        let (said, _) = nodes().with(&node(Some("10.5.1.0/24")), &host_gw()).unwrap();
        assert_eq!(state(&Node { pod_cidrs: Vec::new(), ..said.clone() }), NodeState::Gone);
        let mut bad = said;
        bad.annotations.insert("flannel.alpha.coreos.com/public-ip".into(), "x".into());
        assert!(matches!(state(&bad), NodeState::Bad(why) if why.contains("public-ip")));
    }

    #[test]
    fn what_is_missing_is_waited_for_by_name() {
        let snapshot = |entries| Snapshot { entries, revision: Revision(9) };
        let error = nodes().own(&snapshot(Vec::new())).unwrap_err().to_string();
        assert!(error.contains("no node \"a\""), "{error}");
        let error = nodes().with(&node(None), &host_gw()).unwrap_err().to_string();
        assert!(error.contains("has no podCIDR yet"), "{error}");
        let mut told = node(None);
        told.annotations
            .insert("flannel.alpha.coreos.com/public-ip-overwrite".into(), "8.8.8.8".into());
        let own = nodes().own(&snapshot(vec![entry("a", &told)])).unwrap();
        assert_eq!(own.internal, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(own.overwrites.public.v4, Some([8, 8, 8, 8].into()));
    }
}
