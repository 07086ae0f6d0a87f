// SPDX-License-Identifier: Apache-2.0
//! Removes every trace of an agent from its node, and its lease from the store. What bears the mark of another
//! agent is left alone. With `--keep-network` the network stays, for flanneld.

mod keep;
mod kernel;
mod lease;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::Serialize;
use text::ErrorChain;

use self::lease::Own;
use crate::options::{Settings, StoreChoice, record};
use crate::session::{backends_file, view_file};
use crate::{cni_conf, file, keys, run, serve, subnet_env};

/// What was done, or with `--dry-run` would be; what is still there; and what could not be done.
#[derive(Debug, Default, Serialize)]
pub struct Cleaned {
    pub done: Vec<String>,
    /// With what to do about it, where that is known.
    pub left: Vec<String>,
    pub failed: Vec<String>,
}

/// Removes all there is: in the kernel, in files, in the store. Pods are not touched. Fails if an agent
/// runs, also with `--dry-run`.
pub async fn cleanup(settings: &Settings) -> Result<Cleaned, run::Error> {
    let lock = match settings.dry_run {
        true => {
            serve::Socket::refuse_taken(&settings.run_dir)?;
            None
        }
        false => Some(serve::Socket::create(&settings.run_dir)?),
    };
    let mut cleaner = Cleaner { settings, cleaned: Cleaned::default() };
    cleaner.withdraw();
    let own = Own::read(settings);
    cleaner.tell_of_record(&own);
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
        let path = match path.parent().is_none_or(Path::exists) {
            true => path.clone(),
            false => {
                let Some(found) = self.usual_cni_conf(path) else { return };
                found
            }
        };
        let path = path.as_path();
        match cni_conf::refuse_foreign(path) {
            Err(foreign @ cni_conf::Error::Foreign(_)) => {
                self.cleaned.left.push(foreign.to_string());
            }
            _ => self.remove(path, cni_conf::withdraw),
        }
    }

    /// An agent in a container names the file by the container's path, which this machine may not have. The file
    /// at the usual place is the same one if it has the agent's own content.
    fn usual_cni_conf(&mut self, path: &Path) -> Option<PathBuf> {
        let usual = Path::new(cni_conf::USUAL_DIR).join(path.file_name()?);
        if cni_conf::is_of(&usual, self.settings) {
            return Some(usual);
        }
        let (path, usual) = (path.display(), usual.display());
        self.cleaned.left.push(format!(
            "the CNI configuration {path}: its directory does not exist here, and {usual} is not of this agent; if the agent ran in a container, name the directory on this machine with --cni-conf-dir"
        ));
        None
    }

    /// Reports a record of the agent's options that cannot be used.
    fn tell_of_record(&mut self, own: &Own) {
        let Some(record) = &self.settings.damaged_record else { return };
        let path = record::path(&self.settings.state_dir, &self.settings.mark);
        let text = format!(
            "the agent's options in {} cannot be read ({}): run podwire cleanup with the options of the agent, such as --etcd-endpoints or --store-file, --cni-conf-dir and --subnet-file",
            path.display(),
            record.problem
        );
        let is_lease_kept =
            own.text.is_some() && !record.names_store && !self.settings.keeps_network;
        match is_lease_kept {
            true => self.cleaned.failed.push(format!("release lease {}: {text}", own.name())),
            false => self.cleaned.left.push(text),
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
            Err(error) => self.cleaned.failed.push(ErrorChain(&error).to_string()),
        }
    }

    fn done(&mut self, what: impl Display) {
        self.cleaned.done.push(what.to_string());
    }
}
