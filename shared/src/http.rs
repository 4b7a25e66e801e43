//! A small HTTP/1.1 server for the control thread: bounded in connections, header time and life.
//!
//! The signalling port is open to strangers, so everything they can make us hold is limited here:
//! at most [`HttpLimits::connections_max`] connections (more wait in the kernel's backlog), each of
//! which must deliver a request head within [`HttpLimits::header_timeout`], counted again for each
//! request, so an idle connection is closed by the same clock; a TLS handshake has that time, too.
//! A connection that becomes a WebSocket leaves both: whoever upgrades it bounds it. One client has
//! [`HttpLimits::connections_per_client_max`] connections, and further ones are closed at once.
//! Bodies are the routes' business.
//!
//! Errors speak one shape everywhere, the one clients of the Realtime API parse: [`ApiError`].

mod places;
pub mod tls;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use places::{Place, Places};
use serde::Serialize;
use tls::Tls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long open requests may finish once the server is told to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause after a failed accept (no descriptors left): the listener stays readable, and a busy loop
/// would take the core from what could free one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Largest request head, in bytes. The largest header a client of ours sends is an ephemeral key
/// that carries a whole session: 22 KiB.
const HEAD_BYTES_MAX: usize = 32 * 1024;

/// What a server holds for strangers, at most.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// Open connections.
    pub connections_max: usize,
    /// Open connections of one client: an IPv4 address or an IPv6 /64, other than this machine.
    pub connections_per_client_max: usize,
    /// Time for a request head to arrive, from the accept or from the previous answer.
    pub header_timeout: Duration,
}

/// Serves `router`, over TLS if there are certificates, until `stop` resolves, then lets open
/// requests finish for a bounded time.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    limits: HttpLimits,
    stop: impl Future<Output = ()>,
) {
    let places = Places::new(limits.connections_max, limits.connections_per_client_max);
    let (stopping, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = accept(&listener, &places) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            // That client has its share.
            Ok((_, None)) => {}
            Ok((stream, Some(place))) => {
                // Answers are small and latency is what the caller waits for.
                let _ = stream.set_nodelay(true);
                let service = TowerToHyperService::new(router.clone());
                let stopped = stopped.clone();
                match &tls {
                    None => connections.spawn(converse(stream, service, limits, stopped, place)),
                    Some(tls) => {
                        let accepting = tls.acceptor().accept(stream);
                        connections.spawn(async move {
                            let accepting = tokio::time::timeout(limits.header_timeout, accepting);
                            // Who speaks no TLS, or breaks off, is owed no answer.
                            if let Ok(Ok(stream)) = accepting.await {
                                converse(stream, service, limits, stopped, place).await;
                            }
                        })
                    }
                };
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; pausing");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let _ = stopping.send(true);
    let all_done = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(STOP_TIMEOUT, all_done).await;
}

/// The next connection, once there is room for one.
async fn accept(listener: &TcpListener, places: &Places) -> io::Result<(TcpStream, Option<Place>)> {
    let place = places.free().await;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, places.take(place, peer.ip())))
}

/// One connection, until it ends or the server stops.
async fn converse<S>(
    stream: S,
    service: TowerToHyperService<Router>,
    limits: HttpLimits,
    mut stopped: watch::Receiver<bool>,
    _place: Place,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new());
    builder.header_read_timeout(limits.header_timeout);
    builder.max_buf_size(HEAD_BYTES_MAX);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection.with_upgrades());
    tokio::select! {
        // A client that breaks off or is too slow is its own business.
        _ = connection.as_mut() => return,
        _ = stopped.wait_for(|stopping| *stopping) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// What went wrong with a request, in the Realtime API's shape:
/// `{"error":{"message","type","code","param"}}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// Status of the answer.
    pub status: StatusCode,
    /// For a person: what is wrong and what to do.
    pub message: String,
    /// For a program: a stable word.
    pub code: &'static str,
    /// The part of the request that is wrong, if one is.
    pub param: Option<&'static str>,
    /// Seconds after which another try may succeed; given with 429 and 503.
    pub retry_after_s: Option<u32>,
    /// The methods the path has; given with 405 (RFC 9110 15.5.6).
    pub allow: Option<&'static str>,
}

impl ApiError {
    /// An error about no particular part of the request.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            status,
            message,
            code,
            param: None,
            retry_after_s: None,
            allow: None,
        }
    }

    /// 404 for a path that nothing is at.
    pub fn unknown_path() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "unknown_path",
            "There is nothing at this path.",
        )
    }

    /// 405 for a path that has other methods, such as `GET, HEAD`.
    pub fn wrong_method(allow: &'static str) -> Self {
        let message = format!("This path takes {allow} only.");
        let wrong = Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            message,
        );
        Self {
            allow: Some(allow),
            ..wrong
        }
    }
}

/// The JSON of an [`ApiError`].
#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ErrorDetail<'a>,
}

#[derive(Serialize)]
struct ErrorDetail<'a> {
    message: &'a str,
    r#type: &'static str,
    code: &'static str,
    param: Option<&'static str>,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let r#type = if self.status.is_server_error() {
            "server_error"
        } else {
            "invalid_request_error"
        };
        let detail = ErrorDetail {
            message: &self.message,
            r#type,
            code: self.code,
            param: self.param,
        };
        let mut response = (self.status, axum::Json(ErrorBody { error: detail })).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            // RFC 9110, 11.6.1: the answer says which credentials would do.
            let challenge = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, challenge);
        }
        if let Some(seconds) = self.retry_after_s {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(allow) = self.allow {
            response
                .headers_mut()
                .insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::net::SocketAddr;
    use std::time::Instant;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;

    const LIMITS: HttpLimits = HttpLimits {
        connections_max: 2,
        connections_per_client_max: 2,
        header_timeout: Duration::from_millis(200),
    };

    async fn start() -> (SocketAddr, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let router = Router::new().route("/", get(|| async { "here" })).route(
            "/slow",
            get(|| async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                "late"
            }),
        );
        let server = tokio::spawn(serve(listener, None, router, LIMITS, async {
            let _ = stopped.await;
        }));
        (address, stop, server)
    }

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    const GET: &str = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

    #[tokio::test]
    async fn half_sent_and_idle_connections_are_closed_by_the_header_clock() {
        let (address, _stop, _server) = start().await;
        let begun = Instant::now();
        let half = ask(address, "GET / HTTP/1.1\r\nhost:").await;
        assert!(half.is_empty() || half.contains("408"), "{half}");
        let idle = ask(address, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(idle.ends_with("here"), "{idle}");
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "both were closed by the server"
        );
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_wait_and_are_served_once_there_is_room() {
        let (address, _stop, _server) = start().await;
        let _first = TcpStream::connect(address).await.unwrap();
        let _second = TcpStream::connect(address).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let begun = Instant::now();
        assert!(ask(address, GET).await.ends_with("here"));
        assert!(
            begun.elapsed() >= Duration::from_millis(50),
            "it waited for a place"
        );
    }

    #[tokio::test]
    async fn oversize_head_is_refused() {
        let (address, _stop, _server) = start().await;
        let request = format!(
            "GET / HTTP/1.1\r\nx: {}\r\n\r\n",
            "y".repeat(2 * HEAD_BYTES_MAX)
        );
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431"),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn stop_lets_an_open_request_finish() {
        let (address, stop, server) = start().await;
        let slow = tokio::spawn(ask(address, "GET /slow HTTP/1.1\r\nhost: x\r\n\r\n"));
        tokio::time::sleep(Duration::from_millis(50)).await;
        stop.send(()).unwrap();
        assert!(slow.await.unwrap().ends_with("late"));
        tokio::time::timeout(Duration::from_secs(1), server)
            .await
            .unwrap()
            .unwrap();
        assert!(
            TcpStream::connect(address).await.is_err(),
            "the listener is closed"
        );
    }

    #[tokio::test]
    async fn error_has_the_shape_that_realtime_clients_parse() {
        let mut error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "full", "No room.");
        error.retry_after_s = Some(3);
        let response = error.into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "3");
        let body = axum::body::to_bytes(response.into_body(), 4096)
            .await
            .unwrap();
        assert_eq!(
            body,
            r#"{"error":{"message":"No room.","type":"server_error","code":"full","param":null}}"#
        );
        let response = ApiError::new(StatusCode::UNAUTHORIZED, "key", "No.").into_response();
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
        let response = ApiError::wrong_method("GET").into_response();
        assert_eq!(response.headers()[header::ALLOW], "GET");
    }
}
