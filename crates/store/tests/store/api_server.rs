// SPDX-License-Identifier: Apache-2.0
//! An API server of Kubernetes as a lab for the suite, and clients of it.

use std::fs;
use std::sync::Arc;

use store::Store;
use store::kubernetes::{Access, Kubernetes, KubernetesConf};
pub use testkit::ApiServer;
use testkit::in_netns;

use crate::lab::{Lab, Later, block_on};
use crate::server::compact;
use crate::words::{Worded, bytes, word_of};

pub const PREFIX: &str = "flannel.alpha.coreos.com/";

pub fn conf(access: Access) -> KubernetesConf {
    KubernetesConf { access, annotation_prefixes: vec![PREFIX.to_owned()] }
}

/// Let in as pods are.
pub async fn client_of(server: &ApiServer, token: &str) -> Kubernetes {
    let dir = server.dir.path().join(token);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("token"), token).unwrap();
    fs::copy(server.ca(), dir.join("ca.crt")).unwrap();
    Kubernetes::open(&conf(Access::Pod { url: server.url(), dir })).await.unwrap()
}

pub async fn admin(server: &ApiServer) -> Kubernetes {
    client_of(server, "admin-token").await
}

impl Lab for ApiServer {
    fn open(&self) -> Later<'_, Arc<dyn Store>> {
        Box::pin(async {
            let store = Arc::new(admin(self).await);
            Arc::new(Worded(store)) as Arc<dyn Store>
        })
    }

    fn compact(&self) -> Later<'_, ()> {
        Box::pin(async { compact(&self.etcd).await })
    }

    /// A value has a whole node in it, and here there are two digits for a byte.
    fn longest_value(&self) -> usize {
        store::limit::MAX_VALUE / 2 - 500
    }

    fn witness(&self, prefix: &str) -> Vec<(String, String)> {
        let nodes = self.object("/api/v1/nodes");
        let nodes = nodes["items"].as_array().unwrap().iter();
        let found = nodes.map(|node| {
            let name = node["metadata"]["name"].as_str().unwrap();
            let value = &node["metadata"]["annotations"][format!("{PREFIX}backend-data")];
            let value = String::from_utf8(bytes(value.as_str().unwrap())).unwrap();
            (word_of(&Kubernetes::key(name)), value)
        });
        found.filter(|(key, _)| key.starts_with(prefix)).collect()
    }
}

/// Runs a test with a server of its own, if there is one to run.
pub fn with_server(extra: &[&str], test: impl FnOnce(&mut ApiServer)) {
    let Some(programs) = testkit::kubernetes() else { return };
    in_netns(|| test(&mut ApiServer::start(&programs, "127.0.0.1", extra)));
}

/// Runs a test of the suite.
pub fn in_kubernetes(test: impl for<'a> FnOnce(&'a dyn Lab) -> Later<'a, ()>) {
    with_server(&[], |server| block_on(test(server)));
}

/// With a server that remembers no more than its etcd does.
pub fn in_forgetful_kubernetes(test: impl for<'a> FnOnce(&'a dyn Lab) -> Later<'a, ()>) {
    with_server(&["--watch-cache-sizes=nodes#0"], |server| block_on(test(server)));
}
