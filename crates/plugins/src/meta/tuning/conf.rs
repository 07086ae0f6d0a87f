// SPDX-License-Identifier: Apache-2.0
//! The configuration of tuning, from all the places that can say something.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cni::{Error, Request};
use kernel::link::Attributes;
use serde::Deserialize;

use super::sysctls::Sysctl;
use crate::mac::{self, Source};

const DATA_DIR: &str = "/run/cni/tuning";

/// As written.
#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct TuningConf {
    sysctl: BTreeMap<String, String>,
    mtu: u32,
    promisc: bool,
    allmulti: Option<bool>,
    tx_q_len: Option<u32>,
    args: ArgsConf,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct ArgsConf {
    cni: CniArgs,
}

/// What `args.cni` says wins over the keys of the same name.
#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct CniArgs {
    sysctl: BTreeMap<String, String>,
    mtu: Option<u32>,
    promisc: Option<bool>,
    allmulti: Option<bool>,
    tx_q_len: Option<u32>,
}

/// Apart from the rest, so that DEL finds the files whatever has become of the other keys.
#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct DataDirConf {
    data_dir: Option<PathBuf>,
}

/// As understood.
#[derive(Debug)]
pub struct Tuning {
    pub sysctls: Vec<Sysctl>,
    pub attributes: Attributes,
    pub data_dir: PathBuf,
}

impl Tuning {
    pub fn understand(request: &Request) -> Result<Tuning, Error> {
        let conf: TuningConf = request.conf()?;
        let sources = [Source::Args, Source::RuntimeConfig, Source::Environment, Source::Conf];
        let data: DataDirConf = request.conf()?;
        let args = conf.args.cni;
        let mut sysctls = conf.sysctl;
        sysctls.extend(args.sysctl);
        let sysctls =
            sysctls.into_iter().map(|(key, value)| Sysctl::new(key, value, &request.ifname));
        // A promiscuity of false asks for nothing, and never did.
        let promisc = args.promisc.unwrap_or(conf.promisc);
        Ok(Tuning {
            sysctls: sysctls.collect::<Result<_, _>>()?,
            attributes: Attributes {
                mac: mac::wanted(request, &sources)?,
                mtu: Some(args.mtu.unwrap_or(conf.mtu)).filter(|mtu| *mtu != 0),
                promisc: promisc.then_some(true),
                allmulti: args.allmulti.or(conf.allmulti),
                txqlen: args.tx_q_len.or(conf.tx_q_len),
            },
            data_dir: data.data_dir.unwrap_or_else(|| DATA_DIR.into()),
        })
    }
}

/// Where the backups are; a key that cannot be read is nothing that DEL could act on.
pub fn data_dir_of(request: &Request) -> PathBuf {
    let conf: DataDirConf = request.conf().unwrap_or_default();
    conf.data_dir.unwrap_or_else(|| DATA_DIR.into())
}
