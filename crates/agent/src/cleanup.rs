// SPDX-License-Identifier: Apache-2.0
//! Removes every trace of an agent from its node, and its lease from the store. What bears the mark of another
//! agent is left alone. With `--keep-network` the network stays, for flanneld.

mod keep;
mod kernel;
mod lease;

use std::fmt::Display;
use std::path::Path;

use serde::Serialize;

use self::lease::Own;
use crate::options::{Settings, StoreChoice, record};
use crate::session::{backends_file, chain, view_file};
use crate::{cni_conf, file, keys, run, serve, subnet_env};

/// What was done, or with `--dry-run` would be; what is still there; and what could not be done.
#[derive(Debug, Default, Serialize)]
pub struct Cleaned {
    pub done: Vec<String>,
    /// With what to do about it, where that is known.
    pub left: Vec<String>,
    pub failed: Vec<String>,
}

/// Removes all there is: in the kernel, in files, in the store. Pods are not touched. Fails where an agent
/// runs, unless it only tells.
pub async fn cleanup(settings: &Settings) -> Result<Cleaned, run::Error> {
    let lock = match settings.dry_run {
        true => None,
        false => Some(serve::Socket::create(&settings.run_dir)?),
    };
    let mut cleaner = Cleaner { settings, cleaned: Cleaned::default() };
    cleaner.withdraw();
    let own = Own::read(settings);
    if settings.keeps_network {
        cleaner.clean_rules(&own)?;
        cleaner.leave_network()?;
        cleaner.forget(&own);
    } else {
        let is_released = cleaner.release(&own).await;
        cleaner.clean_kernel(&own)?;
        cleaner.remove_files(&own, is_released);
    }
    cleaner.remove(&view_file(settings), file::remove);
    cleaner.remove(&backends_file(settings), file::remove);
    cleaner.tell_of_others();
    lock.map(serve::Socket::remove).transpose()?;
    Ok(cleaner.cleaned)
}

/// At work.
struct Cleaner<'a> {
    settings: &'a Settings,
    cleaned: Cleaned,
}

impl Cleaner<'_> {
    /// First of all: new pods would have no network.
    fn withdraw(&mut self) {
        let Some(path) = &self.settings.cni_conf else { return };
        match cni_conf::refuse_foreign(path) {
            Err(foreign @ cni_conf::Error::Foreign(_)) => {
                self.cleaned.left.push(foreign.to_string());
            }
            _ => self.remove(path, cni_conf::withdraw),
        }
    }

    /// What a lease that was not released is known by stays for the next try.
    fn remove_files(&mut self, own: &Own, is_released: bool) {
        let Settings { subnet_file, state_dir, .. } = self.settings;
        if own.env.is_some() {
            self.remove(subnet_file, subnet_env::remove);
        } else if subnet_file.exists() {
            let why =
                format!("{} tells of a subnet that is not this agent's", subnet_file.display());
            self.cleaned.left.push(why);
        }
        if is_released {
            self.forget(own);
        }
        if self.other_marks().is_empty() {
            self.remove(&keys::wireguard_file(state_dir), file::remove);
        }
    }

    /// What was written down.
    fn forget(&mut self, own: &Own) {
        self.remove(&own.file, file::remove);
        self.remove(&record::path(&self.settings.state_dir, &self.settings.mark), file::remove);
    }

    /// What may still be wanted.
    fn tell_of_others(&mut self) {
        for mark in self.other_marks() {
            let why = format!(
                "what an agent with the mark {mark} has made: podwire cleanup --mark {mark}"
            );
            self.cleaned.left.push(why);
        }
        if let StoreChoice::Embedded(path) = &self.settings.store
            && path.exists()
        {
            let path = path.display();
            self.cleaned.left.push(format!("the store {path}, which other agents may share"));
        }
    }

    pub(super) fn other_marks(&self) -> Vec<String> {
        let Settings { state_dir, mark, .. } = self.settings;
        record::marks(state_dir).into_iter().filter(|other| other != mark).collect()
    }

    fn remove<E: std::error::Error>(
        &mut self,
        path: &Path,
        remove: impl FnOnce(&Path) -> Result<bool, E>,
    ) {
        let removed = if self.settings.dry_run { Ok(path.exists()) } else { remove(path) };
        match removed {
            Ok(true) => self.done(format_args!("remove {}", path.display())),
            Ok(false) => {}
            Err(error) => self.cleaned.failed.push(chain(&error)),
        }
    }

    fn done(&mut self, what: impl Display) {
        self.cleaned.done.push(what.to_string());
    }
}
