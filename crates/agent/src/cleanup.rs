// SPDX-License-Identifier: Apache-2.0
//! Removes every trace of an agent from its node, and its lease from the store.

use overlay::difference::PROTOCOL;
use store::Error;

use crate::options::Settings;
use crate::reconcile::{Options, Reconciler, Secrets};
use crate::rules::Rules;
use crate::run::{self, open};
use crate::session::chain;
use crate::{blackhole, cni_conf, file, serve, subnet_env};

/// What was done, and what could not be.
#[derive(Debug, Default)]
pub struct Cleaned {
    pub done: Vec<String>,
    pub failed: Vec<String>,
}

/// Removes all there is: in the kernel, in files, in the store. Pods are not touched. Fails where an agent
/// runs.
pub async fn cleanup(settings: &Settings) -> Result<Cleaned, run::Error> {
    let lock = serve::Socket::create(&settings.run_dir)?;
    let mut cleaned = Cleaned::default();
    // New pods would have no network.
    if let Some(path) = &settings.cni_conf {
        cleaned.note(&path.display(), cni_conf::withdraw(path));
    }
    release(settings, &mut cleaned).await;
    clean_kernel(settings, &mut cleaned)?;
    let path = &settings.subnet_file;
    cleaned.note(&path.display(), subnet_env::remove(path));
    for name in ["wireguard.key".to_owned(), format!("{}.lease", settings.mark)] {
        let path = settings.state_dir.join(name);
        cleaned.note(&path.display(), file::remove(&path));
    }
    drop(lock);
    Ok(cleaned)
}

/// Other nodes need not wait for the lease to end.
async fn release(settings: &Settings, cleaned: &mut Cleaned) {
    let released = async {
        let (leases, _) = open(settings).await?;
        let path = settings.state_dir.join(format!("{}.lease", settings.mark));
        let text = file::read(&path).ok().flatten().unwrap_or_default();
        leases.release_written(&text).await
    };
    match released.await {
        Ok(Some(name)) => cleaned.done.push(format!("released the lease {name}")),
        Ok(None) => {}
        Err(error) => {
            let error: Error = error;
            cleaned.failed.push(format!("release the lease: {}", chain(&error)));
        }
    }
}

fn clean_kernel(settings: &Settings, cleaned: &mut Cleaned) -> Result<(), run::Error> {
    let options = Options {
        mark: settings.mark.clone(),
        previous: Vec::new(),
        secrets: Secrets::default(),
        queues: 1,
    };
    let outcome = Reconciler::open(options)?.remove_everything();
    cleaned.done.extend(outcome.changes.iter().map(ToString::to_string));
    cleaned.failed.extend(outcome.failures.iter().map(ToString::to_string));
    let rules = Rules::open(&settings.mark)?.remove();
    cleaned.done.extend(rules.changes);
    cleaned.failed.extend(rules.problems.iter().map(ToString::to_string));
    let everywhere = ["0.0.0.0/0", "::/0"].map(|net| net.parse().expect("a network"));
    let nl = kernel::Netlink::open()?;
    match blackhole::settle(&nl, &everywhere, &[], false) {
        Ok(changes) => cleaned.done.extend(changes),
        Err(error) => {
            cleaned.failed.push(format!("remove blackholes of protocol {PROTOCOL}: {error}"));
        }
    }
    Ok(())
}

impl Cleaned {
    fn note<E: std::error::Error>(
        &mut self,
        what: &dyn std::fmt::Display,
        result: Result<bool, E>,
    ) {
        match result {
            Ok(true) => self.done.push(format!("removed {what}")),
            Ok(false) => {}
            Err(error) => self.failed.push(chain(&error)),
        }
    }
}
