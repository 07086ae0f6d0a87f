// SPDX-License-Identifier: Apache-2.0
//! How to reach an API server, and how to be let in.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::Config;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use text::url;

use crate::{Error, Result};

/// Where kubelet puts what a pod needs to be let in.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A cluster, and what of its nodes matters.
#[derive(Clone, Debug)]
pub struct KubernetesConf {
    pub access: Access,
    /// What the names of annotations that are kept begin with, such as `flannel.alpha.coreos.com/`.
    pub annotation_prefixes: Vec<String>,
}

/// Which way in.
#[derive(Clone, Debug)]
pub enum Access {
    /// That of a pod. Files `token` and `ca.crt` are below `dir`, usually [`SERVICE_ACCOUNT`]; both
    /// are read anew every minute, as kubelet replaces them.
    Pod { url: String, dir: PathBuf },
    /// The current context of a file, at another address where one is given. A `tokenFile` in
    /// it is read anew every minute.
    Kubeconfig { file: PathBuf, url: Option<String> },
    /// Without credentials, as through `kubectl proxy`.
    Url(String),
}

impl Access {
    pub(super) async fn config(&self) -> Result<Config> {
        let mut config = match self {
            Access::Pod { url, dir } => of_pod(url, dir)?,
            Access::Kubeconfig { file, url } => of_file(file, url.as_deref()).await?,
            Access::Url(url) => Config::new(parse(url)?),
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // A write that may have been done must not be sent twice unnoticed.
        config.default_retry = false;
        if !needs_system_certificates(&config) {
            // Without this kube looks for the system's certificates and fails if there are none, although it
            // would not use them. `root_cert_file` replaces the empty list.
            config.root_cert.get_or_insert_default();
        }
        Ok(config)
    }
}

/// Whether only the system's CA certificates can verify the server.
pub(super) fn needs_system_certificates(config: &Config) -> bool {
    config.cluster_url.scheme_str() == Some("https")
        && config.root_cert.is_none()
        && config.root_cert_file.is_none()
        && !config.accept_invalid_certs
}

fn of_pod(url: &str, dir: &Path) -> Result<Config> {
    let (token, ca) = (dir.join("token"), dir.join("ca.crt"));
    for file in [&token, &ca] {
        fs::read(file).map_err(|cause| unreadable(file, &cause))?;
    }
    let mut config = Config::new(parse(url)?);
    config.root_cert_file = Some(ca);
    config.auth_info.token_file = Some(token.to_string_lossy().into_owned());
    Ok(config)
}

async fn of_file(file: &Path, url: Option<&str>) -> Result<Config> {
    fs::read(file).map_err(|cause| unreadable(file, &cause))?;
    let wrong = |cause| Error::Invalid(format!("kubeconfig {}: {}", file.display(), chain(&cause)));
    let kubeconfig = Kubeconfig::read_from(file).map_err(|cause| match cause {
        KubeconfigError::Parse(cause) => malformed(file, &cause.to_string()),
        other => wrong(other),
    })?;
    let has_proxy = kubeconfig
        .clusters
        .iter()
        .any(|named| named.cluster.as_ref().is_some_and(|cluster| cluster.proxy_url.is_some()));
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(wrong)?;
    if !has_proxy {
        // The environment's, which is not meant for us.
        config.proxy_url = None;
    }
    check_user(file, &config.auth_info)?;
    if let Some(url) = url {
        config.cluster_url = parse(url)?;
    }
    Ok(config)
}

/// The parser quotes lines of the file, which may hold a token or a key: only the place is shown.
fn malformed(file: &Path, cause: &str) -> Error {
    let number = |word: &str| {
        let (_, rest) = cause.split_once(word)?;
        let digits = rest.trim_start().split(|digit: char| !digit.is_ascii_digit()).next()?;
        digits.parse::<u32>().ok()
    };
    let place = number("line").map(|line| format!(", near line {line}")).unwrap_or_default();
    Error::Invalid(format!(
        "kubeconfig {}: it is no kubeconfig in YAML{place}; the text is not shown, as it may hold a token",
        file.display()
    ))
}

/// No program is started to get a token.
fn check_user(file: &Path, user: &AuthInfo) -> Result<()> {
    let key = match user {
        AuthInfo { exec: Some(_), .. } => "exec",
        AuthInfo { auth_provider: Some(_), .. } => "auth-provider",
        _ => return Ok(()),
    };
    Err(Error::Invalid(format!(
        "kubeconfig {}: the user has {key:?}, which starts a program; allowed are a token, a \
         tokenFile, a client certificate, or user name and password",
        file.display()
    )))
}

fn parse(url: &str) -> Result<http::Uri> {
    let plain = url::without_credentials(url);
    let url = plain.as_deref().unwrap_or(url);
    let wrong = || {
        Error::Invalid(format!(
            "Kubernetes' API {url:?}: expected an address such as https://10.96.0.1:443"
        ))
    };
    let uri: http::Uri = url.parse().map_err(|_| wrong())?;
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    if is_web && uri.host().is_some() { Ok(uri) } else { Err(wrong()) }
}

fn unreadable(file: &Path, cause: &std::io::Error) -> Error {
    Error::Invalid(format!("cannot read {}: {cause}", file.display()))
}

/// With its causes, unless they are part of the text already.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(access: &Access) -> Result<Config> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(access.config())
    }

    fn refused(access: &Access, words: &[&str]) {
        let said = config(access).unwrap_err();
        assert!(matches!(said, Error::Invalid(_)), "{said:?}");
        for word in words {
            assert!(said.to_string().contains(word), "{said} should say {word:?}");
        }
    }

    fn kubeconfig(user: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: k, cluster: {{server: 'https://10.0.0.1:6443'}}}}]\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        );
        fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn kubeconfig_is_read_and_its_address_overridden() {
        let file = kubeconfig("tokenFile: /run/token");
        let access = |url: Option<&str>| Access::Kubeconfig {
            file: file.path().to_path_buf(),
            url: url.map(str::to_owned),
        };
        let found = config(&access(None)).unwrap();
        assert_eq!(found.cluster_url.to_string(), "https://10.0.0.1:6443/");
        assert_eq!(found.auth_info.token_file.as_deref(), Some("/run/token"));
        let found = config(&access(Some("https://10.0.0.2"))).unwrap();
        assert_eq!(found.cluster_url.to_string(), "https://10.0.0.2/");
    }

    #[test]
    fn programs_are_not_started_for_a_token() {
        let file = kubeconfig("exec: {apiVersion: client.authentication.k8s.io/v1, command: aws}");
        let access = Access::Kubeconfig { file: file.path().to_path_buf(), url: None };
        refused(&access, &["\"exec\"", "tokenFile", file.path().to_str().unwrap()]);
    }

    #[test]
    fn secrets_of_a_kubeconfig_are_not_shown() {
        for user in ["token: [hush]", "token: {hush: hush}", "token: 'hush", "password: !x [hush]"]
        {
            let file = kubeconfig(user);
            let access = Access::Kubeconfig { file: file.path().to_path_buf(), url: None };
            let said = config(&access).unwrap_err();
            assert!(!format!("{said} {said:?}").contains("hush"), "{said:?}");
            assert!(said.to_string().contains(file.path().to_str().unwrap()), "{said}");
        }
        let file = kubeconfig("token: hush");
        let access = Access::Kubeconfig { file: file.path().to_path_buf(), url: None };
        assert!(!format!("{:?}", config(&access).unwrap()).contains("hush"));
        refused(&Access::Url("ftp://root:hush@a".into()), &["\"ftp://a\""]);
        let found = config(&Access::Url("https://root:hush@10.0.0.1".into())).unwrap();
        assert_eq!(found.cluster_url.to_string(), "https://10.0.0.1/");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let missing = Access::Kubeconfig { file: "/no/such/file".into(), url: None };
        refused(&missing, &["/no/such/file", "No such file"]);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "clusters: [").unwrap();
        let broken = Access::Kubeconfig { file: file.path().to_path_buf(), url: None };
        refused(&broken, &["kubeconfig", file.path().to_str().unwrap()]);
        let pod = Access::Pod { url: "https://10.96.0.1".into(), dir: "/no/such".into() };
        refused(&pod, &["/no/such/token"]);
        for url in ["", "10.0.0.1:6443", "ftp://x", "https://"] {
            refused(&Access::Url(url.into()), &[&format!("{url:?}"), "https://10.96.0.1:443"]);
        }
    }

    #[test]
    fn pods_are_let_in_by_their_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("token"), "t").unwrap();
        fs::write(dir.path().join("ca.crt"), "").unwrap();
        let url = "https://10.96.0.1:443".to_owned();
        let found = config(&Access::Pod { url, dir: dir.path().to_path_buf() }).unwrap();
        assert_eq!(found.root_cert_file, Some(dir.path().join("ca.crt")));
        assert_eq!(found.root_cert, Some(Vec::new()), "kube does not look for others");
        let token = dir.path().join("token");
        assert_eq!(found.auth_info.token_file.as_deref(), token.to_str());
    }
}
