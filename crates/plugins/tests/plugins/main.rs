// SPDX-License-Identifier: Apache-2.0
//! The plugins as a runtime meets them: real processes, each test in namespaces of its own, next
//! to the Go plugins. What they made is looked at with `ip`, never with our own reader.

mod call;
mod compare;
mod conf;
mod docs;
mod lifecycle;
mod snapshot;
mod world;
