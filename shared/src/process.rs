//! A daemon's life as the operating system sees it: signals in, notifications to systemd out.
//!
//! Notification (sd_notify(3)) costs nothing where systemd is absent: without `NOTIFY_SOCKET` the
//! calls do nothing.

use std::io;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What somebody wants of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// SIGINT or SIGTERM: close what is open and exit.
    Stop,
    /// SIGHUP: read again what may change while running.
    Reload,
}

/// The signals a daemon listens to.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// Takes the signals over from their default actions, from here to the end of the process.
    /// Needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the operating system refuses a handler.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next wish. Losing this future loses no signal.
    pub async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.interrupt.recv() => Wish::Stop,
            _ = self.terminate.recv() => Wish::Stop,
            _ = self.hangup.recv() => Wish::Reload,
        }
    }
}

/// Tells systemd that the daemon serves; `status` is shown by `systemctl status`.
pub fn notify_ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Tells systemd that the daemon is on its way out.
pub fn notify_stopping(status: &str) {
    notify(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Tells systemd the time it may take longer than its unit says, from this moment.
pub fn notify_extend_timeout(by: Duration) {
    let microseconds = u32::try_from(by.as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::ExtendTimeoutUsec(microseconds)]);
}

/// Feeds systemd's watchdog for as long as `is_alive` says so; pends for ever where the unit has no
/// `WatchdogSec=`. A daemon whose workers have stopped is restarted that way, not left a shell.
pub async fn feed_watchdog(is_alive: impl Fn() -> bool) {
    let Some(deadline) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    // Half the deadline, as sd_watchdog_enabled(3) recommends.
    let mut pace = tokio::time::interval(deadline / 2);
    loop {
        pace.tick().await;
        if is_alive() {
            notify(&[NotifyState::Watchdog]);
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd could not be notified");
    }
}
