// SPDX-License-Identifier: Apache-2.0
//! Address and credentials of an API server.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::Config;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use text::{ErrorChain, url};

use crate::{Error, Result};

/// Directory in which kubelet places the credentials of a pod.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How to reach the API server, and with which credentials.
#[derive(Clone, Debug)]
pub enum Access {
    /// The credentials of a pod: the files `token` and `ca.crt` in `dir`, usually [`SERVICE_ACCOUNT`]. Both are read
    /// again every minute, because kubelet replaces them.
    Pod { url: String, dir: PathBuf },
    /// The current context of a kubeconfig file. `url` overrides the address in it. A `tokenFile` in it is read again
    /// every minute.
    Kubeconfig { file: PathBuf, url: Option<String> },
    /// No credentials, for example through `kubectl proxy`.
    Url(String),
}

impl Access {
    pub(crate) async fn config(&self) -> Result<Config> {
        let mut config = match self {
            Access::Pod { url, dir } => pod_config(url, dir)?,
            Access::Kubeconfig { file, url } => kubeconfig(file, url.as_deref()).await?,
            Access::Url(url) => Config::new(parse(url)?),
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // Repeating a write that may have been carried out could hide a conflict.
        config.default_retry = false;
        if !needs_system_certificates(&config) {
            // Without this kube loads the system's certificates and fails if there are none, although it would not
            // use them. `root_cert_file` replaces the empty list.
            config.root_cert.get_or_insert_default();
        }
        Ok(config)
    }
}

/// Returns whether only the system's CA certificates can verify the server.
pub(crate) fn needs_system_certificates(config: &Config) -> bool {
    config.cluster_url.scheme_str() == Some("https")
        && config.root_cert.is_none()
        && config.root_cert_file.is_none()
        && !config.accept_invalid_certs
}

fn pod_config(url: &str, dir: &Path) -> Result<Config> {
    let (token, ca) = (dir.join("token"), dir.join("ca.crt"));
    for file in [&token, &ca] {
        fs::read(file).map_err(|cause| unreadable(file, &cause))?;
    }
    let mut config = Config::new(parse(url)?);
    config.root_cert_file = Some(ca);
    config.auth_info.token_file = Some(token.to_string_lossy().into_owned());
    Ok(config)
}

async fn kubeconfig(file: &Path, url: Option<&str>) -> Result<Config> {
    fs::read(file).map_err(|cause| unreadable(file, &cause))?;
    let invalid =
        |cause| Error::Invalid(format!("kubeconfig {}: {}", file.display(), ErrorChain(&cause)));
    let kubeconfig = Kubeconfig::read_from(file).map_err(|cause| match cause {
        KubeconfigError::Parse(cause) => malformed(file, &cause.to_string()),
        other => invalid(other),
    })?;
    let has_proxy = kubeconfig
        .clusters
        .iter()
        .any(|named| named.cluster.as_ref().is_some_and(|cluster| cluster.proxy_url.is_some()));
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(invalid)?;
    if !has_proxy {
        // kube has read it from the environment, which is not meant for the agent.
        config.proxy_url = None;
    }
    check_user(file, &config.auth_info)?;
    if let Some(url) = url {
        config.cluster_url = parse(url)?;
    }
    Ok(config)
}

/// The YAML parser quotes lines of the file, which may contain a token or a key, so only the line number is shown.
fn malformed(file: &Path, cause: &str) -> Error {
    let number = |word: &str| {
        let (_, rest) = cause.split_once(word)?;
        let digits = rest.trim_start().split(|digit: char| !digit.is_ascii_digit()).next()?;
        digits.parse::<u32>().ok()
    };
    let place = number("line").map(|line| format!(", near line {line}")).unwrap_or_default();
    Error::Invalid(format!(
        "kubeconfig {}: not a valid kubeconfig in YAML{place}; the text is not shown because it may contain a token",
        file.display()
    ))
}

/// Rejects users whose token comes from a program, because podwire starts no programs.
fn check_user(file: &Path, user: &AuthInfo) -> Result<()> {
    let key = match user {
        AuthInfo { exec: Some(_), .. } => "exec",
        AuthInfo { auth_provider: Some(_), .. } => "auth-provider",
        _ => return Ok(()),
    };
    Err(Error::Invalid(format!(
        "kubeconfig {}: the user has {key:?}, which starts a program; use a token, a \
         tokenFile, a client certificate, or a user name and password",
        file.display()
    )))
}

fn parse(url: &str) -> Result<http::Uri> {
    let plain = url::without_credentials(url);
    let url = plain.as_deref().unwrap_or(url);
    let invalid = || {
        Error::Invalid(format!(
            "invalid address of the Kubernetes API {url:?}: expected a URL such as https://10.96.0.1:443"
        ))
    };
    let uri: http::Uri = url.parse().map_err(|_| invalid())?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    if is_http && uri.host().is_some() { Ok(uri) } else { Err(invalid()) }
}

fn unreadable(file: &Path, cause: &std::io::Error) -> Error {
    Error::Invalid(format!("cannot read {}: {cause}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(access: &Access) -> Result<Config> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(access.config())
    }

    fn check_invalid(access: &Access, texts: &[&str]) {
        let error = config(access).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        for text in texts {
            assert!(error.to_string().contains(text), "{error} should contain {text:?}");
        }
    }

    fn kubeconfig_file(user: &str) -> tempfile::NamedTempFile {
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
    fn kubeconfig_address_can_be_overridden() {
        let file = kubeconfig_file("tokenFile: /run/token");
        let access = |url: Option<&str>| Access::Kubeconfig {
            file: file.path().to_path_buf(),
            url: url.map(str::to_owned),
        };
        let parsed = config(&access(None)).unwrap();
        assert_eq!(parsed.cluster_url.to_string(), "https://10.0.0.1:6443/");
        assert_eq!(parsed.auth_info.token_file.as_deref(), Some("/run/token"));
        let parsed = config(&access(Some("https://10.0.0.2"))).unwrap();
        assert_eq!(parsed.cluster_url.to_string(), "https://10.0.0.2/");
    }

    #[test]
    fn kubeconfig_with_exec_is_rejected() {
        let file =
            kubeconfig_file("exec: {apiVersion: client.authentication.k8s.io/v1, command: aws}");
        let access = Access::Kubeconfig { file: file.path().to_path_buf(), url: None };
        check_invalid(&access, &["\"exec\"", "tokenFile", file.path().to_str().unwrap()]);
    }

    #[test]
    fn errors_contain_no_secrets() {
        for user in ["token: [hush]", "token: {hush: hush}", "token: 'hush", "password: !x [hush]"]
        {
            let file = kubeconfig_file(user);
            let access = Access::Kubeconfig { file: file.path().to_path_buf(), url: None };
            let error = config(&access).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hush"), "{error:?}");
            assert!(error.to_string().contains(file.path().to_str().unwrap()), "{error}");
        }
        let file = kubeconfig_file("token: hush");
        let access = Access::Kubeconfig { file: file.path().to_path_buf(), url: None };
        assert!(!format!("{:?}", config(&access).unwrap()).contains("hush"));
        check_invalid(&Access::Url("ftp://root:hush@a".into()), &["\"ftp://a\""]);
        let parsed = config(&Access::Url("https://root:hush@10.0.0.1".into())).unwrap();
        assert_eq!(parsed.cluster_url.to_string(), "https://10.0.0.1/");
    }

    #[test]
    fn errors_name_the_file_or_url() {
        let missing = Access::Kubeconfig { file: "/no/such/file".into(), url: None };
        check_invalid(&missing, &["/no/such/file", "No such file"]);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "clusters: [").unwrap();
        let broken = Access::Kubeconfig { file: file.path().to_path_buf(), url: None };
        check_invalid(&broken, &["kubeconfig", file.path().to_str().unwrap()]);
        let pod = Access::Pod { url: "https://10.96.0.1".into(), dir: "/no/such".into() };
        check_invalid(&pod, &["/no/such/token"]);
        for url in ["", "10.0.0.1:6443", "ftp://x", "https://"] {
            check_invalid(
                &Access::Url(url.into()),
                &[&format!("{url:?}"), "https://10.96.0.1:443"],
            );
        }
    }

    #[test]
    fn pod_credentials_come_from_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("token"), "t").unwrap();
        fs::write(dir.path().join("ca.crt"), "").unwrap();
        let url = "https://10.96.0.1:443".to_owned();
        let parsed = config(&Access::Pod { url, dir: dir.path().to_path_buf() }).unwrap();
        assert_eq!(parsed.root_cert_file, Some(dir.path().join("ca.crt")));
        assert_eq!(parsed.root_cert, Some(Vec::new()), "kube loads no other certificates");
        let token = dir.path().join("token");
        assert_eq!(parsed.auth_info.token_file.as_deref(), token.to_str());
    }
}
