// SPDX-License-Identifier: Apache-2.0
//! Cleanup of routed pods: this node's object in the store, its files, and the addresses of its routes.

use std::{fs, io};

use ipam::calico::{Key, Object};
use ipam::node::{Content, Outcome, Revision, Stored, Verb};
use ipnet::IpNet;

use super::Cleaner;
use crate::pools::{Journal, Listed, node_name};
use crate::settings::StoreChoice;
use crate::{lease, managed_file};

impl Cleaner<'_> {
    /// Deletes this node in the store, so that the agents of other nodes release its blocks. Returns the networks that
    /// this node's routes lead to. An agent of bridged pods has no journal, and nothing is done.
    pub(super) async fn leave_pools(&mut self) -> Vec<IpNet> {
        let journal = Journal::new(&self.settings.node.state_dir);
        if !journal.directory().exists() {
            return Vec::new();
        }
        if matches!(self.settings.store, StoreChoice::Kubernetes(_)) {
            // The node belongs to the cluster.
            return Vec::new();
        }
        let name = node_name(self.settings);
        if let StoreChoice::Embedded(path) = &self.settings.store
            && !path.exists()
        {
            let path = path.display();
            self.cleaned.left.push(format!(
                "Node {name}: the store {path} does not exist; pass the agent's store with --store-file"
            ));
            return Vec::new();
        }
        let (listed, outcome) = match self.delete_node(&name).await {
            Ok(done) => done,
            Err(error) => {
                self.cleaned.failed.push(format!("delete Node {name}: {error}"));
                return Vec::new();
            }
        };
        match outcome {
            Some(Outcome::Done(_)) => self.done(format_args!("delete Node {name}")),
            Some(Outcome::Unreachable(error)) => {
                self.cleaned.failed.push(format!("delete Node {name}: {error}"));
            }
            Some(Outcome::Current(_)) => {
                self.cleaned.failed.push(format!("delete Node {name}: it was changed: try again"));
            }
            None => {}
        }
        networks(&listed, &name)
    }

    /// Returns the objects in the store, and the outcome if there was a node to delete.
    async fn delete_node(&mut self, name: &str) -> Result<(Listed, Option<Outcome>), String> {
        let opened = lease::open_objects(self.settings).await;
        let (objects, _) = opened.map_err(|error| error.to_string())?;
        let listed = objects.list().await?;
        let outcome = match (revision_of(&listed, name), self.settings.mode.dry_run) {
            (None, _) => None,
            (Some(revision), true) => Some(Outcome::Done(revision)),
            (Some(revision), false) => {
                let key = Key::Node(name.to_owned());
                Some(objects.perform(&key, &Verb::Delete(revision)).await)
            }
        };
        Ok((listed, outcome))
    }

    /// Removes the journal, and Calico's files if they name this node.
    pub(super) fn remove_pool_files(&mut self) {
        let journal = Journal::new(&self.settings.node.state_dir).directory();
        if !journal.exists() {
            return;
        }
        self.remove(&journal, |path| {
            let removed = fs::remove_dir_all(path);
            let named = |error| io::Error::other(format!("remove {}: {error}", path.display()));
            removed.map(|()| true).map_err(named)
        });
        let directory = &self.settings.files.calico;
        let name = directory.join("nodename");
        let written = managed_file::read(&name).ok().flatten();
        if written.is_some_and(|text| text.trim() == node_name(self.settings)) {
            self.remove(&name, managed_file::remove);
            self.remove(&directory.join("mtu"), managed_file::remove);
        }
    }
}

fn revision_of(listed: &Listed, name: &str) -> Option<Revision> {
    let is_node = |stored: &&Stored| matches!(&stored.key, Key::Node(other) if other == name);
    listed.objects.iter().find(is_node).map(|stored| stored.revision)
}

/// Returns the pools, and the blocks of this node.
fn networks(listed: &Listed, name: &str) -> Vec<IpNet> {
    let network = |stored: &Stored| match &stored.content {
        Content::Object(Object::Pool(pool)) => Some(pool.cidr),
        Content::Object(Object::Block(block)) if block.owner() == Some(name) => Some(block.cidr()),
        _ => None,
    };
    listed.objects.iter().filter_map(network).collect()
}
