// SPDX-License-Identifier: Apache-2.0
//! The dataplane of devices and routes. [`Reconciler`] observes the kernel, compares it with the
//! plan of the network, and applies the difference. [`RoutesDataplane`] runs a reconciler on a
//! thread of its own, listens to netlink events, and repairs. Neither waits for the network or a
//! store.
//!
//! The reconciler reads devices by name, and routes by protocol and device, so that interfaces and
//! routes of pods cost nothing. It lists all links only when it is opened and if a desired device
//! is missing, because a device of an earlier configuration is known only by its alias.

mod apply;
mod events;
mod nexthop_ids;
mod observe;
mod on_link;
mod outcome;
mod plane;
mod reconciler;
mod requests;
mod schedule;
mod target;
mod udp_tunnel;
mod wireguard;

pub use self::events::EventImpact;
pub(crate) use self::observe::complete;
pub use self::outcome::{Failure, Outcome};
pub use self::plane::{Report, RoutesDataplane, RoutesPlane, start, start_with};
pub use self::reconciler::{Options, Reconciler, Secrets};
pub use self::target::PeerUpdate;
pub use self::udp_tunnel::UdpTunnelSlot;
pub use self::wireguard::public_key;
