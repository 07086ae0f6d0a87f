// SPDX-License-Identifier: Apache-2.0
//! The configuration of tuning, from all of its sources.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cni::{Error, Request};
use gojson::repeated_keys;
use kernel::link::Attributes;
use serde::Deserialize;

use super::sysctls::Sysctl;
use crate::attach::mac::{self, Source};

const DATA_DIR: &str = "/run/cni/tuning";

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

/// The keys of `args.cni` override the keys of the same name.
#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct CniArgs {
    sysctl: BTreeMap<String, String>,
    mtu: Option<u32>,
    promisc: Option<bool>,
    allmulti: Option<bool>,
    tx_q_len: Option<u32>,
}

/// Separate from the other keys, so that DEL finds the files even if other keys are invalid.
#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct DataDirConf {
    data_dir: Option<PathBuf>,
}

/// The parsed configuration.
#[derive(Debug)]
pub(super) struct Tuning {
    pub sysctls: Vec<Sysctl>,
    pub attributes: Attributes,
    pub data_dir: PathBuf,
}

impl Tuning {
    pub(super) fn parse(request: &Request) -> Result<Tuning, Error> {
        let conf: TuningConf = request.conf()?;
        let sources = [Source::Args, Source::RuntimeConfig, Source::Environment, Source::Conf];
        let data: DataDirConf = request.conf()?;
        let args = conf.args.cni;
        refuse_repeated(request)?;
        let mut sysctls = parse_sysctls(conf.sysctl, request)?;
        let from_args = parse_sysctls(args.sysctl, request)?;
        sysctls.retain(|one| !from_args.iter().any(|other| other.path == one.path));
        sysctls.extend(from_args);
        // `false` means "leave as it is", as in the Go plugin.
        let promisc = args.promisc.unwrap_or(conf.promisc);
        Ok(Tuning {
            sysctls,
            attributes: Attributes {
                mac: mac::requested(request, &sources)?,
                mtu: Some(args.mtu.unwrap_or(conf.mtu)).filter(|mtu| *mtu != 0),
                promisc: promisc.then_some(true),
                allmulti: args.allmulti.or(conf.allmulti),
                txqlen: args.tx_q_len.or(conf.tx_q_len),
            },
            data_dir: data.data_dir.unwrap_or_else(|| DATA_DIR.into()),
        })
    }
}

/// A key that occurs twice has no defined value.
fn refuse_repeated(request: &Request) -> Result<(), Error> {
    let repeated = repeated_keys(&request.config_text, "sysctl");
    repeated.first().map_or(Ok(()), |key| {
        let msg = format!("duplicated sysctl keys are not allowed: {key:?} is set twice");
        Err(Error::invalid_config(msg))
    })
}

/// A sysctl can be written in several ways: with dots or slashes, with `IFNAME` or the name of the
/// interface. Their values must agree.
fn parse_sysctls(conf: BTreeMap<String, String>, request: &Request) -> Result<Vec<Sysctl>, Error> {
    let conf = conf.into_iter();
    let all = conf.map(|(key, value)| Sysctl::new(key, value, &request.ifname));
    let all: Vec<Sysctl> = all.collect::<Result<_, _>>()?;
    let mut by_path: BTreeMap<&str, &Sysctl> = BTreeMap::new();
    for one in &all {
        let other = by_path.insert(&one.path, one);
        if let Some(other) = other.filter(|other| other.value != one.value) {
            let (first, second) = (&other.key, &one.key);
            let msg = format!(
                "duplicated sysctl keys are not allowed: {first:?} and {second:?} are the same and have different values"
            );
            return Err(Error::invalid_config(msg));
        }
    }
    Ok(all)
}

/// The directory of the backups; the default if the key cannot be read.
pub(super) fn data_dir_of(request: &Request) -> PathBuf {
    let conf: DataDirConf = request.conf().unwrap_or_default();
    conf.data_dir.unwrap_or_else(|| DATA_DIR.into())
}
