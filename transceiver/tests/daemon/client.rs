//! The least HTTP client that can tell an answer's parts apart.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};

use crate::process::{PATIENCE, read_all};

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The members of the JSON error.
    pub(crate) fn error(&self) -> serde_json::Value {
        assert_eq!(
            self.header("content-type"),
            Some("application/json"),
            "{self:?}"
        );
        let body: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        let error = body["error"].clone();
        for member in ["message", "type", "code", "param"] {
            assert!(error.get(member).is_some(), "no {member} in {error}");
        }
        error
    }
}

/// One request on a connection of its own.
pub(crate) fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Answer> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\n");
    if !headers.iter().any(|(name, _)| *name == "connection") {
        head += "connection: close\r\n";
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", body.len());
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(head.as_bytes())?;
    // A server that refuses by the head alone may close before it has read the body.
    let _ = stream.write_all(body);
    Ok(parse(&read_all(stream)))
}

/// Splits an answer.
pub(crate) fn parse(text: &str) -> Answer {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default().split(' ').nth(1);
    let status = status.and_then(|status| status.parse().ok());
    let header = |line: &str| {
        line.split_once(": ")
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    Answer {
        status: status.unwrap_or_else(|| panic!("no HTTP answer: {text:?}")),
        headers: lines.filter_map(header).collect(),
        body: body.to_owned(),
    }
}
