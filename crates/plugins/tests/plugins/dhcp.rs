// SPDX-License-Identifier: Apache-2.0
//! dhcp and its daemon against servers of others: dnsmasq and Kea.

mod daemon;
mod interfaces;
mod kea;
mod lab;
mod life;

pub use self::lab::network_here;
