// SPDX-License-Identifier: Apache-2.0
//! Real container runtimes, configured as described in docs/clients.md, with podwire installed in
//! place of the Go plugins. Each test has its own node and an outside machine.

mod containerd;
mod cri;
mod image;
mod node;
mod nomad;
mod podman;
