// SPDX-License-Identifier: Apache-2.0
<<<<<<< HEAD
//! The agent's parts against the real kernel and real clients, each test in namespaces of its own,
//! looked at with outside tools.

mod blackhole;
mod path;
mod reconcile;
mod rules;
mod serve;
mod served;
