// SPDX-License-Identifier: Apache-2.0
//! A system without CA certificates.

use crate::run;

/// Directories in which rustls-native-certs looks for certificates, and the variables that name others.
const HIDE: &str = "
for dir in /etc/ssl /etc/pki /etc/openssl /etc/certs /usr/lib/ssl /usr/share/ca-certificates \\
    /usr/share/ssl /usr/local/ssl /usr/local/openssl /usr/local/share /usr/ssl /var/ssl /opt/etc/ssl \\
    \"$SSL_CERT_DIR\"; do
    test ! -d \"$dir\" || mount -t tmpfs tmpfs \"$dir\"
done
test ! -f \"$SSL_CERT_FILE\" || mount --bind /dev/null \"$SSL_CERT_FILE\"
";

/// Hides the system's CA certificates from this test, as in an image that contains only the program. Works only
/// inside [`in_netns`](crate::in_netns), which has its own mounts.
#[track_caller]
pub fn hide_system_certificates() {
    run("sh", &["-ec", HIDE]);
}
