// SPDX-License-Identifier: Apache-2.0
//! Configuration of the client.

use std::fs;
use std::path::{Path, PathBuf};

use text::Secret;
use tonic::transport::{Certificate, ClientTlsConfig};

use crate::error::Cause;

/// Addresses and credentials of an etcd cluster.
#[derive(Clone, Debug, Default)]
pub struct EtcdConf {
    /// Such as `https://10.0.0.1:2379`. The default scheme is `https` if `tls` is set, else `http`.
    pub endpoints: Vec<String>,
    /// Required for `https`.
    pub tls: Option<Tls>,
    pub credentials: Option<Credentials>,
}

/// Files in PEM format. They are read again for each connection, so they can be replaced while the client runs.
#[derive(Clone, Debug)]
pub struct Tls {
    /// CA certificates for verifying the servers.
    pub ca: PathBuf,
    /// Client certificate.
    pub identity: Option<Identity>,
}

/// A certificate chain and its key.
#[derive(Clone, Debug)]
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// A user of etcd's authentication.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub user: String,
    pub password: Secret,
}

impl Tls {
    /// Reads the files for a connection to this host name or address.
    pub(super) fn read(&self, server: &str) -> Result<ClientTlsConfig, Cause> {
        let ca = Certificate::from_pem(read(&self.ca)?);
        let config = ClientTlsConfig::new().domain_name(server).ca_certificate(ca);
        let Some(identity) = &self.identity else {
            return Ok(config);
        };
        let (certificate, key) = (read(&identity.certificate)?, read(&identity.key)?);
        Ok(config.identity(tonic::transport::Identity::from_pem(certificate, key)))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Cause> {
    fs::read(path).map_err(|cause| format!("cannot read {}: {cause}", path.display()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_printed() {
        let credentials = Credentials { user: "root".into(), password: "secret".into() };
        let shown = format!("{credentials:?}");
        assert!(shown.contains("root") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn missing_file_is_named() {
        let tls = Tls { ca: "/no/such/ca.pem".into(), identity: None };
        let error = tls.read("localhost").unwrap_err().to_string();
        assert!(error.contains("/no/such/ca.pem"), "{error}");
    }
}
