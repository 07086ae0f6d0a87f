// SPDX-License-Identifier: Apache-2.0
//! portmap: real connections to mapped ports, ownership of ports, and cleanup.

mod backend;
mod conditions;
mod lab;
mod life;
mod owners;
mod traffic;
