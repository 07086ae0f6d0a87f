// SPDX-License-Identifier: Apache-2.0
//! The stores, each by the same suite and then by what is its own. What they have written is looked at
//! with `etcdctl`, `kubectl` and `sqlite3`.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

mod embedded;
mod embedded_damage;
mod etcd;
mod etcd_faults;
mod etcd_secure;
mod lab;
mod limits;
mod processes;
mod server;
mod suite;
mod suite_ttl;
mod suite_watch;
