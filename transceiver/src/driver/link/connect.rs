//! One attempt to connect: the transport, TLS where it is spoken, and the WebSocket handshake.
//!
//! Every step can be cancelled by dropping the future: the descriptor goes with it. The deadline is
//! the caller's.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::Pin;
use std::time::{Duration, Instant};

use async_tungstenite::WebSocketStream;
use async_tungstenite::tungstenite::error::{Error as WsError, ProtocolError};
use async_tungstenite::tungstenite::handshake::client::{Request, generate_key};
use async_tungstenite::tungstenite::protocol::WebSocketConfig;
use futures_lite::{AsyncRead, AsyncWrite};
use futures_rustls::TlsConnector;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use syrinx_shared::uring::{Slices, Stream};

use super::MESSAGE_BYTES_MAX;
use super::handshake::{SUBPROTOCOL, shake_hands};
use super::retry::Loss;
use crate::backend::link::{LinkCause, LinkTarget};
use crate::driver::pool::{Backend, Lease, Target, as_tls_error};

/// Bytes that the kernel takes ahead of what the network takes: what waits there for a backend that
/// reads slowly can no longer be dropped.
const UNSENT_BYTES_MAX: u32 = 16 << 10;

/// How soon a Unix socket whose listener has a full queue is tried again.
const UNIX_PAUSE: Duration = Duration::from_millis(20);

/// Bytes that one read asks for. A thousand links have a buffer of this size each.
const READ_BYTES: usize = 8 << 10;

/// Bytes gathered before they are written; a flush writes whatever there is.
const WRITE_BYTES: usize = 16 << 10;

/// A byte stream: TCP, TLS or a Unix socket.
pub(super) trait Transport: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Transport for T {}

/// An open WebSocket.
pub(super) type WebSocket = WebSocketStream<Box<dyn Transport>>;

/// Connects to the address of `lease`.
///
/// # Errors
/// Why it came to nothing.
pub(super) async fn connect(
    slices: &Slices,
    backend: &Backend,
    lease: &Lease,
    target: &LinkTarget,
) -> Result<WebSocket, Loss> {
    let transport = open(slices, backend, lease).await?;
    let request = request(backend, lease, target)?;
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .write_buffer_size(WRITE_BYTES)
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    shake_hands(transport, request, config).await
}

async fn open(
    slices: &Slices,
    backend: &Backend,
    lease: &Lease,
) -> Result<Box<dyn Transport>, Loss> {
    let unreachable = |error: io::Error| {
        let detail = format!("{}: {error}", lease.url());
        Loss::new(LinkCause::Unreachable, detail)
    };
    match lease.target() {
        Target::Unix(path) => {
            let stream = open_unix(slices, path).await.map_err(unreachable)?;
            Ok(Box::new(stream))
        }
        Target::Tcp(address, server_name) => {
            let stream = open_tcp(slices, *address).await.map_err(unreachable)?;
            let (Some(name), Some(tls)) = (server_name, backend.tls()) else {
                return Ok(Box::new(stream));
            };
            let connector = TlsConnector::from(std::sync::Arc::clone(tls));
            let stream = connector.connect(name.clone(), stream).await;
            let stream = stream.map_err(|error| loss_of(&WsError::Io(error)))?;
            Ok(Box::new(stream))
        }
    }
}

/// A listener with a full queue refuses for the moment, and nothing tells when that has passed.
async fn open_unix(slices: &Slices, path: &Path) -> io::Result<Stream<UnixStream>> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    loop {
        match socket.connect(&address) {
            Ok(()) => return Stream::new(slices, socket.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                slices.sleep_until(Instant::now() + UNIX_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// The options are set beforehand, and nothing is left behind when the attempt is given up.
async fn open_tcp(slices: &Slices, address: SocketAddr) -> io::Result<Stream<TcpStream>> {
    /// `EINPROGRESS` of asm-generic/errno.h: the handshake has begun (connect(2)).
    const IN_PROGRESS: i32 = 115;
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(IN_PROGRESS) => {}
        Err(error) => return Err(error),
    }
    let mut stream = Stream::new(slices, socket.into())?;
    // A send waits for the connection, and brings its error; one of nothing sends nothing.
    poll_fn(|context| Pin::new(&mut stream).poll_write(context, &[])).await?;
    Ok(stream)
}

fn request(backend: &Backend, lease: &Lease, target: &LinkTarget) -> Result<Request, Loss> {
    let url = lease.url();
    let authority = url.authority();
    let path = url.request(target.model.as_deref(), &target.call);
    let mut request = Request::builder()
        .uri(format!("ws://{authority}{path}"))
        .header("Host", authority)
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", generate_key())
        .header("User-Agent", concat!("syrinx/", env!("CARGO_PKG_VERSION")));
    if let Some(subprotocol) = target.subprotocol {
        request = request.header(SUBPROTOCOL, subprotocol);
    }
    for (name, value) in backend.headers() {
        request = request.header(name, value);
    }
    // What the configuration lets through is a request; a model of many kilobytes is none.
    let failed = |error| Loss {
        is_final: true,
        ..Loss::new(LinkCause::Unavailable, format!("no handshake: {error}"))
    };
    request.body(()).map_err(failed)
}

/// What an error of the WebSocket says about the link.
pub(super) fn loss_of(error: &WsError) -> Loss {
    match error {
        WsError::Io(cause) => match as_tls_error(cause) {
            Some(detail) => Loss::new(LinkCause::Tls, detail),
            None => Loss::new(LinkCause::Reset, cause.to_string()),
        },
        WsError::ConnectionClosed
        | WsError::AlreadyClosed
        | WsError::Protocol(
            ProtocolError::ResetWithoutClosingHandshake | ProtocolError::HandshakeIncomplete,
        ) => Loss::new(LinkCause::Reset, error.to_string()),
        _ => Loss::new(LinkCause::Protocol, error.to_string()),
    }
}
