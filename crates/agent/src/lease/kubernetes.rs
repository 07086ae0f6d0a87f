// SPDX-License-Identifier: Apache-2.0
//! Leases in Kubernetes: the podCIDRs of a node are its subnets, and flannel's annotations hold the attributes.

use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;

use cluster::{
    Access, AnnotationPrefixes, Cluster, Event, Mirror, Node, Object, Reflector, Update, Write,
    annotation_changes,
};
use gojson::DecodeError;
use overlay::lease::annotations::{AnnotationPrefix, NodeFacts, Overwrites};
use overlay::lease::{self, Attributes, Lease};
use overlay::netconf::{Pool, RawNetConf};
use overlay::{Addresses, PerFamily, Prefixes};
use store::Revision;

use super::{
    AcquireError, BoxFuture, Cached, CachedEntry, ConfigLocation, Error, HeldLease, LeaseBackend,
    LeaseOrigin, LeasePreview, LeaseRequest, NodeRecord, NodeRecordState, OwnNode, PeerEvents,
    PeerSource, Renewal, Snapshot, StoreItem, saved_text,
};
use crate::managed_file::{self, in_background};
use crate::pools::network_available;

/// Attempts to annotate this node. The node changes in between only when kubelet reports its status.
const ATTEMPTS: usize = 100;

/// Prefix of keys in the cache file.
const CACHE_PREFIX: &str = "nodes/";

#[derive(Debug, Clone)]
pub struct KubernetesConf {
    pub access: Access,
    pub annotation_prefix: AnnotationPrefix,
    /// `None` if `pod` is used to look it up.
    pub node_name: Option<String>,
    /// Namespace and name of the agent's own pod.
    pub pod: Option<(String, String)>,
    /// Path of `net-conf.json`.
    pub net_config: PathBuf,
    /// Whether to set the condition `NetworkUnavailable` of this node.
    pub sets_condition: bool,
}

/// The nodes of a cluster.
#[derive(Debug)]
pub struct KubernetesLeases {
    cluster: Cluster,
    mirror: Mirror<Node>,
    keep: AnnotationPrefixes,
    annotation_prefix: AnnotationPrefix,
    node_name: OnceLock<String>,
    pod: Option<(String, String)>,
    net_config: PathBuf,
    sets_condition: bool,
}

impl KubernetesLeases {
    pub async fn open(conf: KubernetesConf) -> cluster::Result<Self> {
        let cluster = Cluster::open(&conf.access).await?;
        Ok(Self::new(cluster, conf))
    }

    fn new(cluster: Cluster, conf: KubernetesConf) -> Self {
        Self {
            cluster,
            mirror: Mirror::default(),
            keep: AnnotationPrefixes(vec![conf.annotation_prefix.as_str().to_owned()]),
            annotation_prefix: conf.annotation_prefix,
            node_name: conf.node_name.map(OnceLock::from).unwrap_or_default(),
            pod: conf.pod,
            net_config: conf.net_config,
            sets_condition: conf.sets_condition,
        }
    }

    /// Empty until the name was looked up.
    fn name(&self) -> &str {
        self.node_name.get().map_or("", String::as_str)
    }

    fn parsed(&self, revision: cluster::Revision) -> Snapshot {
        let items = self.mirror.map(|object| item(&self.annotation_prefix, object));
        Snapshot { items, revision: Revision(revision.0) }
    }

    fn missing_node(&self) -> AcquireError {
        let name = self.name();
        AcquireError::NotYet(format!(
            "the cluster has no node {name:?}: set NODE_NAME or --node-name to the name of this node"
        ))
    }

    fn own_object(&self) -> Result<Node, AcquireError> {
        let object = self.mirror.get(self.name()).ok_or_else(|| self.missing_node())?;
        Ok(content(object)?)
    }

    /// Returns the node with annotations for these attributes, and the resulting lease.
    fn annotate(
        &self,
        node: &Node,
        attributes: &Attributes,
    ) -> Result<(Node, Lease), AcquireError> {
        let mut node = node.clone();
        for (name, value) in self.annotation_prefix.write(attributes, &Overwrites::default()) {
            match value {
                Some(value) => node.annotations.insert(name, value),
                None => node.annotations.remove(&name),
            };
        }
        let not_yet = |reason: String| AcquireError::NotYet(reason);
        match self.annotation_prefix.read(facts(&node)) {
            Ok(Some(lease)) => Ok((node, lease)),
            Ok(None) => Err(not_yet("the annotations of the node do not form a lease".to_owned())),
            Err(lease::Error::NoPodCidr) => Err(not_yet(format!(
                "the node {:?} has no podCIDR yet: the controller manager assigns one if it runs with --allocate-node-cidrs",
                self.name()
            ))),
            Err(error) => Err(not_yet(error.to_string())),
        }
    }

    async fn acquire_lease(&self, attributes: &Attributes) -> Result<HeldLease, AcquireError> {
        for _ in 0..ATTEMPTS {
            let object = self.cluster.get::<Node>(self.name(), &self.keep).await?;
            let object = object.ok_or_else(|| self.missing_node())?;
            let revision = object.revision;
            let before = content(object)?;
            let (after, lease) = self.annotate(&before, attributes)?;
            let changes = annotation_changes(&before, &after);
            match self.cluster.annotate_node(self.name(), &changes, revision).await {
                Ok(Write::Done(revision)) => return Ok(self.held(lease, revision)),
                // After an uncertain write the next attempt shows whether it was carried out.
                Ok(Write::Conflict) | Err(cluster::Error::Uncertain { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(AcquireError::NotYet(format!(
            "the node {:?} changed during each of {ATTEMPTS} attempts to annotate it",
            self.name()
        )))
    }

    fn held(&self, lease: Lease, revision: cluster::Revision) -> HeldLease {
        let (name, revision) = (self.name().to_owned(), Revision(revision.0));
        HeldLease { name, lease, revision, is_reservation: true }
    }

    async fn renew_lease(&self, held: &mut HeldLease) -> Result<Renewal, Error> {
        loop {
            let Some(object) = self.cluster.get::<Node>(self.name(), &self.keep).await? else {
                return Ok(Renewal::Lost);
            };
            let revision = object.revision;
            let before = content(object)?;
            let annotated = self.annotate(&before, &held.lease.attributes).ok();
            let Some((after, _)) = annotated.filter(|(_, lease)| *lease == held.lease) else {
                return Ok(Renewal::Lost);
            };
            let changes = annotation_changes(&before, &after);
            if let Write::Done(revision) =
                self.cluster.annotate_node(self.name(), &changes, revision).await?
            {
                held.revision = Revision(revision.0);
                return Ok(Renewal::Done);
            }
        }
    }

    async fn find_node_of_pod(&self) -> Result<Option<String>, AcquireError> {
        let (Some((namespace, pod)), None) = (&self.pod, self.node_name.get()) else {
            return Ok(None);
        };
        match self.cluster.node_of_pod(namespace, pod).await? {
            Some(name) => Ok(Some(name)),
            None => Err(AcquireError::NotYet(format!(
                "the pod {namespace}/{pod}, which POD_NAMESPACE and POD_NAME name as the agent's own, runs on no node"
            ))),
        }
    }
}

fn content(object: Object<Node>) -> Result<Node, cluster::Error> {
    let Object { name, content, .. } = object;
    content.map_err(|too_large| cluster::Error::Invalid(format!("node {name}: {too_large}")))
}

fn facts(node: &Node) -> NodeFacts<'_> {
    NodeFacts {
        annotations: &node.annotations,
        pod_cidr: node.pod_cidr.as_deref(),
        pod_cidrs: &node.pod_cidrs,
    }
}

/// Parses a node object. A node without annotations or without podCIDRs has no lease yet.
fn item(prefix: &AnnotationPrefix, object: &Object<Node>) -> StoreItem {
    let state = match &object.content {
        Err(too_large) => NodeRecordState::Invalid(too_large.to_string()),
        Ok(node) => match prefix.read(facts(node)) {
            Ok(Some(lease)) => {
                NodeRecordState::Active { since: object.created, lease: Box::new(lease) }
            }
            Ok(None) | Err(lease::Error::NoPodCidr) => NodeRecordState::Removed,
            Err(error) => NodeRecordState::Invalid(error.to_string()),
        },
    };
    let (name, revision) = (object.name.clone(), Revision(object.revision.0));
    StoreItem::Node(NodeRecord { name, revision, state })
}

fn event_item(prefix: &AnnotationPrefix, event: &Event<Node>) -> StoreItem {
    match event {
        Event::Applied(object) => item(prefix, object),
        Event::Deleted { name, revision } => StoreItem::Node(NodeRecord {
            name: name.clone(),
            revision: Revision(revision.0),
            state: NodeRecordState::Removed,
        }),
    }
}

impl LeaseBackend for KubernetesLeases {
    fn id(&self) -> String {
        CACHE_PREFIX.to_owned()
    }

    fn reconnect(&self) {
        self.cluster.reconnect();
    }

    fn config_location(&self) -> ConfigLocation {
        ConfigLocation::File(self.net_config.clone())
    }

    fn config<'a>(&'a self, _items: &'a [StoreItem]) -> BoxFuture<'a, io::Result<Option<String>>> {
        let file = self.net_config.clone();
        Box::pin(async move {
            let read = in_background(move || managed_file::read(&file)).await;
            read.unwrap_or_else(|| Err(io::Error::other("reading panicked")))
        })
    }

    fn create_config_if_absent<'a>(&'a self, _text: &'a str) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async { Ok(false) })
    }

    fn replace_config<'a>(&'a self, _text: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn list(&self) -> BoxFuture<'_, Result<Snapshot, Error>> {
        Box::pin(async {
            let listed = self.cluster.list::<Node>(&self.keep).await?;
            let revision = listed.revision;
            self.mirror.replace(listed);
            Ok(self.parsed(revision))
        })
    }

    fn watch(&self, after: Revision) -> Box<dyn PeerSource> {
        let (cluster, keep, mirror) =
            (self.cluster.clone(), self.keep.clone(), self.mirror.clone());
        let reflector = Reflector::resume(cluster, keep, mirror, cluster::Revision(after.0));
        Box::new(NodeWatch::new(self, reflector))
    }

    fn watch_after_list(&self) -> Box<dyn PeerSource> {
        let (cluster, keep, mirror) =
            (self.cluster.clone(), self.keep.clone(), self.mirror.clone());
        Box::new(NodeWatch::new(self, Reflector::new(cluster, keep, mirror)))
    }

    fn last_known(&self) -> Option<Snapshot> {
        let revision = self.mirror.revision()?;
        Some(self.parsed(revision))
    }

    fn take_changed(&self) -> bool {
        self.mirror.take_changed()
    }

    fn export_cache(&self) -> Option<Cached> {
        let revision = Revision(self.mirror.revision()?.0);
        let entries = self.mirror.map(to_cached).into_iter().flatten().collect();
        Some(Cached { revision, entries })
    }

    fn import_cache(&self, Cached { revision, entries }: Cached) {
        let objects = entries.iter().filter_map(from_cached).collect();
        self.mirror.replace(cluster::Snapshot { objects, revision: cluster::Revision(revision.0) });
    }

    fn node_name(&self) -> Option<&str> {
        Some(self.name())
    }

    fn set_node_name(&self, name: &str) {
        self.node_name.get_or_init(|| name.to_owned());
    }

    fn look_up_node_name(&self) -> BoxFuture<'_, Result<Option<String>, AcquireError>> {
        Box::pin(self.find_node_of_pod())
    }

    fn own_node(&self) -> Result<OwnNode, AcquireError> {
        let node = self.own_object()?;
        let overwrites = self.annotation_prefix.overwrites(&node.annotations);
        Ok(OwnNode {
            internal: node.internal_ips.iter().filter_map(|ip| ip.parse().ok()).collect(),
            overwrites: overwrites.map_err(|error| AcquireError::NotYet(error.to_string()))?,
        })
    }

    /// Kubernetes schedules no pods on a node until this condition is `False`.
    fn set_network_available(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            if !self.sets_condition {
                return Ok(());
            }
            Ok(self.cluster.set_condition(self.name(), &network_available()).await?)
        })
    }

    fn pools(&self, _conf: &RawNetConf) -> Result<PerFamily<Pool>, DecodeError> {
        Ok(PerFamily::default())
    }

    fn may_keep(&self, _pools: &PerFamily<Pool>, _subnets: &Prefixes) -> bool {
        true
    }

    fn check_capacity(
        &self,
        _pools: &PerFamily<Pool>,
        _public: Addresses,
    ) -> Result<(), AcquireError> {
        Ok(())
    }

    fn saved_lease(&self, saved: &str) -> Option<HeldLease> {
        let held = self.mirror.map(|object| match item(&self.annotation_prefix, object) {
            StoreItem::Node(NodeRecord {
                name,
                revision,
                state: NodeRecordState::Active { lease, .. },
            }) if saved_text(&lease) == saved => {
                Some(HeldLease { name, lease: *lease, revision, is_reservation: true })
            }
            _ => None,
        });
        held.into_iter().flatten().next()
    }

    fn preview(
        &self,
        _saved: Option<Lease>,
        request: &LeaseRequest<'_>,
    ) -> Result<LeasePreview, AcquireError> {
        let before = self.own_object()?;
        let (after, lease) = self.annotate(&before, request.attributes)?;
        let origin = if before == after { LeaseOrigin::Kept } else { LeaseOrigin::Known };
        Ok(LeasePreview { lease, origin, obsolete: Vec::new() })
    }

    fn acquire<'a>(
        &'a self,
        request: &'a LeaseRequest<'a>,
    ) -> BoxFuture<'a, Result<HeldLease, AcquireError>> {
        Box::pin(self.acquire_lease(request.attributes))
    }

    /// `acquire` always finds the node by its name, whatever its addresses are.
    fn renew_with<'a>(
        &'a self,
        _held: &'a HeldLease,
        _request: &'a LeaseRequest<'a>,
    ) -> BoxFuture<'a, Result<Option<HeldLease>, AcquireError>> {
        Box::pin(async { Ok(None) })
    }

    fn renew<'a>(&'a self, held: &'a mut HeldLease) -> BoxFuture<'a, Result<Renewal, Error>> {
        Box::pin(self.renew_lease(held))
    }

    /// The annotations stay: the subnet belongs to the node object, and an administrator decides when it leaves.
    fn release_saved<'a>(
        &'a self,
        _saved: &'a str,
        _dry_run: bool,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async { Ok(false) })
    }
}

/// The node objects of a cluster as a source of peers.
#[derive(Debug)]
struct NodeWatch {
    reflector: Reflector<Node>,
    mirror: Mirror<Node>,
    prefix: AnnotationPrefix,
}

impl NodeWatch {
    fn new(leases: &KubernetesLeases, reflector: Reflector<Node>) -> Self {
        let (mirror, prefix) = (leases.mirror.clone(), leases.annotation_prefix.clone());
        Self { reflector, mirror, prefix }
    }
}

impl PeerSource for NodeWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<(Revision, PeerEvents), Error>> {
        Box::pin(async {
            Ok(match self.reflector.next().await? {
                Update::Changed { events, revision } => {
                    let items =
                        events.iter().map(|event| event_item(&self.prefix, event)).collect();
                    (Revision(revision.0), PeerEvents::Changed(items))
                }
                Update::Replaced { revision } => {
                    let items = self.mirror.map(|object| item(&self.prefix, object));
                    (Revision(revision.0), PeerEvents::All(items))
                }
            })
        })
    }
}

/// Nodes that are too large have no lease and are left out.
fn to_cached(object: &Object<Node>) -> Option<CachedEntry> {
    let node = object.content.as_ref().ok()?;
    Some(CachedEntry {
        key: format!("{CACHE_PREFIX}{}", object.name),
        value: serde_json::to_string(node).ok()?,
        revision: object.revision.0,
        created: object.created,
        expires: false,
    })
}

fn from_cached(cached: &CachedEntry) -> Option<Object<Node>> {
    Some(Object {
        name: cached.key.strip_prefix(CACHE_PREFIX)?.to_owned(),
        revision: cluster::Revision(cached.revision),
        created: cached.created,
        content: Ok(serde_json::from_str(&cached.value).ok()?),
    })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    /// Leases whose mirror has these nodes. Nothing is sent to the server.
    fn leases(objects: Vec<Object<Node>>) -> KubernetesLeases {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let conf = KubernetesConf {
            access: Access::Url("http://192.0.2.1".to_owned()),
            annotation_prefix: AnnotationPrefix::default(),
            node_name: Some("a".to_owned()),
            pod: None,
            net_config: PathBuf::new(),
            sets_condition: true,
        };
        let leases = runtime.block_on(KubernetesLeases::open(conf)).unwrap();
        leases.mirror.replace(cluster::Snapshot { objects, revision: cluster::Revision(9) });
        leases
    }

    fn object(name: &str, node: Node) -> Object<Node> {
        let revision = cluster::Revision(7);
        Object { name: name.to_owned(), revision, created: 3, content: Ok(node) }
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

    fn annotated(cidr: &str) -> (Node, Lease) {
        leases(Vec::new()).annotate(&node(Some(cidr)), &host_gw()).unwrap()
    }

    #[test]
    fn written_annotations_are_read_as_the_same_lease() {
        let (node, lease) = annotated("10.5.1.0/24");
        assert_eq!(node.annotations["flannel.alpha.coreos.com/backend-type"], "host-gw");
        let snapshot = leases(vec![object("a", node)]).last_known().unwrap();
        let [StoreItem::Node(record)] = &snapshot.items[..] else { panic!("{snapshot:?}") };
        assert_eq!((record.name.as_str(), record.revision), ("a", Revision(7)));
        assert_eq!(record.state, NodeRecordState::Active { since: 3, lease: Box::new(lease) });
    }

    #[test]
    fn node_without_annotations_or_cidr_has_no_lease() {
        let state = |node: Node| match item(&AnnotationPrefix::default(), &object("b", node)) {
            StoreItem::Node(record) => record.state,
            other => panic!("{other:?}"),
        };
        assert_eq!(state(node(Some("10.5.1.0/24"))), NodeRecordState::Removed);
        let (annotated, _) = annotated("10.5.1.0/24");
        let without_cidr = Node { pod_cidrs: Vec::new(), ..annotated.clone() };
        assert_eq!(state(without_cidr), NodeRecordState::Removed);
        let mut bad = annotated;
        bad.annotations.insert("flannel.alpha.coreos.com/public-ip".into(), "x".into());
        assert!(
            matches!(state(bad), NodeRecordState::Invalid(reason) if reason.contains("public-ip"))
        );
    }

    #[test]
    fn missing_node_and_missing_cidr_are_named() {
        let error = leases(Vec::new()).own_node().unwrap_err().to_string();
        assert!(error.contains("no node \"a\""), "{error}");
        let error = leases(Vec::new()).annotate(&node(None), &host_gw()).unwrap_err().to_string();
        assert!(error.contains("has no podCIDR yet"), "{error}");
    }

    #[test]
    fn own_node_has_addresses_of_cluster_and_admin() {
        let mut own = node(None);
        own.annotations
            .insert("flannel.alpha.coreos.com/public-ip-overwrite".into(), "8.8.8.8".into());
        let own = leases(vec![object("a", own)]).own_node().unwrap();
        assert_eq!(own.internal, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(own.overwrites.public.v4, Some([8, 8, 8, 8].into()));
    }

    #[test]
    fn cache_keeps_nodes_and_the_saved_lease() {
        let (node, lease) = annotated("10.5.1.0/24");
        let before = leases(vec![object("a", node)]);
        let cached = before.export_cache().unwrap();
        assert_eq!(cached.entries[0].key, "nodes/a");
        let after = leases(Vec::new());
        after.import_cache(cached);
        assert_eq!(after.last_known(), before.last_known());
        let held = after.saved_lease(&saved_text(&lease)).unwrap();
        assert_eq!((held.name.as_str(), held.is_reservation), ("a", true));
        assert_eq!(after.saved_lease("10.5.9.0-24 {}\n"), None);
    }
}
