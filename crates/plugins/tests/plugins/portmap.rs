// SPDX-License-Identifier: Apache-2.0
//! portmap: real connections to mapped ports, whose they are, and what is left of them.

mod backend;
mod conditions;
mod lab;
mod life;
mod owners;
mod traffic;
