//! The HTTP servers of the control thread: signalling, and the admin surface.

use std::sync::Arc;

use serde_json::{Map, Value};
use syrinx_shared::admin::{self, Health, Status};
use syrinx_shared::http::tls::Tls;
use syrinx_shared::http::{self, HttpLimits};
use syrinx_shared::metrics::Exposition;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::desk::Desk;
use super::metrics::register_http;
use super::workers::{Pulses, Workers};
use crate::config::Config;
use crate::signalling::http::{AllowedOrigins, Signalling, router};

/// The two addresses that HTTP is spoken on.
pub(super) struct Listeners {
    pub(super) signalling: TcpListener,
    /// What HTTPS is spoken with on the signalling address.
    pub(super) tls: Option<Tls>,
    pub(super) admin: TcpListener,
}

/// The two HTTP servers.
pub(super) struct Servers {
    stop: watch::Sender<bool>,
    tasks: [JoinHandle<()>; 2],
}

impl Servers {
    pub(super) fn start(
        config: &Config,
        listeners: Listeners,
        desk: &Arc<Desk>,
        workers: &Workers,
        exposition: Exposition,
    ) -> Self {
        let (stop, stopped) = watch::channel(false);
        let when_stopped = |mut stopped: watch::Receiver<bool>| async move {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        let limits = HttpLimits {
            connections_max: config.signalling.connections_count_max,
            connections_per_client_max: config.signalling.connections_per_client_count_max,
            header_timeout: config.signalling.header_timeout(),
        };
        let routes = router(Signalling {
            desk: Arc::clone(desk),
            gate: Arc::clone(desk.gate()),
            origins: Arc::new(AllowedOrigins::new(&config.signalling.allowed_origins)),
            body_timeout: config.signalling.body_timeout(),
        });
        let health = health(Arc::clone(desk), workers.pulses(), workers);
        let tasks = [
            tokio::spawn(http::serve(
                listeners.signalling,
                listeners.tls,
                routes,
                (limits, register_http()),
                when_stopped(stopped.clone()),
            )),
            tokio::spawn(admin::serve(
                listeners.admin,
                health,
                exposition,
                axum::Router::new(),
                when_stopped(stopped),
            )),
        ];
        Self { stop, tasks }
    }

    pub(super) async fn stop(self) {
        let _ = self.stop.send(true);
        for task in self.tasks {
            // Bounded by the servers themselves; a panic of one must not keep the process.
            let _ = task.await;
        }
    }
}

fn health(
    desk: Arc<Desk>,
    pulses: Pulses,
    workers: &Workers,
) -> impl Fn() -> Health + Clone + Send + Sync + 'static {
    let (worker_count, io_model) = (workers.count(), workers.io_model());
    move || {
        let occupancy = desk.occupancy();
        let status = match (pulses.are_alive(), occupancy.draining) {
            (false, _) => Status::Failing,
            (true, true) => Status::Draining,
            (true, false) => Status::Ok,
        };
        let facts = Map::from_iter([
            ("sessions".to_owned(), Value::from(occupancy.sessions)),
            ("capacity".to_owned(), Value::from(occupancy.capacity)),
            ("draining".to_owned(), Value::from(occupancy.draining)),
            ("workers".to_owned(), Value::from(worker_count)),
            ("io_model".to_owned(), Value::from(io_model.clone())),
            ("version".to_owned(), Value::from(env!("CARGO_PKG_VERSION"))),
        ]);
        Health { status, facts }
    }
}
