// SPDX-License-Identifier: Apache-2.0
//! A certificate authority for tests, made with openssl.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::command::run;
use crate::require;

/// A certificate authority that signs for 127.0.0.1 and [`Wire::HOST`](crate::Wire::HOST).
#[derive(Debug)]
pub struct Authority(TempDir);

const REQUEST: &str = "
[req]
distinguished_name = name
x509_extensions = authority
prompt = no
[name]
CN = test
[authority]
basicConstraints = critical, CA:TRUE
";

const SIGNED: &str = "
basicConstraints = CA:FALSE
subjectAltName = IP:127.0.0.1, IP:192.168.90.254
extendedKeyUsage = serverAuth, clientAuth
";

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -config request.cnf";

impl Authority {
    /// Creates an authority with a new key.
    #[track_caller]
    pub fn new() -> Self {
        require!(Program("openssl"));
        let authority = Self(tempfile::tempdir().expect("create a temporary directory"));
        authority.write("request.cnf", REQUEST);
        authority.write("signed.cnf", SIGNED);
        authority.openssl(&format!("req -x509 {NEW_KEY} -keyout ca.key -out ca.pem -days 2"));
        authority
    }

    /// Creates the key `<name>.key` and the certificate `<name>.pem`.
    #[track_caller]
    pub fn sign(&self, name: &str) {
        self.openssl(&format!("req -new {NEW_KEY} -keyout {name}.key -out {name}.csr"));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2
             -extfile signed.cnf -out {name}.pem"
        ));
    }

    #[track_caller]
    fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).expect("write a temporary file");
    }

    #[track_caller]
    fn openssl(&self, words: &str) {
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        run("sh", &["-ec", &format!("cd {}; openssl {words} 2>&1", self.0.path().display())]);
    }

    /// Returns the path of a file. `ca.pem` is the certificate of the authority itself.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns an option with the path of a file as its value.
    pub fn flag(&self, flag: &str, file: &str) -> [String; 2] {
        [flag.to_owned(), self.file(file).display().to_string()]
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}
