//! Addresses a daemon could not have, said so that the operator knows what to do.
//!
//! Every listening socket of both daemons (UDP and TCP) reports its failure through [`BindError`],
//! so a port in use reads the same wherever it happens.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// Connections that the kernel keeps for us between two turns of the control thread, as many as it
/// grants by default (`net.core.somaxconn`, ip-sysctl.rst): who comes beyond must ask again, a
/// second later.
const BACKLOG: u32 = 4_096;

/// A configured address that cannot be listened on. Displays as one line that ends in the remedy.
#[derive(Debug, thiserror::Error)]
#[error(
    "{key} = {address}: cannot listen on {protocol}: {cause}; {}",
    remedy(cause)
)]
pub struct BindError {
    key: &'static str,
    address: SocketAddr,
    protocol: &'static str,
    cause: io::Error,
}

impl BindError {
    /// `key` is the dotted configuration key; `protocol` is `UDP` or `TCP`.
    pub fn new(
        key: &'static str,
        address: SocketAddr,
        protocol: &'static str,
        cause: io::Error,
    ) -> Self {
        Self {
            key,
            address,
            protocol,
            cause,
        }
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process has this port: stop it (ss -lnptu names it) or configure another port"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this host has no such address: use one that `ip addr` shows, or 0.0.0.0 or [::]"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE: grant it or configure a higher port"
        }
        _ => "check the address and this process's limits",
    }
}

/// Listens for TCP at the address of a configuration key.
///
/// # Errors
///
/// The address, why it cannot be had, and the remedy.
pub fn tcp(key: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    listen(address).map_err(|cause| BindError::new(key, address, "TCP", cause))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address.is_ipv4() {
        true => TcpSocket::new_v4(),
        false => TcpSocket::new_v6(),
    }?;
    // What is left of a former process's connections must not keep this one from its port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn port_in_use_names_key_address_and_remedy() {
        let first = tcp("admin.listen", "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        let line = tcp("admin.listen", address).unwrap_err().to_string();
        assert_eq!(
            line,
            format!(
                "admin.listen = {address}: cannot listen on TCP: Address already in use (os error \
                 98); another process has this port: stop it (ss -lnptu names it) or configure \
                 another port"
            )
        );
    }

    #[tokio::test]
    async fn foreign_address_says_so() {
        let address = "192.0.2.1:9464".parse().unwrap();
        let line = tcp("admin.listen", address).unwrap_err().to_string();
        assert!(line.contains("this host has no such address"), "{line}");
    }
}
