// SPDX-License-Identifier: Apache-2.0
//! Container runtimes as users run them, configured as docs/clients.md says, with our plugins where
//! the Go plugins would be. Each test has a node of its own, and a machine outside.

mod containerd;
mod cri;
mod image;
mod node;
mod nomad;
mod podman;
