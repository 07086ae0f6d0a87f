// SPDX-License-Identifier: Apache-2.0
//! Tests of both stores: a shared suite, and tests of each one. `etcdctl` and `sqlite3` are the oracles for writes.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]
#![expect(unreachable_pub, reason = "a test program has no users")]

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
