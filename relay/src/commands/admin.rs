//! Talking to a running relay's admin surface, for the subcommands that look at one.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, bail};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Where `syrinx-relay` answers unless it is configured otherwise.
pub(crate) const DEFAULT_ADMIN: &str = "127.0.0.1:9464";

/// Asks for `path` by HTTP/1.0 and hands out the body as it comes.
///
/// # Errors
/// One line: nobody answers there, or the answer is an error, which is quoted.
pub(crate) fn get(admin: SocketAddr, path: &str) -> anyhow::Result<impl std::io::BufRead> {
    let ask = || -> std::io::Result<BufReader<TcpStream>> {
        let mut stream = TcpStream::connect_timeout(&admin, CONNECT_TIMEOUT)?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {admin}\r\n\r\n")?;
        Ok(BufReader::new(stream))
    };
    let mut answer = ask().with_context(|| {
        format!("--admin {admin}: no relay answers there; see [admin] listen of its configuration")
    })?;
    let mut line = String::new();
    answer
        .read_line(&mut line)
        .context("the relay's answer broke off")?;
    let status = line.split(' ').nth(1).unwrap_or_default().to_owned();
    while !line.trim_end().is_empty() {
        line.clear();
        answer
            .read_line(&mut line)
            .context("the relay's answer broke off")?;
    }
    if status != "200" {
        let mut body = String::new();
        answer
            .read_to_string(&mut body)
            .context("the relay's answer broke off")?;
        bail!("the relay answered {status}: {}", body.trim());
    }
    Ok(answer)
}
