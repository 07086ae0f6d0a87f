// SPDX-License-Identifier: Apache-2.0
//! The suite's keys and values in words that Kubernetes takes: a key becomes the name of a node, in
//! digits that keep prefixes and order, and a value one annotation.

use std::sync::Arc;
use std::time::Duration;

use store::kubernetes::{Kubernetes, Node};
use store::{Answer, Entry, Event, Revision, Snapshot, Store, Watch, Watched, Written};

use crate::api_server::PREFIX;

/// A store that speaks the suite's words.
#[derive(Debug)]
pub struct Worded(pub Arc<dyn Store>);

#[derive(Debug)]
struct WordedWatch(Box<dyn Watch>);

pub fn key_of(word: &str) -> String {
    // What no store takes is to be refused as it is.
    if word.is_empty() || word.contains('\0') { word.to_owned() } else { folder(word) }
}

fn prefix_of(word: &str) -> String {
    if word.is_empty() { String::new() } else { folder(word) }
}

fn folder(word: &str) -> String {
    Kubernetes::key(&digits(word.as_bytes()))
}

pub fn word_of(key: &str) -> String {
    String::from_utf8(bytes(key.strip_prefix("nodes/").unwrap())).unwrap()
}

fn value_of(word: &[u8]) -> Vec<u8> {
    let annotations = [(format!("{PREFIX}backend-data"), digits(word))].into();
    Node { annotations, ..Node::default() }.write()
}

fn word_of_value(value: &[u8]) -> Vec<u8> {
    bytes(&Node::read(value).unwrap().annotations[&format!("{PREFIX}backend-data")])
}

pub fn digits(word: &[u8]) -> String {
    word.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn bytes(digits: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn entry(mut entry: Entry) -> Entry {
    entry.key = word_of(&entry.key);
    entry.value = word_of_value(&entry.value);
    entry
}

fn event(event: Event) -> Event {
    match event {
        Event::Put(put) => Event::Put(entry(put)),
        Event::Deleted { key, revision } => Event::Deleted { key: word_of(&key), revision },
    }
}

fn written(written: Written) -> Written {
    match written {
        Written::Conflict(present) => Written::Conflict(present.map(entry)),
        done => done,
    }
}

impl Store for Worded {
    fn get<'a>(&'a self, key: &'a str) -> Answer<'a, Option<Entry>> {
        Box::pin(async move { Ok(self.0.get(&key_of(key)).await?.map(entry)) })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Answer<'a, Snapshot> {
        Box::pin(async move {
            let Snapshot { entries, revision } = self.0.list(&prefix_of(prefix)).await?;
            Ok(Snapshot { entries: entries.into_iter().map(entry).collect(), revision })
        })
    }

    fn watch(&self, prefix: &str, after: Revision) -> Box<dyn Watch> {
        Box::new(WordedWatch(self.0.watch(&prefix_of(prefix), after)))
    }

    fn create<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        ttl: Option<Duration>,
    ) -> Answer<'a, Written> {
        Box::pin(
            async move { self.0.create(&key_of(key), &value_of(value), ttl).await.map(written) },
        )
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        expected: Revision,
        ttl: Option<Duration>,
    ) -> Answer<'a, Written> {
        Box::pin(async move {
            self.0.swap(&key_of(key), &value_of(value), expected, ttl).await.map(written)
        })
    }

    fn keep<'a>(&'a self, key: &'a str, expected: Revision) -> Answer<'a, Written> {
        Box::pin(async move { self.0.keep(&key_of(key), expected).await.map(written) })
    }

    fn delete<'a>(&'a self, key: &'a str, expected: Option<Revision>) -> Answer<'a, Written> {
        Box::pin(async move { self.0.delete(&key_of(key), expected).await.map(written) })
    }
}

impl Watch for WordedWatch {
    fn next(&mut self) -> Answer<'_, Watched> {
        Box::pin(async move {
            Ok(match self.0.next().await? {
                Watched::Changes { events, revision } => {
                    let events = events.into_iter().map(event).collect();
                    Watched::Changes { events, revision }
                }
                Watched::Compacted => Watched::Compacted,
            })
        })
    }
}
