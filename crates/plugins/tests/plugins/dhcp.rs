// SPDX-License-Identifier: Apache-2.0
//! dhcp and its daemon with two DHCP servers: dnsmasq and Kea.

mod daemon;
mod interfaces;
mod kea;
mod lab;
mod life;

pub use self::lab::network_here;
