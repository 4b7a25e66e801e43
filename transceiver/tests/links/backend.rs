//! Backends played by threads of the test: a listener, and what is done with each connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use async_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use async_tungstenite::tungstenite::{self, Message, WebSocket};

use crate::worker::PATIENCE;

/// A listener on a port of its own.
pub(crate) struct Listener {
    pub(crate) listener: TcpListener,
}

impl Listener {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { listener }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("ws://{}/", self.address())
    }

    /// The next connection, as it is.
    pub(crate) fn accept_raw(&self) -> TcpStream {
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// The next connection, with its handshake answered.
    pub(crate) fn accept(&self) -> WebSocket<TcpStream> {
        tungstenite::accept(self.accept_raw()).unwrap()
    }

    /// Plays a backend for each of `count` connections, one after the other.
    pub(crate) fn play(
        self,
        count: usize,
        play: impl Fn(WebSocket<TcpStream>) + Send + 'static,
    ) -> JoinHandle<()> {
        thread::spawn(move || {
            for _ in 0..count {
                play(self.accept());
            }
        })
    }
}

/// Answers the handshake, selecting `subprotocol`; gives the request too.
#[expect(clippy::result_large_err, reason = "the library's callback is so")]
pub(crate) fn accept_with<S: Read + Write>(
    stream: S,
    subprotocol: Option<&'static str>,
) -> (WebSocket<S>, Request) {
    let mut seen = None;
    let answer = |request: &Request, mut response: Response| -> Result<Response, ErrorResponse> {
        seen = Some(request.clone());
        if let Some(subprotocol) = subprotocol {
            let value = subprotocol.parse().unwrap();
            response
                .headers_mut()
                .insert("Sec-WebSocket-Protocol", value);
        }
        Ok(response)
    };
    let socket = tungstenite::accept_hdr(stream, answer).unwrap();
    (socket, seen.unwrap())
}

/// Sends back every message until the other side closes; says how it did.
pub(crate) fn echo<S: Read + Write>(mut socket: WebSocket<S>) -> Option<(u16, String)> {
    loop {
        match socket.read() {
            Ok(message @ (Message::Text(_) | Message::Binary(_))) => {
                socket.send(message).unwrap();
            }
            Ok(Message::Close(frame)) => {
                let said = frame.map(|frame| (frame.code.into(), frame.reason.as_str().to_owned()));
                // Answers the close, and hangs up.
                while socket.read().is_ok() {}
                return said;
            }
            Ok(_) => {}
            Err(_) => return None,
        }
    }
}

/// Ends a connection with a reset, whatever is on its way.
pub(crate) fn reset(stream: &TcpStream) {
    let socket = socket2::SockRef::from(stream);
    socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
}
