// SPDX-License-Identifier: Apache-2.0
//! An etcd server as a lab for the suite, and clients of it.

use std::sync::Arc;

use store::Store;
use store::etcd::{Etcd, EtcdConf};
use tempfile::TempDir;
pub use testkit::EtcdServer as Server;
use testkit::{in_netns, require};

use crate::lab::{Lab, LocalFuture, block_on};

/// Returns a client with the endpoints of these servers.
pub fn client(servers: &[&Server]) -> Etcd {
    let endpoints = servers.iter().map(|server| server.endpoint()).collect();
    Etcd::new(&EtcdConf { endpoints, ..EtcdConf::default() }).unwrap()
}

/// A running server and its directory.
pub struct EtcdLab {
    pub server: Server,
    _dir: TempDir,
}

impl EtcdLab {
    pub fn start() -> Self {
        require!(Program("etcd"), Program("etcdctl"));
        let dir = tempfile::tempdir().unwrap();
        let mut server = Server::cluster(dir.path(), 1).remove(0);
        server.start();
        server.wait();
        Self { server, _dir: dir }
    }
}

impl Lab for EtcdLab {
    fn open(&self) -> LocalFuture<'_, Arc<dyn Store>> {
        Box::pin(async { Arc::new(client(&[&self.server])) as Arc<dyn Store> })
    }

    fn compact(&self) -> LocalFuture<'_, ()> {
        Box::pin(async { compact(&self.server).await })
    }

    fn external_entries(&self, prefix: &str) -> Vec<(String, String)> {
        self.server.entries(prefix)
    }
}

/// Drops the history of a server.
pub async fn compact(server: &Server) {
    let now = client(&[server]).list("").await.unwrap().revision;
    server.ctl(&["compact", &now.to_string()]);
}

/// Runs a test of the suite with a server of its own.
pub fn in_etcd(test: impl for<'a> FnOnce(&'a dyn Lab) -> LocalFuture<'a, ()>) {
    in_netns(|| {
        let lab = EtcdLab::start();
        block_on(test(&lab));
    });
}
