// SPDX-License-Identifier: Apache-2.0
//! Objects of any kind: conditional writes, selected lists, and kinds that do not exist.

use cluster::{
    Cluster, Error, Event, Followed, Follower, Json, Metadata, Resource, Revision, Write,
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::server::{LONG, admin, block_on, with_server};

const MAPS: &str = "/api/v1/namespaces/one/configmaps";

fn map(name: &str, text: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"a": "b"}},
        "data": {"text": text},
    })
}

async fn stored(cluster: &Cluster, name: &str) -> Option<(Revision, Value)> {
    let object = cluster.get_json(MAPS, name).await.unwrap()?;
    Some((object.metadata().revision(), object.into_value()["data"]["text"].take()))
}

#[test]
fn write_needs_the_newest_revision() {
    with_server(&[], |server| {
        server.kubectl(&["create", "namespace", "one"]);
        block_on(async {
            let cluster = admin(server).await;
            let Write::Done(first) = cluster.create(MAPS, &map("m", "1")).await.unwrap() else {
                panic!("there is no such object");
            };
            assert_eq!(cluster.create(MAPS, &map("m", "2")).await.unwrap(), Write::Conflict);
            let second = cluster.replace(MAPS, "m", map("m", "2"), first).await.unwrap();
            let Write::Done(second) = second else { panic!("nobody else writes") };
            assert!(second > first);
            let stale = cluster.replace(MAPS, "m", map("m", "3"), first).await.unwrap();
            assert_eq!(stale, Write::Conflict);
            assert!(!cluster.delete(MAPS, "m", first).await.unwrap());
            assert_eq!(stored(&cluster, "m").await, Some((second, json!("2"))));
            assert!(cluster.delete(MAPS, "m", second).await.unwrap());
            assert_eq!(stored(&cluster, "m").await, None);

            assert!(!cluster.delete(MAPS, "m", second).await.unwrap());
            let gone = cluster.replace(MAPS, "m", map("m", "4"), second).await.unwrap();
            assert_eq!(gone, Write::Conflict);
            cluster.create(MAPS, &map("m", "5")).await.unwrap();
            // Another object of the same name.
            assert!(!cluster.delete(MAPS, "m", second).await.unwrap());
            let error = cluster.create(MAPS, &map("M/../x", "6")).await.unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");
            let error = cluster.get_json(MAPS, "../secrets").await.unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        });
    });
}

/// Config maps of one name, in all namespaces.
#[derive(Debug, Clone, PartialEq)]
struct Map(Value);

impl Resource for Map {
    type Wire = Json;
    type Keep = String;

    const PATH: &'static str = "/api/v1/configmaps";

    fn field_selector(name: &String) -> Option<String> {
        Some(format!("metadata.name={name}"))
    }

    fn metadata(wire: &Json) -> &Metadata {
        wire.metadata()
    }

    fn trim(wire: Json, _keep: &String) -> Self {
        Self(wire.into_value()["data"]["text"].take())
    }

    fn size(&self) -> usize {
        self.0.to_string().len()
    }
}

#[test]
fn lists_and_watches_have_only_selected_objects() {
    with_server(&[], |server| {
        server.kubectl(&["create", "namespace", "one"]);
        server.kubectl(&["create", "namespace", "other"]);
        block_on(async {
            let cluster = admin(server).await;
            for name in ["m", "n"] {
                cluster.create(MAPS, &map(name, "1")).await.unwrap();
            }
            let keep = "m".to_owned();
            let listed = cluster.list::<Map>(&keep).await.unwrap();
            let names: Vec<_> = listed.objects.iter().map(|object| &object.name).collect();
            assert_eq!(names, ["one/m"]);
            let found = cluster.get_in::<Map>("one", "m", &keep).await.unwrap().unwrap();
            assert_eq!(found, listed.objects[0]);
            assert_eq!(cluster.get_in::<Map>("other", "m", &keep).await.unwrap(), None);

            let mut follower = Follower::<Map>::resume(cluster.clone(), keep, listed.revision);
            let path = MAPS.replace("one", "other");
            cluster.create(&path, &map("n", "2")).await.unwrap();
            cluster.create(&path, &map("m", "3")).await.unwrap();
            let followed = timeout(LONG, follower.next()).await.unwrap().unwrap();
            let Followed::Changed { events, .. } = followed else { panic!("{followed:?}") };
            let [Event::Applied(object)] = &events[..] else { panic!("{events:?}") };
            assert_eq!((object.name.as_str(), &object.content), ("other/m", &Ok(Map(json!("3")))));
        });
    });
}

#[derive(Debug, Clone, PartialEq)]
struct Missing;

impl Resource for Missing {
    type Wire = Json;
    type Keep = ();

    const PATH: &'static str = "/apis/crd.projectcalico.org/v1/ippools";

    fn metadata(wire: &Json) -> &Metadata {
        wire.metadata()
    }

    fn trim(_wire: Json, _keep: &()) -> Self {
        Self
    }

    fn size(&self) -> usize {
        0
    }
}

#[test]
fn kind_without_definition_is_named() {
    with_server(&[], |server| {
        block_on(async {
            let cluster = admin(server).await;
            let error = cluster.list::<Missing>(&()).await.unwrap_err();
            assert!(matches!(error, Error::UnknownKind { .. }), "{error:?}");
            assert!(error.to_string().contains(Missing::PATH), "{error}");
        });
    });
}
