// SPDX-License-Identifier: Apache-2.0
//! The backends that this node has published: the current one, and the previous one while peers still
//! use it. A file keeps both across restarts, because a changed configuration often reaches
//! an agent by a restart.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use overlay::backend::Backend;
use overlay::lease::{Attributes, Lease};
use overlay::netconf::NetConf;
use overlay::plan::{Network, PreviousBackend, are_distinguishable};
use serde::{Deserialize, Serialize};
use text::ErrorChain;

use crate::managed_file;
use crate::settings::Settings;

/// The current backend and the previous one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Backends {
    current: Option<Published>,
    previous: Option<Published>,
}

/// A configuration, and the lease that this node published with it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Published {
    config: String,
    key: String,
    value: String,
}

/// Without the configuration, which may hold a pre-shared key.
impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Published");
        shown.field("key", &self.key).field("value", &self.value).finish_non_exhaustive()
    }
}

impl Published {
    fn new(config: &str, lease: &Lease) -> Self {
        let (key, value) = (lease.key(), lease.attributes.print());
        Self { config: config.to_owned(), key, value }
    }

    fn conf(&self) -> Option<NetConf> {
        NetConf::parse(&self.config).ok()
    }

    fn backend(&self) -> Option<Backend> {
        self.conf().map(|conf| conf.backend)
    }

    /// As the previous backend of a node with this lease, if both have the same networks and subnets.
    fn previous(&self, conf: &NetConf, lease: &Lease) -> Option<PreviousBackend> {
        let before = self.conf().filter(|before| before.networks == conf.networks)?;
        let attributes = Attributes::parse(self.value.as_bytes()).ok()?;
        let previous = PreviousBackend::new(before.backend, attributes.data, &conf.backend);
        previous.filter(|_| self.key == lease.key())
    }

    fn is_distinguishable(&self, now: &Backend) -> bool {
        self.backend().is_some_and(|before| are_distinguishable(&before, now))
    }
}

impl Backends {
    /// As an earlier process wrote it; empty if the file is missing or invalid.
    pub(crate) fn read(settings: &Settings) -> Self {
        let text = managed_file::read(&backends_file(settings)).unwrap_or_default();
        text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    }

    /// Returns whether the private key of WireGuard is needed.
    pub(crate) fn have_wireguard(&self) -> bool {
        let published = self.current.iter().chain(&self.previous);
        published.filter_map(Published::backend).any(|one| matches!(one, Backend::Wireguard(_)))
    }

    /// Sets the current backend. The earlier one becomes the previous backend if leases differ
    /// between the two.
    fn set(&mut self, config: &str, backend: &Backend, lease: &Lease) {
        let before = self.current.replace(Published::new(config, lease));
        let candidates = [before, self.previous.take()].into_iter().flatten();
        self.previous = candidates.into_iter().find(|one| one.is_distinguishable(backend));
    }

    /// Keeps the previous backend in a network, if there is one. Returns whether it is kept.
    fn keep_previous(&self, network: &mut Network) -> bool {
        let published = self.previous.as_ref();
        let previous = published.and_then(|one| one.previous(network.conf(), network.lease()));
        let backend = published.and_then(Published::backend);
        let (Some(previous), Some(backend)) = (previous, backend) else { return false };
        match network.set_previous_backend(previous) {
            Ok(()) => {
                tracing::info!(backend = backend.name(), "previous backend kept for peers");
                true
            }
            Err(error) => {
                tracing::warn!(error = %ErrorChain(&error), "previous backend cannot be kept");
                false
            }
        }
    }

    /// [`Self::keep_previous`] for a network that would be joined.
    pub(crate) fn preview(&self, config: &str, network: &mut Network) {
        let mut backends = self.clone();
        backends.set(config, &network.conf().backend, network.lease());
        backends.keep_previous(network);
    }
}

/// The backends with their file.
#[derive(Debug)]
pub(super) struct SavedBackends {
    backends: Backends,
    /// The file differs from the state, also after the controller failed between a change and its write.
    is_write_due: bool,
}

impl SavedBackends {
    pub(super) async fn read(settings: &Arc<Settings>) -> Self {
        let settings = Arc::clone(settings);
        let read = managed_file::in_background(move || Backends::read(&settings)).await;
        Self { backends: read.unwrap_or_default(), is_write_due: false }
    }

    /// Notes the backend of a membership.
    pub(super) fn set(&mut self, config: &str, backend: &Backend, lease: &Lease) {
        let before = self.backends.clone();
        self.backends.set(config, backend, lease);
        self.is_write_due |= self.backends != before;
    }

    /// Keeps the previous backend in a network, if there is one. Returns whether it is kept.
    pub(super) fn keep_previous(&self, network: &mut Network) -> bool {
        self.backends.keep_previous(network)
    }

    /// Forgets the previous backend, because no peer uses it.
    pub(super) fn drop_previous(&mut self) {
        self.is_write_due |= self.backends.previous.take().is_some();
    }

    /// Writes the file if it differs. A configuration may contain a pre-shared key.
    pub(super) async fn write_if_due(&mut self, settings: &Settings) {
        if self.is_write_due {
            let text = serde_json::to_string(&self.backends).unwrap_or_default();
            let write = managed_file::write_in_background(backends_file(settings), text, true);
            self.is_write_due = !write.await;
        }
    }
}

/// Path of the file, for this agent's network.
pub(crate) fn backends_file(settings: &Settings) -> PathBuf {
    settings.node.state_dir.join(format!("{}.backends", settings.node.owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VXLAN: &str =
        r#""BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}"#;

    fn lease(subnet: &str, data: &str) -> Lease {
        let value = format!(r#"{{"PublicIP":"192.0.2.1","PublicIPv6":null,{data}}}"#);
        Lease::parse(subnet, value.as_bytes()).unwrap()
    }

    fn conf(network: &str, backend: &str) -> (String, NetConf) {
        let text = format!(r#"{{"Network": "{network}", "Backend": {backend}}}"#);
        let conf = NetConf::parse(&text).unwrap();
        (text, conf)
    }

    /// The controller may fail between the change and the write, and then sets the same backend again.
    #[test]
    fn changed_backends_are_to_be_written_until_they_are() {
        let (text, conf) = conf("10.5.0.0/16", r#"{"Type": "vxlan"}"#);
        let lease = lease("10.5.1.0-24", VXLAN);
        let mut saved = SavedBackends { backends: Backends::default(), is_write_due: false };
        for _ in 0..2 {
            saved.set(&text, &conf.backend, &lease);
            assert!(saved.is_write_due);
        }
        saved.is_write_due = false;
        saved.set(&text, &conf.backend, &lease);
        assert!(!saved.is_write_due, "the same backend");
        saved.drop_previous();
        assert!(!saved.is_write_due, "there is none");
    }

    #[test]
    fn previous_backend_is_kept_while_leases_differ() {
        let vxlan = conf("10.5.0.0/16", r#"{"Type": "vxlan"}"#);
        let wide = conf("10.5.0.0/16", r#"{"Type": "vxlan", "MTU": 1400}"#);
        let host_gw = conf("10.5.0.0/16", r#"{"Type": "host-gw"}"#);
        let (tunnel, plain) =
            (lease("10.5.1.0-24", VXLAN), lease("10.5.1.0-24", r#""BackendType":"host-gw""#));
        let mut backends = Backends::default();
        backends.set(&vxlan.0, &vxlan.1.backend, &tunnel);
        assert_eq!(backends.previous, None);
        backends.set(&host_gw.0, &host_gw.1.backend, &plain);
        let expected = PreviousBackend::new(
            vxlan.1.backend.clone(),
            tunnel.attributes.data.clone(),
            &host_gw.1.backend,
        );
        assert!(expected.is_some());
        let previous = |backends: &Backends, conf: &NetConf, lease: &Lease| {
            backends.previous.as_ref().and_then(|one| one.previous(conf, lease))
        };
        assert_eq!(previous(&backends, &host_gw.1, &plain), expected);
        // The next process reads the same.
        let read: Backends =
            serde_json::from_str(&serde_json::to_string(&backends).unwrap()).unwrap();
        assert_eq!(read, backends);
        // The same configuration again changes nothing.
        backends.set(&host_gw.0, &host_gw.1.backend, &plain);
        assert_eq!(previous(&backends, &host_gw.1, &plain), expected);
        // The previous backend does not serve another subnet or network.
        let moved = lease("10.5.2.0-24", r#""BackendType":"host-gw""#);
        assert_eq!(previous(&backends, &host_gw.1, &moved), None);
        let other = conf("10.6.0.0/16", r#"{"Type": "host-gw"}"#);
        assert_eq!(previous(&backends, &other.1, &plain), None);
        // A change that no lease shows leaves the previous backend as it is.
        backends.set(&vxlan.0, &vxlan.1.backend, &tunnel);
        backends.set(&wide.0, &wide.1.backend, &tunnel);
        let host_gw =
            PreviousBackend::new(host_gw.1.backend, plain.attributes.data.clone(), &wide.1.backend);
        assert_eq!(previous(&backends, &wide.1, &tunnel), host_gw);
    }
}
