// SPDX-License-Identifier: Apache-2.0
//! The lease: what tells which subnets and files are this agent's.

use std::path::PathBuf;

use ipnet::IpNet;
use overlay::lease::parse_key;
use overlay::subnet_env::SubnetEnv;
use text::ErrorChain;

use super::Cleaner;
use crate::lease;
use crate::options::{Settings, StoreChoice};
use crate::session::lease_file;
use crate::{file, subnet_env};

/// What the agent has written down of its subnets.
#[derive(Debug)]
pub(super) struct Own {
    /// Where.
    pub(super) file: PathBuf,
    /// Key and value of its lease.
    pub(super) text: Option<String>,
    pub(super) subnets: Vec<IpNet>,
    /// What it told plugins; none where that file is about other subnets.
    pub(super) env: Option<SubnetEnv>,
}

impl Own {
    pub(super) fn read(settings: &Settings) -> Own {
        let file = lease_file(settings);
        let text = file::read(&file).ok().flatten();
        let subnets: Vec<IpNet> = text.as_deref().map(subnets_of).unwrap_or_default();
        let env = subnet_env::read(&settings.subnet_file).ok().flatten();
        let is_own = |env: &SubnetEnv| env.subnets.iter().all(|one| subnets.contains(&one.trunc()));
        let env = env.filter(is_own);
        Own { file, text, subnets, env }
    }

    /// The key of its lease.
    pub(super) fn name(&self) -> &str {
        self.text.as_deref().and_then(|text| text.split(' ').next()).unwrap_or_default()
    }

    /// The networks that its routes lead to.
    pub(super) fn networks(&self) -> Vec<IpNet> {
        let told = self.env.iter().flat_map(|env| &env.networks);
        told.chain(&self.subnets).copied().collect()
    }
}

fn subnets_of(text: &str) -> Vec<IpNet> {
    let key = text.split(' ').next().unwrap_or_default();
    parse_key(key)
        .map(|subnets| subnets.iter().map(|one| one.trunc()).collect())
        .unwrap_or_default()
}

impl Cleaner<'_> {
    /// Other nodes need not wait for the lease to end. Whether there is nothing more to release.
    pub(super) async fn release(&mut self, own: &Own) -> bool {
        let Some(text) = &own.text else { return true };
        if self.settings.damaged_record.as_ref().is_some_and(|record| !record.names_store) {
            // Reported already. Another store than the agent's may have a lease of the same name.
            return false;
        }
        let name = own.name();
        match &self.settings.store {
            StoreChoice::Embedded(path) if !path.exists() => {
                let path = path.display();
                self.cleaned.left.push(format!(
                    "lease {name}: the store {path} is not there; name the one that the agent had"
                ));
                return false;
            }
            StoreChoice::Kubernetes(told) => {
                let prefix = told.annotation_prefix.as_str();
                let node = self.settings.node_name.as_deref().unwrap_or("NODE");
                self.cleaned.left.push(format!(
                    "annotations of the node, by which it takes part: kubectl annotate node {node} {prefix}kube-subnet-manager-"
                ));
                return true;
            }
            _ => {}
        }
        let released = async {
            let leases = lease::open(self.settings).await?;
            leases.release_saved(text, self.settings.dry_run).await
        };
        match released.await {
            Ok(true) => self.done(format_args!("release lease {name}")),
            Ok(false) => {
                let store = self.settings.store.name();
                self.cleaned.left.push(format!(
                    "lease {name} is not in the {store} store as it was left there: it has ended, it is a reservation, or the agent had another store"
                ));
            }
            Err(error) => {
                let error: lease::Error = error;
                self.cleaned.failed.push(format!("release lease {name}: {}", ErrorChain(&error)));
                return false;
            }
        }
        true
    }
}
