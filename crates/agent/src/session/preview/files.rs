// SPDX-License-Identifier: Apache-2.0
//! The files that an agent would write, with what they would say.

use std::path::Path;

use overlay::backend::Backend;
use overlay::lease::Lease;
use overlay::netconf::NetConf;

use super::super::remember::lease_file;
use crate::lease::saved_text;
use crate::node_files::cni_conf::{self, CniConf};
use crate::run::Worker;
use crate::settings::saved;
use crate::{keys, managed_file};

impl Worker {
    /// Those that are right already are told, too.
    pub(super) fn preview_files(&self, conf: &NetConf, lease: &Lease, mtu: u32) -> Vec<String> {
        let settings = &self.settings;
        let mut lines = Vec::new();
        let key = keys::wireguard_file(&settings.node.state_dir);
        if matches!(conf.backend, Backend::Wireguard(_)) && !key.exists() {
            lines.push(format!("write {}: a private key", key.display()));
        }
        let record = saved::path(&settings.node.state_dir, &settings.node.owner);
        lines.extend(told(&record, &settings.sources.saved));
        lines.extend(told(&lease_file(settings), &saved_text(lease)));
        lines.extend(told(&settings.files.subnet_env, &self.env(conf, lease, mtu).to_string()));
        if let Some(CniConf { path, text }) = CniConf::of(settings) {
            lines.extend(match cni_conf::refuse_foreign(&path) {
                Ok(()) => told(&path, &text),
                Err(error) => vec![format!("# {error}")],
            });
        }
        lines
    }
}

/// The file in a line, and after it its lines, where it is to have others.
fn told(path: &Path, text: &str) -> Vec<String> {
    let shown = path.display();
    match managed_file::read(path) {
        Ok(found) if found.as_deref() == Some(text) => vec![format!("leave {shown} unchanged")],
        Ok(_) => {
            let lines = text.lines().map(|line| format!("    {line}"));
            [format!("write {shown}:")].into_iter().chain(lines).collect()
        }
        Err(error) => vec![format!("# read {shown}: {error}")],
    }
}
