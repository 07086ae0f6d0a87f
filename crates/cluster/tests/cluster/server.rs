// SPDX-License-Identifier: Apache-2.0
//! An API server for each test, clients of it, and a view that follows a watch.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use cluster::{
    Access, AnnotationPrefixes, Cluster, Event, Node, Object, Revision, Snapshot, WatchUpdate,
    Watcher, Write,
};
use serde_json::json;
pub use testkit::ApiServer;
use testkit::in_netns;
use tokio::time::timeout;

pub const PREFIX: &str = "flannel.alpha.coreos.com/";

/// Deadline for everything that is expected to happen.
pub const LONG: Duration = Duration::from_secs(30);

pub fn prefixes() -> AnnotationPrefixes {
    AnnotationPrefixes(vec![PREFIX.to_owned()])
}

/// Runs a test in one thread, as the agent does.
pub fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// Runs a test with a server of its own, if a server is available.
pub fn with_server(extra: &[&str], test: impl FnOnce(&mut ApiServer)) {
    let Some(programs) = testkit::kubernetes() else { return };
    in_netns(|| test(&mut ApiServer::start(&programs, "127.0.0.1", extra)));
}

/// Returns a client with the credentials of a pod.
pub async fn client_of(server: &ApiServer, token: &str) -> Cluster {
    let dir = server.dir.path().join(token);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("token"), token).unwrap();
    fs::copy(server.ca(), dir.join("ca.crt")).unwrap();
    Cluster::open(&Access::Pod { url: server.url(), dir }).await.unwrap()
}

pub async fn admin(server: &ApiServer) -> Cluster {
    client_of(server, "admin-token").await
}

/// Creates a node as kubelet registers it.
pub fn register(server: &ApiServer, name: &str) {
    server.create(&json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"},
                     "annotations": {"node.alpha.kubernetes.io/ttl": "0"}},
    }));
}

pub async fn list(cluster: &Cluster) -> Snapshot<Node> {
    cluster.list(&prefixes()).await.unwrap()
}

pub async fn get(cluster: &Cluster, name: &str) -> Object<Node> {
    cluster.get(name, &prefixes()).await.unwrap().unwrap()
}

pub fn watch(cluster: &Cluster, after: Revision) -> Watcher<Node> {
    Watcher::new(cluster.clone(), prefixes(), after)
}

/// Sets one annotation if the node has this revision.
pub async fn annotate(cluster: &Cluster, name: &str, value: &str, expected: Revision) -> Write {
    let changes = [(format!("{PREFIX}public-ip"), Some(value.to_owned()))].into();
    cluster.annotate_node(name, &changes, expected).await.unwrap()
}

/// Sets one annotation, and returns the new revision.
pub async fn set(cluster: &Cluster, name: &str, value: &str) -> Revision {
    let expected = get(cluster, name).await.revision;
    match annotate(cluster, name, value, expected).await {
        Write::Done(revision) => revision,
        Write::Conflict => panic!("{name} has changed"),
    }
}

pub fn value(object: &Object<Node>) -> Option<&str> {
    let node = object.content.as_ref().unwrap();
    node.annotations.get(&format!("{PREFIX}public-ip")).map(String::as_str)
}

/// Waits for the next changes.
pub async fn changes(watcher: &mut Watcher<Node>) -> Vec<Event<Node>> {
    match timeout(LONG, watcher.next()).await {
        Ok(Ok(WatchUpdate::Changes { events, .. })) => events,
        other => panic!("no changes: {other:?}"),
    }
}

/// Waits for the next `count` events.
pub async fn events(watcher: &mut Watcher<Node>, count: usize) -> Vec<Event<Node>> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(changes(watcher).await);
    }
    all
}

/// Names and annotations of all nodes, kept up to date with the events of a watch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct View(pub BTreeMap<String, (Option<String>, Revision)>);

impl View {
    pub async fn list(cluster: &Cluster) -> (Self, Revision) {
        let snapshot = list(cluster).await;
        let mut view = Self::default();
        snapshot.objects.iter().for_each(|object| view.put(object));
        (view, snapshot.revision)
    }

    fn put(&mut self, object: &Object<Node>) {
        self.0.insert(object.name.clone(), (value(object).map(str::to_owned), object.revision));
    }

    /// Applies events, which must come in order and only once. Returns the revision of the last one.
    #[track_caller]
    pub fn apply(&mut self, events: &[Event<Node>], after: Revision) -> Revision {
        let mut last = after;
        for event in events {
            assert!(event.revision() > last, "{event:?} came after {last}");
            last = event.revision();
            match event {
                Event::Applied(object) => self.put(object),
                Event::Deleted { name, .. } => {
                    assert!(self.0.remove(name).is_some(), "{name} is unknown");
                }
            }
        }
        last
    }

    /// Follows a watch until it has reached a revision.
    pub async fn follow(&mut self, watcher: &mut Watcher<Node>, from: Revision, until: Revision) {
        let mut at = from;
        while at < until {
            let events = changes(watcher).await;
            at = self.apply(&events, at);
        }
    }
}
