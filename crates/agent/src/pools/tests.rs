// SPDX-License-Identifier: Apache-2.0
//! Controllers of many nodes on one etcd.

mod crowd;
mod history;
mod machine;
mod requests;
