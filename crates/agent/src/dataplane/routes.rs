// SPDX-License-Identifier: Apache-2.0
//! Makes the kernel what the plan of the network wants, and keeps it so. [`Reconciler`] reads, compares and
//! changes; [`RoutesDataplane`] runs one on a thread of its own, hears of changes that others make, and
//! repairs. Nothing here waits for the network or a store.
//!
//! What exists is read by name, device and protocol, so that it costs nothing that pods have
//! interfaces and routes; once, when a reconciler is opened, all links are listed, as devices of an
//! earlier configuration are found by their mark alone.

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

pub use self::wireguard::public_key;
