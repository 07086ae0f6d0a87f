// SPDX-License-Identifier: Apache-2.0
//! Multicast and broadcast between pods of different nodes. Each agent listens to its own pods' bridge, knows by
//! their reports which groups they are in and tells other agents, and sends a copy of each packet to every node
//! that has somebody for it. It goes over the network itself, so that it works with, and is encrypted by, every
//! backend. All nodes together are one link: the hop count stays, and source addresses do.

mod bridge;
mod counts;
mod members;
mod packet;
mod rate;
mod relay;
mod reports;
mod station;
mod wire;

pub use self::counts::{Counts, Loss};
pub use self::relay::Peer;
pub(crate) use self::relay::gateway;
pub use self::station::{Command, run};
pub use self::wire::PORT;
