//! Where a backend listens: `ws://`, `wss://` or a Unix socket, and what to ask for there.
//!
//! ```text
//! ws://host:port/path?query     wss://host:port/path?query     unix:/run/agent.sock[:/path?query]
//! ```
//!
//! `{model}` in path or query stands for the model that the client asked for, `{call}` for the name
//! of his call; both percent-encoded (RFC 3986, 2.1). Parsed once, when the configuration is read.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

/// What stands for the model in an address.
const MODEL: &str = "{model}";
/// What stands for the call.
const CALL: &str = "{call}";

/// Longest path of a Unix socket, in bytes: `sun_path` in sys/un.h, less its final nought.
const UNIX_PATH_BYTES_MAX: usize = 107;

/// Where to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// A TCP port.
    Tcp {
        /// A name to resolve, or an address.
        name: String,
        /// Its port.
        port: u16,
        /// Whether TLS is spoken there, and the certificate checked against `name`.
        tls: bool,
    },
    /// A Unix stream socket.
    Unix(PathBuf),
}

/// An address of a backend; see the module.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct BackendUrl {
    /// Where to connect.
    pub host: Host,
    /// Path and query of the handshake, with places for what differs between calls.
    request: String,
}

/// Why text is no address of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Neither of the three schemes.
    #[error("expected an address that begins with ws://, wss:// or unix:/")]
    Scheme,
    /// No host, or one with characters that no host has.
    #[error("the host is missing or has characters that no host name has")]
    Host,
    /// Not a port.
    #[error("the port is not a number from 1 to 65535")]
    Port,
    /// More than the kernel takes.
    #[error("the path of the socket is empty or longer than {UNIX_PATH_BYTES_MAX} bytes")]
    SocketPath,
    /// Characters that no request has.
    #[error("path and query are visible ASCII without #, and {MODEL} and {CALL} stand for values")]
    Request,
}

impl BackendUrl {
    /// Path and query of the handshake for a call of this name that asked for `model`.
    pub fn request(&self, model: Option<&str>, call: &str) -> String {
        self.request
            .replace(MODEL, &percent_encoded(model.unwrap_or_default()))
            .replace(CALL, &percent_encoded(call))
    }

    /// The `Host` header (RFC 9110, 7.2).
    pub fn authority(&self) -> String {
        match &self.host {
            Host::Tcp { name, port, tls } => {
                let name = bracketed(name);
                if *port == default_port(*tls) {
                    name
                } else {
                    format!("{name}:{port}")
                }
            }
            Host::Unix(_) => "localhost".to_owned(),
        }
    }
}

impl fmt::Display for BackendUrl {
    /// Without path and query, which may hold what is nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Tcp { name, port, tls } => {
                let scheme = if *tls { "wss" } else { "ws" };
                write!(f, "{scheme}://{}:{port}", bracketed(name))
            }
            Host::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl TryFrom<String> for BackendUrl {
    type Error = UrlError;

    fn try_from(text: String) -> Result<Self, UrlError> {
        text.parse()
    }
}

impl FromStr for BackendUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if let Some(rest) = text.strip_prefix("ws://") {
            return tcp(rest, false);
        }
        if let Some(rest) = text.strip_prefix("wss://") {
            return tcp(rest, true);
        }
        unix(text.strip_prefix("unix:").ok_or(UrlError::Scheme)?)
    }
}

fn tcp(rest: &str, tls: bool) -> Result<BackendUrl, UrlError> {
    let cut = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, request) = rest.split_at(cut);
    let (name, port) = split_port(authority)?;
    let port = match port {
        None => default_port(tls),
        Some(port) => match port.parse() {
            Ok(0) | Err(_) => return Err(UrlError::Port),
            Ok(port) => port,
        },
    };
    Ok(BackendUrl {
        host: Host::Tcp {
            name: name.to_owned(),
            port,
            tls,
        },
        request: checked_request(request)?,
    })
}

/// Host and port; an IPv6 address stands in brackets (RFC 3986, 3.2.2) and is given without.
fn split_port(authority: &str) -> Result<(&str, Option<&str>), UrlError> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (name, rest) = rest.split_once(']').ok_or(UrlError::Host)?;
        let is_address = name.parse::<std::net::Ipv6Addr>().is_ok();
        let port = rest.strip_prefix(':');
        return match (is_address, rest.is_empty(), port) {
            (true, true, _) => Ok((name, None)),
            (true, false, Some(port)) => Ok((name, Some(port))),
            _ => Err(UrlError::Host),
        };
    }
    let (name, port) = match authority.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (authority, None),
    };
    let is_named = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if name.is_empty() || !name.chars().all(is_named) {
        return Err(UrlError::Host);
    }
    Ok((name, port))
}

fn unix(rest: &str) -> Result<BackendUrl, UrlError> {
    let (path, request) = rest.split_once(':').unwrap_or((rest, ""));
    if !path.starts_with('/') {
        return Err(UrlError::Scheme);
    }
    if !(2..=UNIX_PATH_BYTES_MAX).contains(&path.len()) {
        return Err(UrlError::SocketPath);
    }
    Ok(BackendUrl {
        host: Host::Unix(PathBuf::from(path)),
        request: checked_request(request)?,
    })
}

fn checked_request(text: &str) -> Result<String, UrlError> {
    let slash = if text.starts_with('/') { "" } else { "/" };
    let request = format!("{slash}{text}");
    let plain = request.replace(MODEL, "").replace(CALL, "");
    let is_sound = |c: char| c.is_ascii_graphic() && !"#{}\"<>\\^`|".contains(c);
    if plain.chars().all(is_sound) {
        Ok(request)
    } else {
        Err(UrlError::Request)
    }
}

fn default_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

fn bracketed(name: &str) -> String {
    if name.contains(':') {
        format!("[{name}]")
    } else {
        name.to_owned()
    }
}

/// Everything but unreserved characters (RFC 3986, 2.3) as `%XX`.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> BackendUrl {
        text.parse().unwrap()
    }

    #[test]
    fn reads_the_three_schemes() {
        let url = parsed("ws://agent.internal:8765/v1/realtime?model={model}&user={call}");
        let host = Host::Tcp {
            name: "agent.internal".to_owned(),
            port: 8765,
            tls: false,
        };
        assert_eq!(url.host, host);
        assert_eq!(
            url.request(Some("gpt realtime/2"), "rtc_1"),
            "/v1/realtime?model=gpt%20realtime%2F2&user=rtc_1"
        );
        assert_eq!(url.request(None, ""), "/v1/realtime?model=&user=");
        assert_eq!(url.authority(), "agent.internal:8765");
        assert_eq!(url.to_string(), "ws://agent.internal:8765");

        let url = parsed("wss://[2001:db8::7]/");
        assert_eq!(url.authority(), "[2001:db8::7]");
        assert_eq!(url.to_string(), "wss://[2001:db8::7]:443");

        let url = parsed("unix:/run/agent.sock:/media?x=1");
        assert_eq!(url.host, Host::Unix("/run/agent.sock".into()));
        assert_eq!(url.request(None, ""), "/media?x=1");
        assert_eq!(parsed("unix:/run/agent.sock").request(None, ""), "/");
        assert_eq!(
            parsed("ws://h?model={model}").request(Some("m"), ""),
            "/?model=m"
        );
    }

    #[test]
    fn refuses_what_is_no_address() {
        for (text, problem) in [
            ("http://h/", UrlError::Scheme),
            ("unix:run/agent.sock", UrlError::Scheme),
            ("", UrlError::Scheme),
            ("ws://", UrlError::Host),
            ("ws:///path", UrlError::Host),
            ("ws://user:secret@h/", UrlError::Port),
            ("ws://[::1/", UrlError::Host),
            ("ws://[::1]x/", UrlError::Host),
            ("ws://h:0/", UrlError::Port),
            ("ws://h:65536/", UrlError::Port),
            ("unix:/", UrlError::SocketPath),
            ("ws://h/a b", UrlError::Request),
            ("ws://h/#top", UrlError::Request),
            ("ws://h/{modell}", UrlError::Request),
            ("ws://h/\r\nx: y", UrlError::Request),
        ] {
            assert_eq!(text.parse::<BackendUrl>(), Err(problem), "{text:?}");
        }
        let long = format!("unix:/{}", "x".repeat(UNIX_PATH_BYTES_MAX));
        assert_eq!(long.parse::<BackendUrl>(), Err(UrlError::SocketPath));
    }
}
