// SPDX-License-Identifier: Apache-2.0
//! The address of the system bus: DBUS_SYSTEM_BUS_ADDRESS as the D-Bus specification defines it, or
//! the default socket.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

const VARIABLE: &str = "DBUS_SYSTEM_BUS_ADDRESS";
const DEFAULT: &[u8] = b"unix:path=/run/dbus/system_bus_socket";

/// Connects to the first address that answers.
pub(super) fn connect() -> io::Result<UnixStream> {
    let set = std::env::var_os(VARIABLE).filter(|text| !text.is_empty());
    connect_to(set.as_deref().map_or(DEFAULT, OsStr::as_bytes))
}

/// Several addresses are separated by semicolons.
fn connect_to(addresses: &[u8]) -> io::Result<UnixStream> {
    let mut last = unusable(addresses);
    for address in addresses.split(|byte| *byte == b';') {
        let Some(socket) = Socket::parse(address) else { continue };
        match socket.connect() {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn unusable(addresses: &[u8]) -> io::Error {
    let shown = String::from_utf8_lossy(addresses);
    let problem = format!(
        "{VARIABLE} is {shown:?}, expected an address such as \"unix:path=/run/dbus/system_bus_socket\""
    );
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}

#[derive(Debug, PartialEq, Eq)]
enum Socket {
    Path(Vec<u8>),
    Abstract(Vec<u8>),
}

impl Socket {
    /// Only the transport `unix` is supported: others lead to other machines or start a program.
    fn parse(address: &[u8]) -> Option<Self> {
        let keys = address.strip_prefix(b"unix:")?;
        let value = |key: &[u8]| {
            let mut pairs = keys.split(|byte| *byte == b',');
            let value = pairs.find_map(|pair| pair.strip_prefix(key)?.strip_prefix(b"="));
            value.and_then(unescaped).filter(|value| !value.is_empty())
        };
        match (value(b"path"), value(b"abstract")) {
            (Some(path), None) => Some(Self::Path(path)),
            (None, Some(name)) => Some(Self::Abstract(name)),
            _ => None,
        }
    }

    fn connect(&self) -> io::Result<UnixStream> {
        match self {
            Self::Path(path) => UnixStream::connect(OsStr::from_bytes(path)),
            Self::Abstract(name) => {
                UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)
            }
        }
    }
}

/// Replaces `%` and two hexadecimal digits by the byte.
fn unescaped(value: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            out.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digit = |at: usize| char::from(digits[at]).to_digit(16);
        out.push(u8::try_from(digit(0)? << 4 | digit(1)?).ok()?);
        rest = after;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn socket_is_parsed() {
        let check = |text: &str, expected: Option<Socket>| {
            assert_eq!(Socket::parse(text.as_bytes()), expected, "{text}");
        };
        let path = |path: &str| Some(Socket::Path(path.into()));
        check("unix:path=/run/bus", path("/run/bus"));
        check("unix:guid=00ff,path=/run/bus", path("/run/bus"));
        check("unix:path=/run/a%20%2cb%3B,guid=1", path("/run/a ,b;"));
        check("unix:abstract=/tmp/dbus-%41", Some(Socket::Abstract("/tmp/dbus-A".into())));
        for bad in [
            "",
            "unix:",
            "unix:path=",
            "unix:path=/a,abstract=b",
            "unix:path=/a%2",
            "unix:path=/a%zz",
            "unix:path=/a%",
            "tcp:host=localhost,port=1",
            "/run/dbus/system_bus_socket",
            "unix:runtime=yes",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn connect_uses_the_first_reachable_address() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("the bus");
        let _listener = UnixListener::bind(&path).unwrap();
        let shown = path.display().to_string().replace(' ', "%20");
        let nowhere = format!("{}/nowhere", directory.path().display());
        connect_to(format!("tcp:host=a;unix:path={nowhere};unix:path={shown};x").as_bytes())
            .unwrap();
        let refused = connect_to(format!("unix:path={nowhere};tcp:host=a").as_bytes());
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::NotFound);
        let unusable = connect_to(b"tcp:host=a,port=1").unwrap_err();
        assert!(unusable.to_string().contains("tcp:host=a,port=1"), "{unusable}");
    }
}
