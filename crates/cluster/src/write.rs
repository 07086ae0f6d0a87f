// SPDX-License-Identifier: Apache-2.0
//! Objects of any kind as JSON: read one, create, replace and delete on condition.

use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::Request;
use kube::core::params::GetParams;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::client::{Attempt, check_name};
use crate::failure::{Failure, FailureKind};
use crate::object::Metadata;
use crate::{Cluster, Result, Revision, Write};

/// An object as the server sent it, without the list of the writers of each field (`managedFields`).
///
/// A [`Resource`](crate::Resource) that needs fields which it does not know has this type as `Wire`.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub struct Json {
    metadata: Metadata,
    value: Value,
}

/// The decoded part of the answer to a write.
#[derive(Debug, Deserialize)]
struct Written {
    metadata: Metadata,
}

impl TryFrom<Value> for Json {
    type Error = serde_json::Error;

    fn try_from(mut value: Value) -> serde_json::Result<Self> {
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let metadata = match value.get("metadata") {
            Some(metadata) => Metadata::deserialize(metadata)?,
            None => Metadata::default(),
        };
        Ok(Self { metadata, value })
    }
}

impl Json {
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub fn into_value(self) -> Value {
        self.value
    }
}

/// `collection` is the path of a collection in the API, such as `/apis/crd.projectcalico.org/v1/ippools`.
impl Cluster {
    /// Returns an object, if it exists.
    pub async fn get_json(&self, collection: &str, name: &str) -> Result<Option<Json>> {
        check_name(name)?;
        let request = Request::new(collection).get(name, &GetParams::default());
        match self.send(request).await {
            Ok(object) => Ok(Some(object)),
            Err(Failure { kind: FailureKind::NotFound, .. }) => Ok(None),
            Err(failure) => Err(self.read_error(failure)),
        }
    }

    /// Creates an object. [`Write::Conflict`] says that an object with this name exists.
    pub async fn create(&self, collection: &str, object: &Value) -> Result<Write> {
        let request = Request::new(collection).create(&PostParams::default(), to_bytes(object));
        match self.send(request).await {
            Ok(Written { metadata }) => Ok(Write::Done(metadata.revision())),
            Err(Failure { kind: FailureKind::Conflict, .. }) => Ok(Write::Conflict),
            Err(failure) => Err(self.write_error(failure, described(collection, object))),
        }
    }

    /// Replaces an object if it has the expected revision, whatever revision is in `object`.
    pub async fn replace(
        &self,
        collection: &str,
        name: &str,
        mut object: Value,
        expected: Revision,
    ) -> Result<Write> {
        check_name(name)?;
        object["metadata"]["resourceVersion"] = expected.to_string().into();
        let (params, bytes) = (PostParams::default(), to_bytes(&object));
        match self.send(Request::new(collection).replace(name, &params, bytes)).await {
            Ok(Written { metadata }) => Ok(Write::Done(metadata.revision())),
            Err(failure) if is_conflict(&failure) => Ok(Write::Conflict),
            Err(failure) => Err(self.write_error(failure, described(collection, &object))),
        }
    }

    /// Deletes an object if it has the expected revision. Returns `false` if it does not exist or has changed. An
    /// object that was deleted and created again has another revision, so no UID is compared.
    pub async fn delete(&self, collection: &str, name: &str, expected: Revision) -> Result<bool> {
        check_name(name)?;
        let preconditions =
            Preconditions { resource_version: Some(expected.to_string()), uid: None };
        let params = DeleteParams::default().preconditions(preconditions);
        let deleted: Attempt<IgnoredAny> =
            self.send(Request::new(collection).delete(name, &params)).await;
        match deleted {
            Ok(_) => Ok(true),
            Err(failure) if is_conflict(&failure) => Ok(false),
            Err(failure) => Err(self.write_error(failure, format!("{collection}/{name}"))),
        }
    }
}

fn is_conflict(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::Conflict | FailureKind::NotFound)
}

fn described(collection: &str, object: &Value) -> String {
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    format!("{collection}/{name}")
}

fn to_bytes(object: &Value) -> Vec<u8> {
    object.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn object_is_kept_except_for_the_list_of_writers() {
        let text = r#"{"kind":"A","metadata":{"name":"a","resourceVersion":"7","uid":"u",
            "managedFields":[{"manager":"m"}],"labels":{"l":"1"}},"spec":{"new":[1]}}"#;
        let object: Json = serde_json::from_str(text).unwrap();
        assert_eq!((object.metadata().name(), object.metadata().revision().0), ("a".into(), 7));
        assert_eq!(object.metadata().labels["l"], "1");
        let expected = json!({"kind": "A", "spec": {"new": [1]}, "metadata":
            {"name": "a", "resourceVersion": "7", "uid": "u", "labels": {"l": "1"}}});
        assert_eq!(object.into_value(), expected);
        assert!(serde_json::from_str::<Json>(r#"{"metadata":{"name":1}}"#).is_err());
    }
}
