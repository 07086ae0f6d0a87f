// SPDX-License-Identifier: Apache-2.0
//! The store that settings name.

use std::sync::Arc;

use store::Store;
use store::embedded::Embedded;
use store::etcd::{Credentials, Etcd, EtcdConf, Identity, Tls};
use store::kubernetes::{Access, Kubernetes, KubernetesConf, SERVICE_ACCOUNT};

use crate::leases::{Leases, Nodes};
use crate::options::{self, Settings, StoreChoice};

/// Under which the embedded store has the network.
const PREFIX: &str = "/coreos.com/network";

pub(crate) async fn open(
    settings: &Settings,
) -> Result<(Leases, Option<Kubernetes>), store::Error> {
    let (store, prefix): (Arc<dyn Store>, &str) = match &settings.store {
        StoreChoice::Embedded(path) => (Arc::new(Embedded::open(path).await?), PREFIX),
        StoreChoice::Etcd(etcd) => (Arc::new(Etcd::new(&etcd_conf(etcd))?), &etcd.prefix),
        StoreChoice::Kubernetes(told) => {
            let store = Kubernetes::open(&kubernetes_conf(told)?).await?;
            let leases = Leases::of_nodes(Arc::new(store.clone()), nodes(settings, told)?);
            return Ok((leases, Some(store)));
        }
    };
    Ok((Leases::new(store, prefix), None))
}

fn etcd_conf(told: &options::Etcd) -> EtcdConf {
    let identity = told.tls.identity.clone();
    let identity = identity.map(|(certificate, key)| Identity { certificate, key });
    let credentials = told.user.clone().map(|(user, password)| Credentials { user, password });
    EtcdConf {
        endpoints: told.endpoints.clone(),
        tls: told.tls.authority.clone().map(|ca| Tls { ca, identity }),
        credentials,
    }
}

fn kubernetes_conf(told: &options::Kubernetes) -> Result<KubernetesConf, store::Error> {
    let access = match (&told.kubeconfig, &told.api_url, &told.service) {
        (Some(file), url, _) => Access::Kubeconfig { file: file.clone(), url: url.clone() },
        (None, Some(url), _) => Access::Url(url.clone()),
        (None, None, Some(url)) => Access::Pod { url: url.clone(), dir: SERVICE_ACCOUNT.into() },
        (None, None, None) => {
            let why = "this is no pod: kubeconfig-file or kube-api-url says where the cluster is";
            return Err(store::Error::Invalid(why.to_owned()));
        }
    };
    let prefix = told.annotation_prefix.as_str().to_owned();
    Ok(KubernetesConf { access, annotation_prefixes: vec![prefix] })
}

fn nodes(settings: &Settings, told: &options::Kubernetes) -> Result<Nodes, store::Error> {
    let missing = || store::Error::Invalid("node-name is missing".to_owned());
    // Whoever has to look it up has none before the first session.
    let unknown = told.pod.as_ref().map(|_| String::new());
    Ok(Nodes {
        prefix: told.annotation_prefix.clone(),
        own: settings.node_name.clone().or(unknown).ok_or_else(missing)?,
        config: told.net_config.clone(),
    })
}
