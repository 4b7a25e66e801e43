//! A small HTTP/1.1 server for the control thread: bounded in connections, header time and life.
//!
//! The signalling port is open to strangers, so everything they can make us hold is limited here:
//! at most [`HttpLimits::connections_max`] connections, each of which must begin to speak within
//! [`HttpLimits::header_timeout`] and deliver a request head within it, counted again for each
//! request, so an idle connection is closed by the same clock; a TLS handshake has that time, too.
//! A connection that becomes a WebSocket leaves both: whoever upgrades it bounds it. Bodies are the
//! routes' business.
//!
//! Connections are taken as they come, however many there are: where all places are taken, the one
//! that has waited for its client longest is closed for the newcomer, so whoever sends a request at
//! once is served in a crowd that sends nothing. One client has
//! [`HttpLimits::connections_per_client_max`]; what is beyond is refused with 429, and with 503
//! where requests in progress take all places. Refusing is bounded, too: in a flood, the rest is
//! closed without a word.
//!
//! Errors speak one shape everywhere, the one clients of the Realtime API parse: [`ApiError`].

mod connection;
mod places;
pub mod tls;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use connection::Connections;
use metrics::{Counter, Gauge};
use places::{NoPlace, Places};
use serde::Serialize;
use tls::Tls;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How long open requests may finish once the server is told to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause after a failed accept (no descriptors left): the listener stays readable, and a busy loop
/// would take the core from what could free one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a server holds for strangers, at most.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// Open connections.
    pub connections_max: usize,
    /// Open connections of one client: an IPv4 address or an IPv6 /64, other than this machine.
    pub connections_per_client_max: usize,
    /// Time for the first byte to arrive, and from there, or from the previous answer, for a
    /// request head.
    pub header_timeout: Duration,
}

/// What a server counts.
#[derive(Debug, Clone)]
pub struct HttpMetrics {
    /// Open connections.
    pub connections: Gauge,
    /// Connections closed because their client has its share.
    pub over_share: Counter,
    /// Connections closed because requests in progress took all places.
    pub full: Counter,
    /// Connections that sent nothing and gave way to others.
    pub gave_way: Counter,
}

impl HttpMetrics {
    /// Handles that nobody reads.
    pub fn noop() -> Self {
        Self {
            connections: Gauge::noop(),
            over_share: Counter::noop(),
            full: Counter::noop(),
            gave_way: Counter::noop(),
        }
    }
}

/// Serves `router`, over TLS if there are certificates, until `stop` resolves, then lets open
/// requests finish for a bounded time.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    (limits, metrics): (HttpLimits, HttpMetrics),
    stop: impl Future<Output = ()>,
) {
    let places = Places::new(limits.connections_max, limits.connections_per_client_max);
    let (stopping, stopped) = watch::channel(false);
    let mut connections = Connections::new(router, tls, limits, stopped);
    let mut stop = pin!(stop);
    loop {
        // Places taken at once are far below 2^53.
        metrics.connections.set(places.taken() as f64);
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
            () = connections.one_ended() => continue,
        };
        match accepted {
            Ok(accepted) => admit(accepted, &places, &mut connections, &metrics),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; pausing");
                // Most likely descriptors are short, and here is one that nobody needs.
                if places.make_room() {
                    metrics.gave_way.increment(1);
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let _ = stopping.send(true);
    let _ = tokio::time::timeout(STOP_TIMEOUT, connections.all_ended()).await;
}

/// Gives a connection its place, or refuses it.
fn admit(
    (stream, peer): (TcpStream, SocketAddr),
    places: &Places,
    connections: &mut Connections,
    metrics: &HttpMetrics,
) {
    // Answers are small and latency is what the caller waits for.
    let _ = stream.set_nodelay(true);
    let (counter, status, code, message) = match places.take(peer.ip()) {
        Ok((place, made_room)) => {
            if made_room {
                metrics.gave_way.increment(1);
            }
            return connections.serve(stream, place);
        }
        Err(NoPlace::Share) => (
            &metrics.over_share,
            StatusCode::TOO_MANY_REQUESTS,
            "too_many_connections",
            "Too many connections of this client are open.",
        ),
        Err(NoPlace::Full) => (
            &metrics.full,
            StatusCode::SERVICE_UNAVAILABLE,
            "too_many_requests_in_progress",
            "Too many requests are in progress.",
        ),
    };
    counter.increment(1);
    let mut error = ApiError::new(status, code, message);
    error.retry_after_s = Some(RETRY_AFTER_S);
    connections.refuse(stream, error);
}

/// What a refused connection is told to wait: by then most requests in progress are over.
const RETRY_AFTER_S: u32 = 1;

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
    use super::connection::HEAD_BYTES_MAX;
    use super::*;
    use axum::routing::get;
    use std::time::Instant;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;

    const LIMITS: HttpLimits = HttpLimits {
        connections_max: 2,
        connections_per_client_max: 2,
        header_timeout: Duration::from_millis(200),
    };

    /// More than the kernel buffers of an answer that nobody reads.
    const LARGE_BYTES: usize = 16 << 20;

    async fn start(
        header_timeout: Duration,
    ) -> (SocketAddr, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let slow = || async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            "late"
        };
        let router = Router::new()
            .route("/", get(|| async { "here" }))
            .route("/large", get(|| async { vec![b'x'; LARGE_BYTES] }))
            .route("/slow", get(slow));
        let limits = HttpLimits {
            header_timeout,
            ..LIMITS
        };
        let limits = (limits, HttpMetrics::noop());
        let server = tokio::spawn(serve(listener, None, router, limits, async {
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
        let (address, _stop, _server) = start(LIMITS.header_timeout).await;
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
    async fn a_newcomer_is_served_at_once_and_the_longest_idle_connection_is_closed_for_it() {
        let (address, _stop, _server) = start(Duration::from_secs(60)).await;
        let mut first = TcpStream::connect(address).await.unwrap();
        // A head that never ends is idle, too.
        first.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
        let second = TcpStream::connect(address).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(ask(address, GET).await.ends_with("here"));
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(5), first.read_to_end(&mut rest));
        assert_eq!(closed.await.expect("it is closed").unwrap_or(0), 0);
        let mut byte = [0];
        let kept = second.try_read(&mut byte).unwrap_err();
        assert_eq!(kept.kind(), std::io::ErrorKind::WouldBlock);
    }

    #[tokio::test]
    async fn requests_in_progress_are_finished_and_who_comes_meanwhile_is_told_to_wait() {
        let (address, _stop, _server) = start(Duration::from_secs(60)).await;
        let slow = "GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let slow = [(); 2].map(|()| tokio::spawn(ask(address, slow)));
        tokio::time::sleep(Duration::from_millis(100)).await;
        let refused = ask(address, GET).await;
        assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
        assert!(refused.contains("retry-after: 1\r\n"), "{refused}");
        assert!(
            refused.contains("too_many_requests_in_progress"),
            "{refused}"
        );
        for slow in slow {
            assert!(slow.await.unwrap().ends_with("late"));
        }
        assert!(ask(address, GET).await.ends_with("here"));
    }

    #[tokio::test]
    async fn an_answer_on_its_way_is_not_cut_off_by_giving_way() {
        let (address, _stop, _server) = start(Duration::from_secs(60)).await;
        let mut reader = TcpStream::connect(address).await.unwrap();
        let request = b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n";
        reader.write_all(request).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        for _ in 0..4 {
            assert!(ask(address, GET).await.ends_with("here"));
        }
        let mut answer = vec![0; LARGE_BYTES];
        reader.read_exact(&mut answer).await.unwrap();
    }

    #[tokio::test]
    async fn oversize_head_is_refused() {
        let (address, _stop, _server) = start(LIMITS.header_timeout).await;
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
        let (address, stop, server) = start(LIMITS.header_timeout).await;
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
