// SPDX-License-Identifier: Apache-2.0
//! Which configuration of the network counts: the stored one; or the one before it, where what is stored cannot be
//! had here. What runs goes on whole whatever is written there.

use overlay::backend::Backend;
use overlay::netconf::{NetConf, Pool, RawNetConf, unknown_keys};
use overlay::{Addresses, PerFamily, plan};
use text::Secret;

use super::{End, Session, extension};
use crate::lease::{ConfigLocation, HeldLease, Snapshot, StoreItem};
use crate::run::Worker;
use crate::status::ConditionKind;
use crate::underlay::Underlay;

/// How the stored one is changed, with any store.
const REPLACE: &str = "podwire agent --net-config … --replace-net-config";

/// A configuration, and what follows from it on this node.
#[derive(Debug)]
pub(crate) struct Judged {
    /// It may hold a pre-shared key.
    pub text: Secret,
    pub conf: NetConf,
    /// Where nodes choose their subnets; none where they are given them.
    pub pools: PerFamily<Pool>,
    pub chosen: Underlay,
    /// What is written in the store; none where there is nothing.
    pub stored: Option<Secret>,
    /// Why it is not that one that counts.
    pub unfit: Option<String>,
}

impl Worker {
    /// All that the store has. Where it has no configuration, the one that we were told is put there first; but
    /// not in the place of one that somebody has deleted while it was in force.
    pub(super) async fn snapshot_with_configuration(&mut self) -> Result<Snapshot, End> {
        let snapshot = self.snapshot().await?;
        let Some(told) = self.settings.network.config.clone() else { return Ok(snapshot) };
        if !self.lacks_configuration(&snapshot) || self.in_force.is_some() {
            return Ok(snapshot);
        }
        // Where this node cannot be part of it, nobody is to be.
        let NetConf { networks, backend, .. } = self.judge(told.clone())?.conf;
        if self.leases.create_config_if_absent(told.expose()).await? {
            let (place, backend) = (self.leases.config_location(), backend.name());
            let networks: Vec<String> = networks.iter().map(|net| net.to_string()).collect();
            let networks = networks.join(" ");
            tracing::info!(%place, %networks, backend, "the network's configuration is stored");
        }
        self.snapshot().await
    }

    /// Whether there is none, and one that we were told would be put there. One that cannot be read is there.
    pub(super) fn lacks_configuration(&self, snapshot: &Snapshot) -> bool {
        let is_key = matches!(self.leases.config_location(), ConfigLocation::Key(_));
        is_key && matches!(self.leases.config(&snapshot.items), Ok(None))
    }

    /// The stored one, else the one that was in force before.
    pub(super) fn choose_configuration(&self, snapshot: &Snapshot) -> Result<Judged, End> {
        let stored = self.stored(&snapshot.items);
        let there = stored.as_ref().ok().cloned();
        let is_another = there != self.in_force;
        let fitting = stored
            .and_then(|text| self.judge(text))
            .and_then(|judged| self.has_room(&judged).map(|()| judged));
        match (fitting, &self.in_force) {
            (Err(wrong), Some(before)) if is_another => {
                let judged = self.judge(before.clone())?;
                Ok(Judged { stored: there, unfit: Some(stays(&wrong)), ..judged })
            }
            (judged, _) => judged,
        }
    }

    /// As it was written.
    pub(super) fn stored(&self, seen: &[StoreItem]) -> Result<Secret, End> {
        let place = self.leases.config_location();
        let missing = |why: String| End::wait(ConditionKind::Config, why, None);
        match self.leases.config(seen) {
            Ok(Some(text)) => Ok(Secret::new(text)),
            Ok(None) if place.file().is_some() => {
                Err(missing(format!("the network has no configuration: {place} is not there")))
            }
            Ok(None) => Err(missing(format!(
                "the network has no configuration: nothing is stored under {place}, and {}",
                match self.in_force {
                    None => "no --net-config was given".to_owned(),
                    Some(_) => format!("{REPLACE} stores one"),
                }
            ))),
            Err(error) => Err(missing(format!("read {place}: {error}"))),
        }
    }

    /// Whether this node can be part of such a network.
    pub(super) fn judge(&self, text: Secret) -> Result<Judged, End> {
        let wrong = |why: String| End::wait(ConditionKind::Config, why, None);
        let written = RawNetConf::parse(text.expose()).map_err(|error| wrong(error.to_string()))?;
        let conf = written.validate().map_err(|error| wrong(error.to_string()))?;
        extension::check_allowed(&self.settings, &conf).map_err(wrong)?;
        let pools = self.leases.pools(&written).map_err(|error| wrong(error.to_string()))?;
        let chosen = self.underlay(&conf)?;
        // Here, and not with the plan: the lease of the configuration before would be gone by then.
        let own = Addresses { v4: chosen.local_v4, v6: chosen.local_v6 };
        plan::check_networks(&conf, own).map_err(|error| wrong(error.to_string()))?;
        Ok(Judged { stored: Some(text.clone()), text, conf, pools, chosen, unfit: None })
    }

    /// Whether this node has a subnet in such a network, or could have one.
    fn has_room(&self, judged: &Judged) -> Result<(), End> {
        let held = self.held.clone().or_else(|| self.remembered());
        let fits = |held: HeldLease| self.leases.may_keep(&judged.pools, &held.lease.subnets);
        if held.is_some_and(fits) {
            return Ok(());
        }
        let public = self.public(&judged.chosen);
        Ok(self.leases.check_capacity(&judged.pools, public)?)
    }

    /// The same, for one that has only now come.
    fn is_fit(&self, text: Secret) -> Result<(), End> {
        self.has_room(&self.judge(text)?)
    }

    /// News of the store, or of the file: one that can be had begins another session, any other is told.
    pub(super) async fn hear_configuration(
        &self,
        session: &mut Session,
        seen: &[StoreItem],
    ) -> Result<(), End> {
        let stored = self.stored(seen);
        session.stored = stored.as_ref().ok().cloned();
        if session.stored.as_ref() == Some(&session.conf_text) {
            session.unfit = None;
        } else {
            let fit = match stored {
                Ok(text) => self.is_fit(text),
                Err(missing) => Err(missing),
            };
            let Err(wrong) = fit else {
                return Err(End::now(
                    ConditionKind::Config,
                    "the network's configuration is another",
                ));
            };
            session.unfit = Some(stays(&wrong));
        }
        self.tell_configuration(session);
        Ok(())
    }

    /// What keeps the stored one from being in force may be another interface, or that others have all its subnets.
    pub(super) async fn try_configuration_again(&self, session: &mut Session) -> Result<(), End> {
        match (&session.unfit, session.stored.clone()) {
            (Some(_), Some(text)) => {
                let text = text.into_exposed();
                self.hear_configuration(session, &[StoreItem::Config(Some(text))]).await
            }
            _ => Ok(()),
        }
    }

    /// What is to be said of a configuration that is in force.
    pub(super) fn remarks(&self, judged: &Judged) -> Vec<String> {
        let differs = self.differs(judged).into_iter();
        differs.chain(unknown_keys(judged.text.expose())).chain(too_large(judged)).collect()
    }

    /// Whether it is another one than we were told.
    fn differs(&self, judged: &Judged) -> Option<String> {
        let place = self.leases.config_location();
        let told = RawNetConf::parse(self.settings.network.config.as_ref()?.expose());
        let told = told.and_then(|told| Ok((told.validate()?, told.pools()?)));
        let is_same = told.is_ok_and(|(conf, pools)| conf == judged.conf && pools == judged.pools);
        match place {
            _ if is_same => None,
            ConfigLocation::Key(_) => Some(format!(
                "--net-config differs from what is stored under {place}, which counts: {REPLACE} stores it"
            )),
            ConfigLocation::File(_) => {
                Some(format!("--net-config differs from {place}, which counts"))
            }
        }
    }

    /// Whatever is to be said of the configuration.
    pub(super) fn tell_configuration(&self, session: &Session) {
        let texts: Vec<&str> =
            session.unfit.iter().chain(&session.remarks).map(String::as_str).collect();
        match texts.is_empty() {
            true => self.hub.clear_problem(ConditionKind::Config),
            false => self.hub.set_problem(ConditionKind::Config, texts.join("; ")),
        }
    }
}

fn stays(wrong: &End) -> String {
    format!("{}; the configuration before it stays in force", wrong.why)
}

/// An MTU that the interface does not have.
fn too_large(judged: &Judged) -> Option<String> {
    let wanted = match &judged.conf.backend {
        Backend::Vxlan(vxlan) => vxlan.mtu,
        Backend::Wireguard(wireguard) => wireguard.mtu,
        _ => None,
    };
    let Underlay { name, mtu, .. } = &judged.chosen;
    let wanted = wanted.filter(|wanted| wanted > mtu)?;
    Some(format!("key \"Backend.MTU\" is {wanted}: {name} has {mtu}, which counts"))
}
