// SPDX-License-Identifier: Apache-2.0
//! Calico's objects in Kubernetes, as Calico stores them there: custom resources of the group
//! `crd.projectcalico.org`, and annotations of nodes.

mod kinds;
mod watch;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cluster::{Cluster, Condition, Write};
use ipam::calico::{Key, Object, crd};
use ipam::node::{Content, Outcome, Revision, Verb};
use text::ErrorChain;

use self::kinds::{
    Affinities, Blocks, CalicoNode, Configs, HandleId, Parsed, Pools, Reservations, StoredKind,
};
use self::watch::{Following, KubernetesWatch};
use super::objects::{BoxFuture, HandleListing, Listed, ObjectStore, ObjectWatch};
use crate::lease::{KubernetesConf, OwnNode};

/// The objects in one cluster.
#[derive(Debug)]
pub(crate) struct KubernetesObjects {
    cluster: Cluster,
    conf: KubernetesConf,
    node_name: OnceLock<String>,
    /// Addresses of this node in the cluster, as last seen.
    own: Arc<Mutex<Option<OwnNode>>>,
}

impl KubernetesObjects {
    pub(crate) fn new(cluster: Cluster, conf: KubernetesConf) -> Self {
        let node_name = conf.node_name.clone().map(OnceLock::from).unwrap_or_default();
        Self { cluster, conf, node_name, own: Arc::default() }
    }

    /// Empty until the name was looked up.
    fn name(&self) -> &str {
        self.node_name.get().map_or("", String::as_str)
    }

    fn missing_node(&self, name: &str) -> String {
        format!(
            "the cluster has no node {name:?}: set NODE_NAME or --node-name to the name of this node"
        )
    }

    async fn list_kind<R: StoredKind>(
        &self,
        keep: &R::Keep,
        listed: &mut Listed,
        seen: impl Fn(&cluster::Object<R>),
    ) -> Result<(), String> {
        let snapshot = self.cluster.list::<R>(keep).await.map_err(|error| list_error(&error))?;
        snapshot.objects.iter().for_each(seen);
        listed.objects.extend(snapshot.objects.into_iter().filter_map(R::stored));
        listed.revisions.push(snapshot.revision.0);
        Ok(())
    }

    /// Lists the kinds in the order in which [`ObjectStore::watch`] expects their revisions.
    async fn list_all(&self) -> Result<Listed, String> {
        let mut listed = Listed::default();
        self.list_kind::<Parsed<Pools>>(&(), &mut listed, |_| {}).await?;
        self.list_kind::<Parsed<Reservations>>(&(), &mut listed, |_| {}).await?;
        self.list_kind::<Parsed<Configs>>(&(), &mut listed, |_| {}).await?;
        self.list_kind::<CalicoNode>(&self.name().to_owned(), &mut listed, self.observer()).await?;
        self.list_kind::<Parsed<Blocks>>(&(), &mut listed, |_| {}).await?;
        self.list_kind::<Parsed<Affinities>>(&(), &mut listed, |_| {}).await?;
        Ok(listed)
    }

    async fn try_list_handles(&self) -> cluster::Result<HandleListing> {
        let handles = self.cluster.list::<HandleId>(&()).await?.objects.into_iter();
        let handles = handles.filter_map(|object| {
            let HandleId(id) = object.content.ok()?;
            // A handle without an ID was not written by a program that knows handles.
            (!id.is_empty()).then_some((id, Revision(object.revision.0)))
        });
        let handles = handles.collect();
        let blocks = self.cluster.list::<Parsed<Blocks>>(&()).await?.objects.into_iter();
        let blocks = blocks.filter_map(|object| match Parsed::stored(object)?.content {
            Content::Object(Object::Block(block)) => Some(block),
            _ => None,
        });
        Ok(HandleListing { handles, blocks: blocks.collect() })
    }

    /// Returns a function that remembers the addresses of this node when it sees its object.
    fn observer(&self) -> impl Fn(&cluster::Object<CalicoNode>) + Send + 'static {
        let (own, name) = (Arc::clone(&self.own), self.name().to_owned());
        move |object| {
            if object.name != name {
                return;
            }
            if let Ok(node) = &object.content {
                let node = OwnNode { internal: node.internal.clone(), ..OwnNode::default() };
                *own.lock().unwrap_or_else(PoisonError::into_inner) = Some(node);
            }
        }
    }

    async fn try_perform(&self, key: &Key, verb: &Verb) -> cluster::Result<Outcome> {
        let Some(kind) = crd::Kind::of(key) else {
            return self.write_node(key, verb).await;
        };
        let (collection, name) = (kinds::collection(kind), crd::name(key));
        if kind == crd::Kind::Handle && !cluster::is_name(&name) {
            return Ok(unstored(verb));
        }
        let written = match verb {
            Verb::Read => Write::Conflict,
            Verb::Create(object) => {
                self.cluster.create(&collection, &custom_resource(key, object)?).await?
            }
            Verb::Replace(at, object) => {
                let (object, at) = (custom_resource(key, object)?, cluster::Revision(at.0));
                self.cluster.replace(&collection, &name, object, at).await?
            }
            Verb::Delete(at) => {
                let is_deleted =
                    self.cluster.delete(&collection, &name, cluster::Revision(at.0)).await?;
                // The server does not tell the deletion's revision, which is greater than the object's.
                if is_deleted { Write::Done(cluster::Revision(at.0 + 1)) } else { Write::Conflict }
            }
        };
        match written {
            Write::Done(revision) => Ok(Outcome::Done(Revision(revision.0))),
            Write::Conflict => {
                let object = self.cluster.get_json(&collection, &name).await?;
                let current = object.map(|object| kinds::read(kind, key, object));
                Ok(Outcome::Current(current.map(Box::new)))
            }
        }
    }

    /// Writes the annotations of a node. Only Kubernetes creates and deletes nodes.
    async fn write_node(&self, key: &Key, verb: &Verb) -> cluster::Result<Outcome> {
        let Key::Node(name) = key else { return Ok(Outcome::Current(None)) };
        let (object, expected) = match verb {
            Verb::Replace(at, object) => (object, cluster::Revision(at.0)),
            Verb::Create(object) => {
                let present = self.cluster.get::<CalicoNode>(name, &self.name().to_owned()).await?;
                match present {
                    Some(present) => (object, present.revision),
                    None => return Ok(Outcome::Unreachable(self.missing_node(name))),
                }
            }
            Verb::Read | Verb::Delete(_) => return self.current_node(name).await,
        };
        let Object::Node(node) = object else { return self.current_node(name).await };
        let annotations = node.annotations().into_iter();
        let annotations = annotations.map(|(name, text)| (name.to_owned(), text)).collect();
        match (self.cluster.annotate_node(name, &annotations, expected).await?, verb) {
            (Write::Done(revision), Verb::Replace(..)) => Ok(Outcome::Done(Revision(revision.0))),
            // The node has labels, which `object` does not have.
            (Write::Done(_), _) | (Write::Conflict, _) => self.current_node(name).await,
        }
    }

    async fn current_node(&self, name: &str) -> cluster::Result<Outcome> {
        let node = self.cluster.get::<CalicoNode>(name, &self.name().to_owned()).await?;
        Ok(Outcome::Current(node.and_then(CalicoNode::stored).map(Box::new)))
    }

    async fn find_own_node(&self) -> Result<OwnNode, String> {
        let known = self.own.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known {
            return Ok(known);
        }
        let name = self.name().to_owned();
        let found = self.cluster.get::<CalicoNode>(&name, &name).await;
        let found = found.map_err(|error| ErrorChain(&error).to_string())?;
        let found = found.ok_or_else(|| self.missing_node(&name))?;
        self.observer()(&found);
        let internal = found.content.map(|node| node.internal).unwrap_or_default();
        Ok(OwnNode { internal, ..OwnNode::default() })
    }

    async fn find_node_name(&self) -> Result<Option<String>, String> {
        if let Some(name) = self.node_name.get() {
            return Ok(Some(name.clone()));
        }
        let Some((namespace, pod)) = &self.conf.pod else { return Ok(None) };
        let found = self.cluster.node_of_pod(namespace, pod).await;
        match found.map_err(|error| ErrorChain(&error).to_string())? {
            Some(name) => Ok(Some(self.node_name.get_or_init(|| name).clone())),
            None => Err(format!("the agent's own pod {namespace}/{pod} runs on no node")),
        }
    }
}

/// Returns the outcome for a handle whose name Kubernetes does not allow, for example of a network with `_` in its
/// name. Only other programs need handles, so such a handle is not stored, and pods start all the same.
fn unstored(verb: &Verb) -> Outcome {
    match verb {
        Verb::Read => Outcome::Current(None),
        Verb::Create(_) => Outcome::Done(Revision(1)),
        Verb::Replace(at, _) | Verb::Delete(at) => Outcome::Done(Revision(at.0 + 1)),
    }
}

fn list_error(error: &cluster::Error) -> String {
    let hint = match error {
        cluster::Error::UnknownKind { .. } => {
            ": apply the custom resource definitions, deploy/kubernetes/calico-crds.yaml"
        }
        _ => "",
    };
    format!("{}{hint}", ErrorChain(error))
}

fn custom_resource(key: &Key, object: &Object) -> cluster::Result<serde_json::Value> {
    let invalid = || cluster::Error::Invalid(format!("{key} is no custom resource"));
    crd::value(key, object).ok_or_else(invalid)
}

impl ObjectStore for KubernetesObjects {
    fn list(&self) -> BoxFuture<'_, Result<Listed, String>> {
        Box::pin(self.list_all())
    }

    fn watch(&self, after: &Listed) -> Box<dyn ObjectWatch> {
        let kind_of = |key: &Key| crd::Kind::of(key);
        let keys = |kind: Option<crd::Kind>| {
            after.objects.iter().map(|stored| &stored.key).filter(move |key| kind_of(key) == kind)
        };
        let revision = |at: usize| after.revisions.get(at).copied().unwrap_or_default();
        let cluster = &self.cluster;
        macro_rules! following {
            ($kind:ident, $at:literal) => {{
                let keys = keys(Some(<$kind as kinds::Custom>::KIND));
                Box::new(Following::<Parsed<$kind>>::new(cluster, (), keys, revision($at), |_| {}))
            }};
        }
        let nodes = keys(None);
        Box::new(KubernetesWatch::new(vec![
            following!(Pools, 0),
            following!(Reservations, 1),
            following!(Configs, 2),
            Box::new(Following::<CalicoNode>::new(
                cluster,
                self.name().to_owned(),
                nodes,
                revision(3),
                self.observer(),
            )),
            following!(Blocks, 4),
            following!(Affinities, 5),
        ]))
    }

    fn perform<'a>(&'a self, key: &'a Key, verb: &'a Verb) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let performed = self.try_perform(key, verb).await;
            performed.unwrap_or_else(|error| Outcome::Unreachable(ErrorChain(&error).to_string()))
        })
    }

    fn list_handles(&self) -> BoxFuture<'_, Result<Option<HandleListing>, String>> {
        Box::pin(async {
            let listed = self.try_list_handles().await;
            listed.map(Some).map_err(|error| ErrorChain(&error).to_string())
        })
    }

    fn reconnect(&self) {
        self.cluster.reconnect();
    }

    fn node_name(&self) -> BoxFuture<'_, Result<Option<String>, String>> {
        Box::pin(self.find_node_name())
    }

    fn own_node(&self) -> BoxFuture<'_, Result<OwnNode, String>> {
        Box::pin(self.find_own_node())
    }

    fn set_network_available(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async {
            if !self.conf.sets_condition {
                return Ok(());
            }
            let set = self.cluster.set_condition(self.name(), &network_available()).await;
            set.map_err(|error| ErrorChain(&error).to_string())
        })
    }
}

/// Returns the condition that lets Kubernetes schedule pods on a node.
pub(crate) fn network_available() -> Condition {
    Condition {
        kind: "NetworkUnavailable".to_owned(),
        status: "False".to_owned(),
        reason: "PodwireIsUp".to_owned(),
        message: "podwire is running on this node".to_owned(),
    }
}
