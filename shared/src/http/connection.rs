//! Connections of a server, from the accept to the last byte.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use axum::response::IntoResponse as _;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::places::{Busy, Place};
use super::tls::Tls;
use super::{ApiError, HttpLimits, STOP_TIMEOUT};

/// Largest request head, in bytes. The largest header a client of ours sends is an ephemeral key
/// that carries a whole session: 22 KiB.
pub(super) const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Connections that are being refused at once; more are closed without a word. Each has
/// [`REFUSAL_TIMEOUT`].
const REFUSALS_MAX: usize = 32;
/// Time to hear that there is no place.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time to end for a connection that gives way and may have an answer on its way out.
const GIVE_WAY_TIMEOUT: Duration = Duration::from_secs(1);

/// All that are open.
pub(super) struct Connections {
    router: Router,
    tls: Option<Tls>,
    limits: HttpLimits,
    stopped: watch::Receiver<bool>,
    open: JoinSet<()>,
    refusals: Arc<Semaphore>,
}

impl Connections {
    pub(super) fn new(
        router: Router,
        tls: Option<Tls>,
        limits: HttpLimits,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        Self {
            router,
            tls,
            limits,
            stopped,
            open: JoinSet::new(),
            refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
        }
    }

    /// Resolves when one has ended; never while there is none.
    pub(super) async fn one_ended(&mut self) {
        if self.open.join_next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    pub(super) async fn all_ended(&mut self) {
        while self.open.join_next().await.is_some() {}
    }

    /// Serves a connection that has a place.
    ///
    /// Until its first byte comes it is a task that waits, and nothing more: HTTP begins with two
    /// buffers of 8 KiB.
    pub(super) fn serve(&mut self, stream: TcpStream, place: Arc<Place>) {
        let acceptor = self.tls.as_ref().map(Tls::acceptor);
        let router = self.router.clone();
        let (limits, mut stopped) = (self.limits, self.stopped.clone());
        let serving = async move {
            let mut first = [0];
            tokio::select! {
                spoken = timeout(limits.header_timeout, stream.peek(&mut first)) => match spoken {
                    Ok(Ok(1)) => {}
                    _ => return,
                },
                () = place.gives_way() => return,
                _ = stopped.wait_for(|stopping| *stopping) => return,
            }
            // Boxed, so that whoever says nothing does not hold room for it.
            match acceptor {
                None => Box::pin(exchange(stream, router, limits, stopped, place)).await,
                Some(acceptor) => {
                    let stream = Box::pin(shake_hands(acceptor, stream, limits, &place)).await;
                    if let Some(stream) = stream {
                        Box::pin(exchange(stream, router, limits, stopped, place)).await;
                    }
                }
            }
        };
        self.open.spawn(serving);
    }

    /// Answers the first request of a connection that has no place by `error`, and closes.
    pub(super) fn refuse(&mut self, stream: TcpStream, error: ApiError) {
        let Ok(permit) = Arc::clone(&self.refusals).try_acquire_owned() else {
            return;
        };
        let acceptor = self.tls.as_ref().map(Tls::acceptor);
        let refusing = async move {
            match acceptor {
                None => answer_once(stream, error).await,
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        answer_once(stream, error).await;
                    }
                }
            }
        };
        self.open.spawn(async move {
            let _permit = permit;
            let _ = timeout(REFUSAL_TIMEOUT, refusing).await;
        });
    }
}

/// A TLS handshake. Who speaks no TLS, or breaks off, is owed no answer.
async fn shake_hands(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    limits: HttpLimits,
    place: &Place,
) -> Option<TlsStream<TcpStream>> {
    tokio::select! {
        accepted = timeout(limits.header_timeout, acceptor.accept(stream)) => accepted.ok()?.ok(),
        () = place.gives_way() => None,
    }
}

/// One connection, until it ends, gives way or the server stops.
async fn exchange<S>(
    stream: S,
    router: Router,
    limits: HttpLimits,
    mut stopped: watch::Receiver<bool>,
    place: Arc<Place>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new());
    builder.header_read_timeout(limits.header_timeout);
    builder.max_buf_size(HEAD_BYTES_MAX);
    let routes = TowerToHyperService::new(router);
    let service = service_fn(|request: Request<Incoming>| {
        let busy = place.begin();
        let answering = routes.call(request);
        async move {
            let answer: Result<Response<Body>, Infallible> = answering.await;
            answer.map(|answer| answer.map(|body| Until { body, _busy: busy }))
        }
    });
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection.with_upgrades());
    let farewell = tokio::select! {
        // A client that breaks off or is too slow is its own business.
        _ = connection.as_mut() => return,
        // Whoever has sent no whole request yet is owed nothing.
        () = place.gives_way() => match place.was_busy() {
            true => GIVE_WAY_TIMEOUT,
            false => return,
        },
        _ = stopped.wait_for(|stopping| *stopping) => STOP_TIMEOUT,
    };
    connection.as_mut().graceful_shutdown();
    let _ = timeout(farewell, connection).await;
}

async fn answer_once<S>(stream: S, error: ApiError)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |_: Request<Incoming>| {
        std::future::ready(Ok::<_, Infallible>(error.clone().into_response()))
    });
    let mut builder = http1::Builder::new();
    builder.keep_alive(false).max_buf_size(HEAD_BYTES_MAX);
    let _ = builder
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// A body whose connection is busy until it is written.
struct Until {
    body: Body,
    _busy: Busy,
}

impl hyper::body::Body for Until {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
