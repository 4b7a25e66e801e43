//! The `[[backends]]` entries: inference services by name, the models they answer for, and how
//! their links are kept.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use syrinx_shared::config::Invalid;
use syrinx_shared::config::workers::within;

use super::url::{BackendUrl, Host};
use crate::backend::g711::Law;
use crate::backend::realtime::{AudioFormat, RealtimeOptions};

/// Most entries: each has a set of metrics.
const BACKENDS_COUNT_MAX: usize = 64;
/// Most addresses of an entry.
const URLS_COUNT_MAX: usize = 64;
/// Most headers of an entry, of all kinds together.
const HEADERS_COUNT_MAX: usize = 32;
/// Longest name of an entry, in bytes: it is a metric label.
const NAME_BYTES_MAX: usize = 32;
/// What deadlines of a link can be, in ms.
const DEADLINE_MS: std::ops::RangeInclusive<u64> = 50..=120_000;
/// The header that a token is sent in (RFC 6750, 2.1).
pub const AUTHORIZATION: &str = "Authorization";
/// Headers that the handshake itself makes (RFC 6455, 4.1).
const HANDSHAKE_HEADERS: [&str; 7] = [
    "host",
    "connection",
    "upgrade",
    "sec-websocket-key",
    "sec-websocket-version",
    "sec-websocket-protocol",
    "sec-websocket-extensions",
];

/// Which protocol a backend speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Dialect {
    /// The built-in echo; it has no link.
    #[serde(rename = "echo")]
    Echo,
    /// Our own, for the least latency and the whole truth about playout.
    #[serde(rename = "media.v1")]
    MediaV1,
    /// The OpenAI Realtime protocol, as its client.
    #[serde(rename = "realtime")]
    Realtime,
}

/// [`BackendConfig::audio`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct LinkAudio(pub AudioFormat);

impl TryFrom<String> for LinkAudio {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let pcm16 = |rate_hz| Ok(Self(AudioFormat::Pcm16 { rate_hz }));
        match text.as_str() {
            "pcmu" => Ok(Self(AudioFormat::G711(Law::Mu))),
            "pcma" => Ok(Self(AudioFormat::G711(Law::A))),
            "pcm16/8000" => pcm16(8_000),
            "pcm16/12000" => pcm16(12_000),
            "pcm16/16000" => pcm16(16_000),
            "pcm16/24000" => pcm16(24_000),
            "pcm16/48000" => pcm16(48_000),
            _ => Err("expected pcm16/24000, another rate of pcm16, pcmu or pcma"),
        }
    }
}

/// One `[[backends]]` entry.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct BackendConfig {
    /// Its name in metrics and the log: lower-case letters, digits, `-` and `_`. No default.
    pub name: String,
    /// Models it answers for: a name, the beginning of names with `*` behind it, or `*` for every
    /// call that no other entry matches. An exact name goes before a beginning, a longer beginning
    /// before a shorter one. Default `*`.
    pub models: Vec<String>,
    /// What it speaks: `realtime` (the OpenAI Realtime protocol), `media.v1` (our own), or `echo`,
    /// which is built in and has no address. No default.
    pub dialect: Option<Dialect>,
    /// Its addresses: `ws://HOST:PORT/PATH`, `wss://` for TLS, or `unix:/SOCKET:/PATH`. `{model}`
    /// stands for the model, `{call}` for the call's name. A call goes to the one with the fewest
    /// links of those that work. Names are resolved anew every 30 s. Default none.
    pub urls: Vec<BackendUrl>,
    /// Audio that a `realtime` backend is spoken to in: `pcm16/24000`, another rate of `pcm16`
    /// (8000, 12000, 16000, 48000), `pcmu` or `pcma`. Default `pcm16/24000`, which every such
    /// server takes. A `media.v1` backend says itself what it wants.
    pub audio: LinkAudio,
    /// Whether the edge finds out when the caller speaks, for a `realtime` backend that does not:
    /// it tells of speech, commits what was said, and asks for an answer. Default false: most such
    /// servers do that themselves.
    pub vad: bool,
    /// Whether an answer of a `realtime` backend falls silent as soon as the edge hears the caller
    /// speak, a round trip before the backend says so. Default false: the backend may know better
    /// what is speech. A `media.v1` backend says itself what it wants.
    pub flush_on_speech: bool,
    /// Headers of the handshake, each `NAME: VALUE`. Default none.
    pub headers: Vec<String>,
    /// Headers whose values are secrets, each `NAME: FILE`. A FILE without `/` at its beginning is
    /// a systemd credential (`LoadCredential=`). Read anew every 30 s. Default none.
    pub header_files: Vec<String>,
    /// File with a token, sent as `Authorization: Bearer TOKEN`; found and read like those of
    /// `header_files`. Default none.
    pub token_file: String,
    /// File with the certificates (PEM) that a `wss://` address is trusted by. Default none, which
    /// means Mozilla's roots, as compiled in.
    pub tls_ca_file: String,
    /// Time for TCP, TLS and the WebSocket handshake of one attempt, in ms. Default 5,000.
    pub connect_timeout_ms: u64,
    /// Time from the handshake to the backend's first message, in ms, before it counts as mute.
    /// Default 10,000.
    pub first_message_timeout_ms: u64,
    /// A link that brought nothing for this long is pinged, in ms; one that then brings nothing
    /// for as long again is lost. Default 15,000.
    pub ping_ms: u64,
    /// Speech of the caller that has waited this long for a backend that reads too slowly is
    /// dropped, in ms, the oldest first. Default 2,000: after a stall, the backend hears what is
    /// said, and not what was.
    pub audio_backlog_ms: u64,
    /// Attempts to connect anew after one that failed or a link that was lost, before the call is
    /// given up. Default 3.
    pub retry_count_max: u32,
    /// Pause before the first further attempt, in ms; it doubles with each, and is varied by half
    /// so that calls do not come back in step. Default 250.
    pub retry_ms: u64,
    /// How often addresses that failed are tried with a connection of their own, in ms; 0 leaves
    /// that to the next call. Default 0.
    pub health_check_ms: u64,
}

impl Default for BackendConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            models: vec!["*".to_owned()],
            dialect: None,
            urls: Vec::new(),
            audio: LinkAudio(AudioFormat::Pcm16 { rate_hz: 24_000 }),
            vad: false,
            flush_on_speech: false,
            headers: Vec::new(),
            header_files: Vec::new(),
            token_file: String::new(),
            tls_ca_file: String::new(),
            connect_timeout_ms: 5_000,
            first_message_timeout_ms: 10_000,
            ping_ms: 15_000,
            audio_backlog_ms: 2_000,
            retry_count_max: 3,
            retry_ms: 250,
            health_check_ms: 0,
        }
    }
}

/// What decides about calls of a model, from the strongest to the weakest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelPattern {
    /// This model.
    Exact(String),
    /// Models that begin like this; the empty beginning is every model, and none at all.
    Prefix(String),
}

impl ModelPattern {
    /// `NAME`, `BEGINNING*` or `*`.
    pub fn new(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(prefix) => Self::Prefix(prefix.to_owned()),
            None => Self::Exact(text.to_owned()),
        }
    }

    /// How strongly it matches; a higher number wins.
    pub fn strength(&self, model: Option<&str>) -> Option<usize> {
        match self {
            Self::Exact(name) => (model == Some(name)).then_some(usize::MAX),
            Self::Prefix(prefix) => model
                .unwrap_or_default()
                .starts_with(prefix.as_str())
                .then_some(prefix.len()),
        }
    }
}

/// Where a secret lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretFile {
    /// A path.
    Path(PathBuf),
    /// A name below `$CREDENTIALS_DIRECTORY` (systemd.exec(5)).
    Credential(String),
}

impl SecretFile {
    /// `/PATH` or a credential's name.
    pub fn new(text: &str) -> Self {
        if text.starts_with('/') {
            Self::Path(PathBuf::from(text))
        } else {
            Self::Credential(text.to_owned())
        }
    }
}

impl BackendConfig {
    /// [`BackendConfig::models`] as they are matched.
    pub fn patterns(&self) -> impl Iterator<Item = ModelPattern> {
        self.models.iter().map(|text| ModelPattern::new(text))
    }

    /// Plain headers, by name.
    pub fn plain_headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers
            .iter()
            .filter_map(|header| split_header(header))
    }

    /// Headers whose values are in files: name, what stands before the file's text, and the file.
    pub fn secret_headers(&self) -> impl Iterator<Item = (&str, &'static str, SecretFile)> {
        let files = self.header_files.iter();
        let files = files.filter_map(|header| split_header(header));
        let token = (!self.token_file.is_empty()).then_some(&self.token_file);
        let token = token.map(|file| (AUTHORIZATION, "Bearer ", SecretFile::new(file)));
        files
            .map(|(name, file)| (name, "", SecretFile::new(file)))
            .chain(token)
    }

    /// How a `realtime` backend is spoken to.
    pub fn realtime_options(&self) -> RealtimeOptions {
        RealtimeOptions {
            audio: self.audio.0,
            takes_turns: self.vad,
            flushes_on_speech: self.flush_on_speech,
        }
    }

    /// [`BackendConfig::connect_timeout_ms`].
    pub fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    /// [`BackendConfig::first_message_timeout_ms`].
    pub fn first_message_timeout(&self) -> Duration {
        Duration::from_millis(self.first_message_timeout_ms)
    }

    /// [`BackendConfig::ping_ms`].
    pub fn ping_period(&self) -> Duration {
        Duration::from_millis(self.ping_ms)
    }

    /// [`BackendConfig::audio_backlog_ms`].
    pub fn audio_backlog(&self) -> Duration {
        Duration::from_millis(self.audio_backlog_ms)
    }

    /// [`BackendConfig::retry_ms`].
    pub fn retry_pause(&self) -> Duration {
        Duration::from_millis(self.retry_ms)
    }

    /// [`BackendConfig::health_check_ms`]; `None` when it is off.
    pub fn health_check_period(&self) -> Option<Duration> {
        (self.health_check_ms > 0).then(|| Duration::from_millis(self.health_check_ms))
    }

    fn validate(&self, at: &str) -> Result<(), Invalid> {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
        let length = self.name.len();
        if !(1..=NAME_BYTES_MAX).contains(&length) || !self.name.chars().all(is_plain) {
            return Err(Invalid::new(
                &format!("{at}.name"),
                format!("{:?}", self.name),
                format!("not 1 to {NAME_BYTES_MAX} lower-case letters, digits, - or _"),
                "name the backend as it should appear in metrics",
            ));
        }
        self.validate_models(at)?;
        self.validate_urls(at)?;
        self.validate_headers(at)?;
        within(
            &format!("{at}.connect_timeout_ms"),
            self.connect_timeout_ms,
            DEADLINE_MS,
        )?;
        within(
            &format!("{at}.first_message_timeout_ms"),
            self.first_message_timeout_ms,
            DEADLINE_MS,
        )?;
        within(&format!("{at}.ping_ms"), self.ping_ms, DEADLINE_MS)?;
        within(
            &format!("{at}.audio_backlog_ms"),
            self.audio_backlog_ms,
            DEADLINE_MS,
        )?;
        within(
            &format!("{at}.retry_count_max"),
            self.retry_count_max,
            0..=20,
        )?;
        within(&format!("{at}.retry_ms"), self.retry_ms, 10..=10_000)?;
        if self.health_check_ms > 0 {
            let key = format!("{at}.health_check_ms");
            within(&key, self.health_check_ms, 100..=3_600_000)?;
        }
        Ok(())
    }

    fn validate_models(&self, at: &str) -> Result<(), Invalid> {
        for (index, model) in self.models.iter().enumerate() {
            let stars = model.matches('*').count();
            if model.is_empty() || stars > 1 || (stars == 1 && !model.ends_with('*')) {
                return Err(Invalid::new(
                    &format!("{at}.models[{index}]"),
                    format!("{model:?}"),
                    "neither a model nor the beginning of one",
                    "write a name, a beginning such as gpt-*, or * alone",
                ));
            }
        }
        if self.models.is_empty() {
            return Err(Invalid::new(
                &format!("{at}.models"),
                "[]",
                "no call would ever reach this backend",
                "name its models, or leave the key out for all of them",
            ));
        }
        Ok(())
    }

    fn validate_urls(&self, at: &str) -> Result<(), Invalid> {
        let Some(dialect) = self.dialect else {
            return Err(Invalid::new(
                &format!("{at}.dialect"),
                "none",
                "what the backend speaks cannot be guessed",
                "write realtime, media.v1 or echo",
            ));
        };
        let count = self.urls.len();
        let key = format!("{at}.urls");
        let shown = format!("[{count} addresses]");
        match (dialect, count) {
            (Dialect::Echo, 0) | (Dialect::MediaV1 | Dialect::Realtime, 1..=URLS_COUNT_MAX) => {}
            (Dialect::Echo, _) => {
                let problem = "the echo is built in, and connects to nothing";
                return Err(Invalid::new(&key, shown, problem, "remove the addresses"));
            }
            _ => {
                return Err(Invalid::new(
                    &key,
                    shown,
                    format!("a backend has 1 to {URLS_COUNT_MAX} addresses"),
                    "write where it listens, such as ws://127.0.0.1:8765/",
                ));
            }
        }
        let is_tls = |url: &BackendUrl| matches!(url.host, Host::Tcp { tls: true, .. });
        if !self.tls_ca_file.is_empty() && !self.urls.iter().any(is_tls) {
            return Err(Invalid::new(
                &format!("{at}.tls_ca_file"),
                format!("{:?}", self.tls_ca_file),
                "no address of this backend is wss://",
                "write wss:// where TLS is meant, or remove the key",
            ));
        }
        Ok(())
    }

    fn validate_headers(&self, at: &str) -> Result<(), Invalid> {
        let lists = [
            ("headers", &self.headers),
            ("header_files", &self.header_files),
        ];
        for (key, list) in lists {
            for (index, header) in list.iter().enumerate() {
                let Some(problem) = problem_of_header(header) else {
                    continue;
                };
                return Err(Invalid::new(
                    &format!("{at}.{key}[{index}]"),
                    // Its value may be a secret that strayed.
                    split_header(header).map_or("", |(name, _)| name),
                    problem,
                    "write NAME: VALUE, or NAME: FILE in header_files",
                ));
            }
        }
        let count = self.headers.len() + self.header_files.len();
        if count > HEADERS_COUNT_MAX {
            return Err(Invalid::new(
                &format!("{at}.headers"),
                format!("[{count} headers]"),
                format!("a backend has at most {HEADERS_COUNT_MAX}"),
                "leave some out",
            ));
        }
        Ok(())
    }
}

/// Checks all entries, each by itself and against the others.
pub(super) fn validate(backends: &[BackendConfig]) -> Result<(), Invalid> {
    if backends.len() > BACKENDS_COUNT_MAX {
        return Err(Invalid::new(
            "backends",
            format!("[{} entries]", backends.len()),
            format!("there can be at most {BACKENDS_COUNT_MAX}"),
            "give one entry several addresses or models",
        ));
    }
    let mut names = BTreeMap::new();
    let mut models = BTreeMap::new();
    for (index, backend) in backends.iter().enumerate() {
        let at = format!("backends[{index}]");
        backend.validate(&at)?;
        if let Some(other) = names.insert(&backend.name, index) {
            return Err(Invalid::new(
                &format!("{at}.name"),
                format!("{:?}", backend.name),
                format!("backends[{other}] has that name"),
                "give each its own",
            ));
        }
        for model in &backend.models {
            if let Some(other) = models.insert(model, index) {
                return Err(Invalid::new(
                    &format!("{at}.models"),
                    format!("{model:?}"),
                    format!("backends[{other}] answers for that too"),
                    "leave it to one of them; one backend can have several addresses",
                ));
            }
        }
    }
    Ok(())
}

/// Name and value, without the space around them.
fn split_header(header: &str) -> Option<(&str, &str)> {
    let (name, value) = header.split_once(':')?;
    Some((name.trim(), value.trim()))
}

fn problem_of_header(header: &str) -> Option<&'static str> {
    let Some((name, value)) = split_header(header) else {
        return Some("there is no colon");
    };
    if name.is_empty() || !name.chars().all(is_token) {
        return Some("not a header's name");
    }
    if HANDSHAKE_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
        return Some("the WebSocket handshake makes this header itself");
    }
    let is_printable = |c: char| c == ' ' || c.is_ascii_graphic();
    if value.is_empty() || !value.chars().all(is_printable) {
        return Some("not a header's value");
    }
    None
}

/// RFC 9110, 5.6.2.
fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(name: &str, model: &str) -> BackendConfig {
        BackendConfig {
            name: name.to_owned(),
            models: vec![model.to_owned()],
            dialect: Some(Dialect::MediaV1),
            urls: vec!["ws://127.0.0.1:8765/".parse().unwrap()],
            ..BackendConfig::default()
        }
    }

    fn problem_of(change: impl FnOnce(&mut BackendConfig)) -> String {
        let mut backends = [backend("first", "a"), backend("main", "*")];
        validate(&backends).unwrap();
        change(&mut backends[1]);
        format!("{:?}", validate(&backends).unwrap_err())
    }

    #[test]
    fn the_stronger_pattern_wins() {
        let strength = |pattern: &str, model| ModelPattern::new(pattern).strength(model);
        assert_eq!(
            strength("gpt-realtime", Some("gpt-realtime")),
            Some(usize::MAX)
        );
        assert_eq!(strength("gpt-realtime", Some("gpt-realtime-2")), None);
        assert_eq!(strength("gpt-*", Some("gpt-realtime")), Some(4));
        assert_eq!(strength("*", Some("gpt-realtime")), Some(0));
        assert_eq!(strength("*", None), Some(0));
        assert_eq!(strength("gpt-*", None), None);
        assert_eq!(strength("x", None), None);
    }

    #[test]
    fn secrets_are_files_or_credentials() {
        let mut config = backend("main", "*");
        config.header_files = vec!["X-Key: /etc/key".to_owned()];
        config.token_file = "token".to_owned();
        let secrets: Vec<_> = config.secret_headers().collect();
        let key = SecretFile::Path("/etc/key".into());
        let token = SecretFile::Credential("token".to_owned());
        assert_eq!(
            secrets,
            [("X-Key", "", key), ("Authorization", "Bearer ", token)]
        );
    }

    #[test]
    fn every_mistake_is_told_with_its_key() {
        type Change = fn(&mut BackendConfig);
        let mistakes: [(&str, Change); 13] = [
            ("backends[1].name", |b| b.name = "Main".to_owned()),
            ("backends[1].name", |b| b.name = "first".to_owned()),
            ("backends[1].models", |b| b.models = vec!["a".to_owned()]),
            ("backends[1].models", |b| b.models.clear()),
            ("backends[1].models[0]", |b| b.models[0] = "a*b".to_owned()),
            ("backends[1].dialect", |b| b.dialect = None),
            ("backends[1].urls", |b| b.urls.clear()),
            ("backends[1].urls", |b| b.dialect = Some(Dialect::Echo)),
            ("backends[1].headers[0]", |b| b.headers.push("x".to_owned())),
            ("backends[1].headers[0]", |b| {
                b.headers.push("Host: x".to_owned())
            }),
            ("backends[1].header_files[0]", |b| {
                b.header_files.push("X-Key:".to_owned());
            }),
            ("backends[1].tls_ca_file", |b| {
                b.tls_ca_file = "ca.pem".to_owned()
            }),
            ("backends[1].ping_ms", |b| b.ping_ms = 1),
        ];
        for (key, change) in mistakes {
            let problem = problem_of(change);
            assert!(problem.contains(&format!("{key:?}")), "{key}: {problem}");
        }
    }

    #[test]
    fn a_header_that_is_refused_does_not_show_its_value() {
        let problem = problem_of(|b| b.headers.push("Upgrade: sk-secret".to_owned()));
        assert!(!problem.contains("sk-secret"), "{problem}");
    }
}
