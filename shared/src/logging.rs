//! Logging: lines on standard error, as systemd and containers want them.
//!
//! Under systemd the journal adds time and host itself, so a line carries neither; it starts with
//! `<N>` instead, the priority that `journalctl -p` filters by (sd-daemon(3)). Elsewhere a line has
//! its time, and colours when a person watches.

use std::fmt;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use serde::Deserialize;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::config::Invalid;

/// Dependencies whose INFO speaks of single sessions: kept to warnings unless `log.level` names
/// them.
const QUIET: &str = "str0m=warn,dimpl=warn,glommio=warn,hyper=warn";

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The `[log]` section.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct LogConfig {
    /// What is logged: a level (`off`, `error`, `warn`, `info`, `debug`, `trace`), optionally
    /// followed by levels of single modules, as in `info,syrinx_relay::forwarder=trace`.
    ///
    /// Default `info`: one line when a call ends and one for each change of state of the process;
    /// nothing that a stranger's datagram can cause.
    pub level: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
        }
    }
}

impl LogConfig {
    /// Checks `log.level`. The filter's own parser takes any unknown word for a module's name,
    /// which would turn a misspelt level into silence.
    pub fn validate(&self) -> Result<(), Invalid> {
        let is_directive = |directive: &str| match directive.rsplit_once('=') {
            Some((module, level)) => !module.is_empty() && LEVELS.contains(&level),
            None => LEVELS.contains(&directive),
        };
        if self.level.split(',').map(str::trim).all(is_directive) {
            return Ok(());
        }
        Err(Invalid::new(
            "log.level",
            format!("{:?}", self.level),
            "not a level",
            format!(
                "use one of {}, or add MODULE=LEVEL after a comma",
                LEVELS.join(", ")
            ),
        ))
    }
}

/// Starts logging for the process. Called once, after the configuration is validated.
///
/// # Errors
///
/// When logging was started before.
pub fn init(config: &LogConfig) -> io::Result<()> {
    let filter = EnvFilter::builder().parse_lossy(format!("{QUIET},{}", config.level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    let started = if stderr_is_journal() {
        builder
            .with_ansi(false)
            .event_format(Journal::default())
            .try_init()
    } else {
        builder.with_ansi(io::stderr().is_terminal()).try_init()
    };
    started.map_err(io::Error::other)
}

/// Whether standard error is the socket that systemd named in `JOURNAL_STREAM` (systemd.exec(5)):
/// the variable alone is inherited by children whose output goes elsewhere.
fn stderr_is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() else {
        return false;
    };
    let Ok(metadata) = std::fs::File::from(stderr).metadata() else {
        return false;
    };
    stream == format!("{}:{}", metadata.dev(), metadata.ino())
}

/// The journal's form of a line: priority, then the event without time.
struct Journal(Format<Full, ()>);

impl Default for Journal {
    fn default() -> Self {
        Self(
            Format::default()
                .without_time()
                .with_level(false)
                .with_ansi(false),
        )
    }
}

/// The syslog priority of a level (sd-daemon(3)).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    fn validate(level: &str) -> Result<(), Invalid> {
        LogConfig {
            level: level.to_owned(),
        }
        .validate()
    }

    #[test]
    fn levels_and_module_levels_are_accepted() {
        LogConfig::default().validate().unwrap();
        validate("off").unwrap();
        validate("info,syrinx_relay::forwarder=trace, str0m=debug").unwrap();
    }

    #[test]
    fn misspelt_level_is_refused_with_the_choices() {
        let invalid = validate("inof").unwrap_err();
        assert_eq!(
            invalid,
            Invalid::new(
                "log.level",
                "\"inof\"",
                "not a level",
                "use one of off, error, warn, info, debug, trace, \
                 or add MODULE=LEVEL after a comma",
            )
        );
        for level in ["", "info,", "=info", "relay=loud"] {
            assert!(validate(level).is_err(), "{level}");
        }
    }

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn journal_line_starts_with_its_priority_and_has_no_time() {
        let captured = Captured::default();
        let writer = captured.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .event_format(Journal::default())
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "edge", calls = 3, "draining");
        });
        let line = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
        assert_eq!(line, "<4>edge: draining calls=3\n");
    }
}
