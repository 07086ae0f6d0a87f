// SPDX-License-Identifier: Apache-2.0
//! A store in memory that keeps Calico's JSON and compares revisions.

use std::collections::BTreeMap;

use ipam::block::Block;
use ipam::calico::{Key, Object, etcd};
use ipam::node::{Content, Outcome, Revision, StoreOp, Stored, Verb};

#[derive(Debug, Default)]
pub struct Store {
    objects: BTreeMap<String, (Revision, Vec<u8>)>,
    revision: u64,
    /// All changes of blocks and affinities, for watches.
    pub log: Vec<Stored>,
}

impl Store {
    pub fn apply(&mut self, op: &StoreOp) -> Outcome {
        let path = etcd::key(&op.key);
        let current = self.objects.get(&path).map(|(revision, _)| *revision);
        let (expected, object) = match &op.verb {
            Verb::Read => return Outcome::Current(self.read(&op.key).map(Box::new)),
            Verb::Create(object) => (None, Some(object)),
            Verb::Replace(revision, object) => (Some(*revision), Some(object)),
            Verb::Delete(revision) => (Some(*revision), None),
        };
        if current != expected {
            return Outcome::Current(self.read(&op.key).map(Box::new));
        }
        Outcome::Done(self.put(&op.key, object))
    }

    pub fn put(&mut self, key: &Key, object: Option<&Object>) -> Revision {
        self.revision += 1;
        let revision = Revision(self.revision);
        let path = etcd::key(key);
        match object {
            Some(object) => self.objects.insert(path, (revision, etcd::value(key, object))),
            None => self.objects.remove(&path),
        };
        if matches!(key, Key::Block(_) | Key::Affinity { .. }) {
            let deleted = Stored { key: key.clone(), revision, content: Content::Deleted };
            self.log.push(self.read(key).unwrap_or(deleted));
        }
        revision
    }

    pub fn read(&self, key: &Key) -> Option<Stored> {
        let (revision, value) = self.objects.get(&etcd::key(key))?;
        let object = etcd::parse(key, value).unwrap();
        Some(Stored { key: key.clone(), revision: *revision, content: Content::Object(object) })
    }

    pub fn revision(&self) -> Revision {
        Revision(self.revision)
    }

    fn all(&self) -> impl Iterator<Item = Stored> {
        let keys = self.objects.keys().map(|path| etcd::parse_key(path).unwrap());
        keys.map(|key| self.read(&key).unwrap())
    }

    /// Lists blocks and affinities.
    pub fn list(&self) -> Vec<Stored> {
        let listed = |key: &Key| matches!(key, Key::Block(_) | Key::Affinity { .. });
        self.all().filter(|stored| listed(&stored.key)).collect()
    }

    pub fn objects(&self) -> impl Iterator<Item = (Key, Revision, Object)> {
        self.all().map(|stored| match stored.content {
            Content::Object(object) => (stored.key, stored.revision, object),
            _ => unreachable!("the store contains only valid objects"),
        })
    }

    pub fn blocks(&self) -> impl Iterator<Item = (Revision, Block)> {
        self.objects().filter_map(|(_, revision, object)| match object {
            Object::Block(block) => Some((revision, block)),
            _ => None,
        })
    }
}
