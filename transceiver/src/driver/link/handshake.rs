//! The opening handshake (RFC 6455, 4.1).
//!
//! The library makes and reads the messages; they are exchanged and judged here, because its own
//! client refuses a server that selects none of the subprotocols it was asked for. The RFC leaves
//! that to the client, and a backend is not to be turned away for it.

use async_tungstenite::WebSocketStream;
use async_tungstenite::tungstenite::handshake::client::{Request, Response, generate_request};
use async_tungstenite::tungstenite::handshake::derive_accept_key;
use async_tungstenite::tungstenite::handshake::machine::TryParse as _;
use async_tungstenite::tungstenite::http::HeaderMap;
use async_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};

use super::connect::{Transport, WebSocket, loss_of};
use super::retry::Loss;
use crate::backend::link::LinkCause;

/// Longest head of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Bytes that one read asks for.
const READ_BYTES: usize = 1 << 10;

/// The header that names a subprotocol, both ways.
pub(super) const SUBPROTOCOL: &str = "Sec-WebSocket-Protocol";

/// Sends the request and reads the answer.
///
/// # Errors
/// The transport failed, or the answer opens no WebSocket.
pub(super) async fn shake_hands(
    mut transport: Box<dyn Transport>,
    request: Request,
    config: WebSocketConfig,
) -> Result<WebSocket, Loss> {
    let asked = request.headers().get(SUBPROTOCOL).cloned();
    let (request, key) = generate_request(request).map_err(|error| loss_of(&error))?;
    let written = transport.write_all(&request).await;
    written.map_err(|error| loss_of(&error.into()))?;
    let flushed = transport.flush().await;
    flushed.map_err(|error| loss_of(&error.into()))?;
    let mut head = Vec::with_capacity(READ_BYTES);
    let (length, response) = read_head(&mut transport, &mut head).await?;
    if response.status().as_u16() != 101 {
        return Err(Loss::refused(response.status().as_u16()));
    }
    let accept = derive_accept_key(key.as_bytes());
    let asked = asked.as_ref().map(|asked| asked.as_bytes());
    if let Some(problem) = problem_of(response.headers(), &accept, asked) {
        let detail = format!("answered the handshake {problem}");
        return Err(Loss::new(LinkCause::Refused, detail));
    }
    let behind = head.split_off(length);
    let (role, config) = (Role::Client, Some(config));
    Ok(WebSocketStream::from_partially_read(transport, behind, role, config).await)
}

/// Reads up to the end of the head, and what came behind it.
async fn read_head(
    transport: &mut Box<dyn Transport>,
    head: &mut Vec<u8>,
) -> Result<(usize, Response), Loss> {
    loop {
        let start = head.len();
        if start >= HEAD_BYTES_MAX {
            let detail = format!("the answer's head is longer than {HEAD_BYTES_MAX} bytes");
            return Err(Loss::new(LinkCause::Protocol, detail));
        }
        head.resize(start + READ_BYTES, 0);
        let read = transport.read(&mut head[start..]).await;
        let read = read.map_err(|error| loss_of(&error.into()))?;
        head.truncate(start + read);
        if read == 0 {
            let detail = "hung up during the handshake";
            return Err(Loss::new(LinkCause::Reset, detail));
        }
        let parsed = Response::try_parse(head).map_err(|error| loss_of(&error))?;
        if let Some((length, response)) = parsed {
            return Ok((length, response));
        }
    }
}

/// What keeps a 101 from opening a WebSocket.
fn problem_of(headers: &HeaderMap, accept: &str, asked: Option<&[u8]>) -> Option<&'static str> {
    let has_word = |name: &str, word: &str| {
        let values = headers.get_all(name).iter();
        let mut values = values.filter_map(|value| value.to_str().ok());
        values.any(|value| {
            value
                .split(',')
                .any(|found| found.trim().eq_ignore_ascii_case(word))
        })
    };
    if !has_word("Upgrade", "websocket") || !has_word("Connection", "Upgrade") {
        return Some("without an upgrade to WebSocket");
    }
    if headers
        .get("Sec-WebSocket-Accept")
        .is_none_or(|found| found != accept)
    {
        return Some("with a Sec-WebSocket-Accept that is not ours");
    }
    if headers.contains_key("Sec-WebSocket-Extensions") {
        return Some("with extensions, and none was asked for");
    }
    let selected = headers.get(SUBPROTOCOL).map(|selected| selected.as_bytes());
    if selected.is_some() && selected != asked {
        return Some("with a subprotocol that was not asked for");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        let pairs = pairs.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        pairs.collect()
    }

    const SOUND: [(&str, &str); 3] = [
        ("upgrade", "WebSocket"),
        ("connection", "keep-alive, Upgrade"),
        ("sec-websocket-accept", "key"),
    ];

    #[test]
    fn a_subprotocol_may_be_selected_or_not_but_not_another() {
        let mut sound = headers(&SOUND);
        assert_eq!(problem_of(&sound, "key", Some(b"media")), None);
        sound.insert(SUBPROTOCOL, "media".parse().unwrap());
        assert_eq!(problem_of(&sound, "key", Some(b"media")), None);
        assert!(problem_of(&sound, "key", Some(b"other")).is_some());
        assert!(problem_of(&sound, "key", None).is_some());
    }

    #[test]
    fn what_the_rfc_asks_of_an_answer_is_checked() {
        for (left_out, (name, _)) in SOUND.iter().enumerate() {
            let mut pairs = SOUND.to_vec();
            pairs.remove(left_out);
            let problem = problem_of(&headers(&pairs), "key", None);
            assert!(problem.is_some(), "{name}");
        }
        let sound = headers(&SOUND);
        assert!(problem_of(&sound, "another key", None).is_some());
        let mut extended = sound;
        extended.insert(
            "sec-websocket-extensions",
            "permessage-deflate".parse().unwrap(),
        );
        assert!(problem_of(&extended, "key", None).is_some());
    }
}
