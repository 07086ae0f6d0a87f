// SPDX-License-Identifier: Apache-2.0
//! The backends that this node has published: the current one, and the one before it while peers
//! still use it. A file keeps both across restarts, because a changed configuration often reaches
//! an agent by a restart.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use overlay::backend::Backend;
use overlay::lease::{Attributes, Lease};
use overlay::netconf::NetConf;
use overlay::plan::{Network, PreviousBackend, PreviousBackendState, are_distinguishable};
use serde::{Deserialize, Serialize};
use text::ErrorChain;

use super::{End, Session};
use crate::managed_file;
use crate::run::Worker;
use crate::settings::Settings;
use crate::status::ConditionKind;

/// Peers send by the previous backend until they have read this node's lease. The device goes after
/// one to two such intervals without a peer that publishes it.
const AGE_EVERY: Duration = Duration::from_secs(3);

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

    /// Whether the private key of WireGuard is needed.
    pub(super) fn have_wireguard(&self) -> bool {
        let published = self.current.iter().chain(&self.previous);
        published.filter_map(Published::backend).any(|one| matches!(one, Backend::Wireguard(_)))
    }

    /// Notes the backend of a session. The one before it becomes the previous one if leases tell
    /// the two apart.
    fn set(&mut self, config: &str, backend: &Backend, lease: &Lease) {
        let before = self.current.replace(Published::new(config, lease));
        let candidates = [before, self.previous.take()].into_iter().flatten();
        self.previous = candidates.into_iter().find(|one| one.is_distinguishable(backend));
    }
}

impl Worker {
    /// Notes the backend of a session that begins.
    pub(super) fn note_backend(&mut self, session: &Session) {
        let before = self.backends.clone();
        self.backends.set(session.conf_text.expose(), &session.conf.backend, &session.held.lease);
        if self.backends != before {
            self.write_backends();
        }
    }

    /// Keeps the previous backend in a session's network, if there is one.
    pub(super) fn keep_previous_backend(&self, session: &mut Session, network: &mut Network) {
        session.age_at = None;
        let kept = keep(&self.backends, network);
        // Peers cannot have read a lease that is not in the store.
        if kept && !session.is_from_memory {
            session.age_at = Some(Instant::now() + AGE_EVERY);
        }
    }

    /// The same for a session that would begin.
    pub(super) fn preview_previous_backend(&self, config: &str, network: &mut Network) {
        let mut backends = self.backends.clone();
        backends.set(config, &network.conf().backend, network.lease());
        keep(&backends, network);
    }

    /// Drops the previous backend once no peer uses it.
    pub(super) async fn age_previous_backend(&mut self, session: &mut Session) -> Result<(), End> {
        let asked = self.kernel.run(|reconciler| reconciler.age_previous());
        let (aged, outcome) = asked
            .await
            .map_err(|error| End::wait(ConditionKind::Kernel, error.to_string(), None))?;
        session.age_at =
            Some(Instant::now() + AGE_EVERY).filter(|_| aged == PreviousBackendState::Kept);
        if aged == PreviousBackendState::Dropped {
            tracing::info!("previous backend removed, no peer publishes it");
            self.backends.previous = None;
            self.write_backends();
            self.post(session, &outcome, false).await;
            self.look_at_ways(None).await?;
        }
        Ok(())
    }

    fn write_backends(&self) {
        let file = backends_file(&self.settings);
        let text = serde_json::to_string(&self.backends).unwrap_or_default();
        // A configuration may hold a pre-shared key.
        if let Err(error) = managed_file::replace_secret(&file, &text) {
            tracing::warn!(%error, file = %file.display(), "cannot be written");
        }
    }
}

/// Whether a previous backend is kept.
fn keep(backends: &Backends, network: &mut Network) -> bool {
    let published = backends.previous.as_ref();
    let previous = published.and_then(|one| one.previous(network.conf(), network.lease()));
    let (Some(previous), Some(backend)) = (previous, published.and_then(Published::backend)) else {
        return false;
    };
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

/// The file, for this agent's network.
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

    #[test]
    fn the_backend_before_is_kept_until_leases_tell_nothing() {
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
        // Another subnet or network is not reached through the old backend.
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
