//! `syrinx-relay`: running the relay until a signal ends it.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use syrinx_relay::config::{Config, ENVIRONMENT_PREFIX};
use syrinx_relay::driver::DataPlane;
use syrinx_relay::driver::service::RelayMessage;
use syrinx_relay::driver::trace_route::tracing_route;
use syrinx_shared::admin::{self, Health, Status};
use syrinx_shared::keys::KeyRing;
use syrinx_shared::process::{self, Signals, Wish};
use syrinx_shared::{bind, config, logging, metrics};
use tokio::sync::oneshot;

/// Runs the relay, or only checks what it would run with.
///
/// # Errors
/// One line with the remedy.
pub(crate) fn run(path: Option<&Path>, check: bool) -> anyhow::Result<()> {
    let config: Config = config::load(path, ENVIRONMENT_PREFIX)?;
    let keys = Arc::new(read_keys(&config)?);
    if check {
        println!(
            "configuration and keys are good: {} public addresses, {} routes, epochs {:?}",
            config.public.listen.len(),
            config.routes.len(),
            keys.live().map(|epoch| epoch.value()).collect::<Vec<_>>(),
        );
        return Ok(());
    }
    logging::init(&config.log)?;
    let exposition = metrics::install()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the control thread's runtime cannot start")?;
    runtime.block_on(async {
        let admin = bind::tcp("admin.listen", config.admin.listen)?;
        let mut signals = Signals::install().context("signal handlers cannot be installed")?;
        let data_plane = DataPlane::start(&config, keys)?;
        let (stop_admin, stopped) = oneshot::channel();
        let traces = tracing_route(data_plane.mailboxes());
        let health = health(&data_plane);
        let server = tokio::spawn(admin::serve(admin, health, exposition, traces, async {
            let _ = stopped.await;
        }));
        let vitals = data_plane.vitals();
        let watchdog = tokio::spawn(process::feed_watchdog(move || vitals.is_alive()));
        for address in &config.public.listen {
            tracing::info!(%address, workers = data_plane.worker_count(), "serving clients");
        }
        process::notify_ready("forwarding");

        serve(path, &mut signals, &data_plane).await;

        process::notify_stopping("stopping");
        watchdog.abort();
        let _ = stop_admin.send(());
        let _ = server.await;
        data_plane.stop()
    })
}

/// The keys, which must be the cluster's: this relay routes to transceivers.
fn read_keys(config: &Config) -> anyhow::Result<KeyRing> {
    let keys = config.keys.read()?;
    anyhow::ensure!(
        keys.reads_sessions(),
        "keys.file = {}: holds edge keys only, and this relay routes to transceivers; give it the \
         cluster's key file",
        config.keys.file.display()
    );
    Ok(keys)
}

/// Until a signal asks for the end, or a worker is lost: half a relay would leave its clients
/// unserved for as long as it lives, a whole one is back in a moment.
async fn serve(path: Option<&Path>, signals: &mut Signals, data_plane: &DataPlane) {
    let vitals = data_plane.vitals();
    loop {
        let wish = tokio::select! {
            wish = signals.next() => wish,
            () = vitals.lost() => return,
        };
        match wish {
            Wish::Stop => return,
            Wish::Reload => match reload(path, data_plane) {
                Ok(()) => tracing::info!("keys and routes were read again"),
                Err(error) => {
                    tracing::error!("keys and routes are kept as they were: {error:#}");
                }
            },
        }
    }
}

fn reload(path: Option<&Path>, data_plane: &DataPlane) -> anyhow::Result<()> {
    let config: Config = config::load(path, ENVIRONMENT_PREFIX)?;
    let keys = read_keys(&config)?;
    let routes = config.route_table()?;
    data_plane.tell(&RelayMessage::Keys(Arc::new(keys)));
    data_plane.tell(&RelayMessage::Routes(Arc::new(routes)));
    Ok(())
}

fn health(data_plane: &DataPlane) -> impl Fn() -> Health + Clone + Send + Sync + 'static {
    let vitals = data_plane.vitals();
    let workers = data_plane.worker_count();
    let io_model = data_plane.io_model();
    move || {
        let mut facts = serde_json::Map::new();
        facts.insert("workers".to_owned(), workers.into());
        facts.insert("io_model".to_owned(), io_model.clone().into());
        let status = if vitals.is_alive() {
            Status::Ok
        } else {
            Status::Failing
        };
        Health { status, facts }
    }
}
