// SPDX-License-Identifier: Apache-2.0
//! Makes the kernel what the plan of the network wants, and keeps it so. [`Reconciler`] reads, compares and
//! changes; [`KernelThread`] runs one on a thread of its own, hears of changes that others make, and
//! repairs. Nothing here waits for the network or a store.
//!
//! What exists is read by name, device and protocol, so that it costs nothing that pods have
//! interfaces and routes; once, when a reconciler is opened, all links are listed, as devices of an
//! earlier configuration are found by their mark alone.

mod apply;
mod carrier;
mod found;
mod interest;
mod numbers;
mod on_link;
mod outcome;
mod public_key;
mod reconciler;
mod schedule;
mod thread;
mod translate;
mod wanting;

pub(crate) use self::found::complete;
pub use self::interest::Nudge;
pub use self::outcome::{Failure, Outcome};
pub use self::public_key::public_key;
pub use self::reconciler::{Options, Reconciler, Secrets};
pub use self::thread::{KernelThread, Report, StartError, Stopped};
pub use self::wanting::PeerUpdate;
