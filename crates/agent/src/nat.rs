// SPDX-License-Identifier: Apache-2.0
//! The nat controller: masquerading and forwarding rules of the network that the node has joined.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, watch};

use crate::dataplane::nft::{Change, NftDataplane, Outcome, RulesConf};
use crate::overlay::Programmed;
use crate::settings::Settings;
use crate::status::{ConditionKind, RepairKind, StatusHub};
use crate::supervisor::{Failure, Heartbeat};

/// A network that needs rules.
pub(crate) trait Translated: std::fmt::Debug + Send + Sync + 'static {
    /// Returns the rules that the network needs.
    fn rules_conf(&self, settings: &Settings) -> RulesConf;
}

/// The channels that the controller reads. They outlive a restart.
#[derive(Debug)]
pub(crate) struct Inputs<T> {
    pub programmed: watch::Receiver<Option<Arc<T>>>,
    /// Outcomes of repairs.
    pub repairs: UnboundedReceiver<Outcome>,
    /// Forwarding was switched.
    pub forwarding_changed: Arc<Notify>,
}

/// The controller. After a restart it sets the rules again.
#[derive(Debug)]
pub(crate) struct Nat<T> {
    settings: Arc<Settings>,
    hub: StatusHub,
    nft: Arc<NftDataplane>,
    inputs: Inputs<T>,
    /// The network, once its rules are set.
    translated: watch::Sender<Option<Arc<T>>>,
}

impl<T: Translated> Nat<T> {
    pub(crate) fn new(
        settings: &Arc<Settings>,
        hub: &StatusHub,
        nft: Arc<NftDataplane>,
        inputs: Inputs<T>,
        translated: watch::Sender<Option<Arc<T>>>,
    ) -> Nat<T> {
        Nat { settings: Arc::clone(settings), hub: hub.clone(), nft, inputs, translated }
    }

    pub(crate) async fn run(&mut self, heartbeat: &Heartbeat) -> Result<(), Failure> {
        self.nft.restart_if_stopped().await.map_err(|error| error.to_string())?;
        self.inputs.programmed.mark_changed();
        loop {
            heartbeat.beat();
            let Inputs { programmed, repairs, forwarding_changed } = &mut self.inputs;
            tokio::select! {
                changed = programmed.changed() => match changed {
                    Ok(()) => self.set_rules().await?,
                    Err(_) => return Ok(()),
                },
                Some(outcome) = repairs.recv() => self.report(&outcome, true),
                () = forwarding_changed.notified() => self.check_forwarding().await?,
                stopped = self.nft.stopped() => return Err(stopped.to_string()),
                () = heartbeat.tick() => {}
            }
        }
    }

    async fn set_rules(&mut self) -> Result<(), Failure> {
        let Some(programmed) = self.inputs.programmed.borrow_and_update().clone() else {
            return Ok(());
        };
        let conf = programmed.rules_conf(&self.settings);
        let set = self.nft.run(move |rules| rules.set(&conf)).await;
        let (outcome, taken_over) = set.map_err(|error| error.to_string())?;
        self.report(&outcome, false);
        for change in &taken_over.changes {
            tracing::info!(%change, "flannel's rules removed");
        }
        for problem in &taken_over.problems {
            tracing::warn!(%problem, "flannel's rules left in place");
        }
        self.translated.send_replace(Some(programmed));
        Ok(())
    }

    async fn check_forwarding(&self) -> Result<(), Failure> {
        let checked = self.nft.run(|rules| rules.compare_soon()).await;
        checked.map_err(|error| error.to_string())
    }

    /// Reports what was changed and what failed; `is_repair` if another program had changed the
    /// rules.
    fn report(&self, outcome: &Outcome, is_repair: bool) {
        for change in &outcome.changes {
            if is_repair {
                tracing::warn!(%change, "kernel state repaired");
                self.hub.record_repair(RepairKind::Rules, change.to_string());
            } else {
                tracing::debug!(%change, "kernel state changed");
            }
        }
        let is_flannel = |change: &Change| matches!(change, Change::RemoveFlannelRule { .. });
        if is_repair && outcome.changes.iter().any(is_flannel) {
            tracing::warn!("flanneld has written its rules again, stop it on this node");
        }
        match outcome.problems.first() {
            None => self.hub.clear_problem(ConditionKind::Rules),
            Some(problem) => self.hub.set_problem(ConditionKind::Rules, problem.to_string()),
        }
    }
}

impl Translated for Programmed {
    fn rules_conf(&self, settings: &Settings) -> RulesConf {
        RulesConf {
            networks: self.joined.conf.networks.iter().collect(),
            subnets: self.joined.lease.subnets.iter().collect(),
            sources: None,
            masquerade: settings.nat.masquerade.clone(),
            forwards: settings.nat.forwards,
        }
    }
}
