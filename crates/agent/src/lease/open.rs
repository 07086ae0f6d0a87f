// SPDX-License-Identifier: Apache-2.0
//! Opens the store or the cluster that the settings name.

use std::sync::Arc;

use cluster::{Access, Cluster, SERVICE_ACCOUNT};
use store::embedded::Embedded;
use store::etcd::{Credentials, Etcd, EtcdConf, Identity, Tls};

use super::{Error, KeyValueLeases, KubernetesConf, KubernetesLeases, LeaseBackend};
use crate::pools::{KeyValueObjects, KubernetesObjects, ObjectStore, PodDirectory};
use crate::settings::{self, Settings, StoreChoice};

/// Prefix of the keys in the embedded store, the same as flannel's in etcd.
const PREFIX: &str = "/coreos.com/network";

pub(crate) async fn open(settings: &Settings) -> Result<Arc<dyn LeaseBackend>, Error> {
    Ok(match &settings.store {
        StoreChoice::Embedded(path) => {
            Arc::new(KeyValueLeases::new(Arc::new(Embedded::open(path).await?), PREFIX))
        }
        StoreChoice::Etcd(etcd) => {
            Arc::new(KeyValueLeases::new(Arc::new(Etcd::new(&etcd_conf(etcd))?), &etcd.prefix))
        }
        StoreChoice::Kubernetes(kubernetes) => {
            Arc::new(KubernetesLeases::open(kubernetes_conf(settings, kubernetes)?).await?)
        }
    })
}

/// Opens the place of Calico's objects. Kubernetes also knows the pods.
pub(crate) async fn open_objects(
    settings: &Settings,
) -> Result<(Arc<dyn ObjectStore>, Option<PodDirectory>), Error> {
    let objects: Arc<dyn ObjectStore> = match &settings.store {
        StoreChoice::Embedded(path) => {
            Arc::new(KeyValueObjects::new(Arc::new(Embedded::open(path).await?)))
        }
        StoreChoice::Etcd(etcd) => {
            Arc::new(KeyValueObjects::new(Arc::new(Etcd::new(&etcd_conf(etcd))?)))
        }
        StoreChoice::Kubernetes(kubernetes) => {
            let conf = kubernetes_conf(settings, kubernetes)?;
            let cluster = Cluster::open(&conf.access).await?;
            let pods = PodDirectory::new(cluster.clone());
            return Ok((Arc::new(KubernetesObjects::new(cluster, conf)), Some(pods)));
        }
    };
    Ok((objects, None))
}

fn etcd_conf(etcd: &settings::Etcd) -> EtcdConf {
    let identity = etcd.tls.identity.clone();
    let identity = identity.map(|(certificate, key)| Identity { certificate, key });
    let credentials = etcd.user.clone().map(|(user, password)| Credentials { user, password });
    EtcdConf {
        endpoints: etcd.endpoints.clone(),
        tls: etcd.tls.authority.clone().map(|ca| Tls { ca, identity }),
        credentials,
    }
}

fn kubernetes_conf(
    settings: &Settings,
    kubernetes: &settings::Kubernetes,
) -> Result<KubernetesConf, cluster::Error> {
    if settings.node.name.is_none() && kubernetes.pod.is_none() {
        return Err(cluster::Error::Invalid("node-name is missing".to_owned()));
    }
    Ok(KubernetesConf {
        access: access(kubernetes)?,
        annotation_prefix: kubernetes.annotation_prefix.clone(),
        node_name: settings.node.name.clone(),
        pod: kubernetes.pod.clone(),
        net_config: kubernetes.net_config.clone(),
        sets_condition: kubernetes.sets_condition,
    })
}

fn access(kubernetes: &settings::Kubernetes) -> Result<Access, cluster::Error> {
    match (&kubernetes.kubeconfig, &kubernetes.api_url, &kubernetes.service) {
        (Some(file), url, _) => Ok(Access::Kubeconfig { file: file.clone(), url: url.clone() }),
        (None, Some(url), _) => Ok(Access::Url(url.clone())),
        (None, None, Some(url)) => {
            Ok(Access::Pod { url: url.clone(), dir: SERVICE_ACCOUNT.into() })
        }
        (None, None, None) => Err(cluster::Error::Invalid(
            "the agent does not run in a pod: set --kubeconfig-file or --kube-api-url".to_owned(),
        )),
    }
}
