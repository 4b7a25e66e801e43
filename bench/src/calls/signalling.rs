//! How a client's offer becomes an answer: the seam behind which each kind of server keeps its own
//! protocol.
//!
//! Signalling blocks, on threads of its own: a slow server holds up a dialler, never a packet.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Error, Timeout};

use super::failure::{Cause, Failure};

/// Largest answer that is read: several times what a server with many candidates writes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// What of an error's body is worth showing.
const WORDS_CHARS_MAX: usize = 200;
/// A connection that was idle for longer is not used again: servers close idle ones, after five
/// seconds by the project's default, and a request that crosses the close would count as failed.
const IDLE_MAX: Duration = Duration::from_secs(3);
/// Time to get a connection and, by TLS, a session.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A call as the server opened it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The answer, SDP.
    pub answer: String,
    /// What [`Signalling::hang_up`] needs to end it; `None` where goodbye by DTLS is enough.
    pub call: Option<String>,
}

/// What a server says to a call beyond audio; the client waits for it before the call counts as
/// established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// It takes a data channel; otherwise none is offered.
    pub channel: bool,
    /// It sends `session.created` on it.
    pub session: bool,
}

/// A server's signalling. Shared by all diallers.
pub trait Signalling: Send + Sync {
    /// Gives the server an offer; blocks until its answer is here.
    ///
    /// # Errors
    /// The failure of this call.
    fn open(&self, offer: &str) -> Result<Opened, Failure>;

    /// Ends a call that does not end by its client's goodbye: one that failed, or any where goodbye
    /// is not enough ([`Signalling::needs_hang_up`]). Errors are nobody's business any more.
    fn hang_up(&self, call: &str);

    /// Whether every call must be hung up.
    fn needs_hang_up(&self) -> bool {
        false
    }

    /// What else the server says.
    fn expected(&self) -> Expected;
}

/// The Realtime API: `POST` of the offer, 201 with the answer and the call's location.
#[derive(Debug)]
pub struct Realtime {
    http: Http,
    url: String,
    key: Option<String>,
    expected: Expected,
}

/// Where and how to reach a Realtime server.
#[derive(Clone, Debug)]
pub struct RealtimeOptions<'a> {
    /// The address that takes offers, as `http://127.0.0.1:8080/v1/realtime/calls`.
    pub url: &'a str,
    /// The key to show, for servers that want one.
    pub key: Option<&'a str>,
    /// What the server says beyond audio.
    pub expected: Expected,
    /// Certificates to trust beside the system's, PEM.
    pub trusted: Option<&'a Path>,
    /// How long an answer may take.
    pub timeout: Duration,
    /// How many diallers there are: as many connections are kept.
    pub diallers: usize,
}

impl Realtime {
    /// Prepares; connects to nothing.
    ///
    /// # Errors
    /// When the address is none, or the certificates cannot be read.
    pub fn new(options: &RealtimeOptions<'_>) -> anyhow::Result<Self> {
        if !["http://", "https://"]
            .iter()
            .any(|scheme| options.url.starts_with(scheme))
        {
            bail!(
                "{} is no address to post offers to: write http://HOST:PORT/v1/realtime/calls",
                options.url
            );
        }
        let http = Http::new(options.timeout, options.diallers, options.trusted)?;
        Ok(Self {
            http,
            url: options.url.to_owned(),
            key: options.key.map(|key| format!("Bearer {key}")),
            expected: options.expected,
        })
    }

    /// The location, which may be relative to the address (RFC 9110, 10.2.2).
    fn resolve(&self, location: &str) -> String {
        if location.contains("://") {
            return location.to_owned();
        }
        let host = self.url.find("://").map_or(0, |at| at + 3);
        let end = self.url[host..]
            .find('/')
            .map_or(self.url.len(), |at| host + at);
        format!("{}{location}", &self.url[..end])
    }
}

impl Signalling for Realtime {
    fn open(&self, offer: &str) -> Result<Opened, Failure> {
        let mut request = self.http.agent.post(&self.url);
        request = request.header("content-type", "application/sdp");
        if let Some(key) = &self.key {
            request = request.header("authorization", key);
        }
        let answer = self.http.read(request.send(offer))?;
        let location = answer.location.map(|location| self.resolve(&location));
        Ok(Opened {
            answer: answer.body,
            call: location,
        })
    }

    fn hang_up(&self, call: &str) {
        let mut request = self.http.agent.delete(call);
        if let Some(key) = &self.key {
            request = request.header("authorization", key);
        }
        // The server may have ended the call itself.
        let _ = self.http.read(request.call());
    }

    fn expected(&self) -> Expected {
        self.expected
    }
}

/// A blocking HTTP client that keeps its connections and has a deadline for each step.
#[derive(Clone, Debug)]
pub struct Http {
    agent: Agent,
}

/// An answer with a status of success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The `Location`.
    pub location: Option<String>,
    /// The body.
    pub body: String,
}

impl Http {
    /// A client for so many threads. Deadlines are set by step and not for the whole request: with
    /// one for the whole, ureq looks each name up on a thread of its own.
    ///
    /// # Errors
    /// When `trusted` holds no certificates.
    pub fn new(timeout: Duration, threads: usize, trusted: Option<&Path>) -> anyhow::Result<Self> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(provider)
            .root_certs(RootCerts::new_with_certs(&certificates(trusted)?))
            .build();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .user_agent(concat!("syrinx-bench/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_TIMEOUT.min(timeout)))
            .timeout_send_request(Some(timeout))
            .timeout_send_body(Some(timeout))
            .timeout_recv_response(Some(timeout))
            .timeout_recv_body(Some(timeout))
            .max_idle_age(IDLE_MAX)
            .max_idle_connections(threads)
            .max_idle_connections_per_host(threads)
            .tls_config(tls)
            .build();
        Ok(Self {
            agent: config.into(),
        })
    }

    /// The agent, for requests of other shapes.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Reads what came of a request.
    ///
    /// # Errors
    /// With its cause, when there is no answer or not one of success.
    pub fn read(
        &self,
        outcome: Result<ureq::http::Response<ureq::Body>, Error>,
    ) -> Result<Answer, Failure> {
        let mut response = outcome.map_err(|error| failure(&error))?;
        let status = response.status();
        let location = response.headers().get("location");
        let location = location.and_then(|value| Some(value.to_str().ok()?.to_owned()));
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let body = body.read_to_string().map_err(|error| failure(&error))?;
        if status.is_success() {
            return Ok(Answer { location, body });
        }
        let cause = match status.as_u16() {
            429 | 503 => Cause::Refused,
            _ => Cause::HttpError,
        };
        let words: String = body.chars().take(WORDS_CHARS_MAX).collect();
        Err(Failure::new(cause, format!("{status}: {}", words.trim())))
    }
}

/// The system's certificates and those of `trusted`.
fn certificates(trusted: Option<&Path>) -> anyhow::Result<Vec<Certificate<'static>>> {
    // A machine without any is no obstacle to plain HTTP; with TLS the handshake says what is
    // missing.
    let system = rustls_native_certs::load_native_certs().certs;
    let mut all: Vec<Certificate<'static>> = system
        .iter()
        .map(|certificate| Certificate::from_der(certificate).to_owned())
        .collect();
    if let Some(path) = trusted {
        let shown = path.display();
        let pem = std::fs::read(path).with_context(|| format!("cannot read {shown}"))?;
        let own = ureq::tls::parse_pem(&pem).filter_map(|item| match item {
            Ok(ureq::tls::PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        });
        let before = all.len();
        all.extend(own);
        if all.len() == before {
            bail!("{shown} holds no certificate: it should be PEM");
        }
    }
    Ok(all)
}

/// Names what kept an answer away.
fn failure(error: &Error) -> Failure {
    use std::io::ErrorKind::{ConnectionRefused, InvalidData, TimedOut};
    let cause = match error {
        Error::HostNotFound => Cause::Dns,
        Error::Timeout(Timeout::Resolve) => Cause::Dns,
        Error::Timeout(_) => Cause::HttpTimeout,
        Error::Rustls(_) | Error::Tls(_) | Error::TlsRequired => Cause::Tls,
        Error::ConnectionFailed => Cause::NoServer,
        Error::Io(error) => match error.kind() {
            ConnectionRefused => Cause::NoServer,
            TimedOut => Cause::HttpTimeout,
            _ if error.raw_os_error() == Some(nix::libc::EMFILE) => Cause::NoSocket,
            // rustls hands its errors through a stream's.
            InvalidData
                if error
                    .get_ref()
                    .is_some_and(|inner| inner.is::<rustls::Error>()) =>
            {
                Cause::Tls
            }
            // getaddrinfo's errors have no number.
            _ if error.to_string().contains("lookup") => Cause::Dns,
            _ => Cause::HttpBroken,
        },
        _ => Cause::HttpBroken,
    };
    Failure::new(cause, error)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener};

    use super::*;

    const EXPECTED: Expected = Expected {
        channel: true,
        session: true,
    };

    fn realtime(url: &str) -> Realtime {
        let options = RealtimeOptions {
            url,
            key: Some("sk-test"),
            expected: EXPECTED,
            trusted: None,
            timeout: Duration::from_millis(300),
            diallers: 1,
        };
        Realtime::new(&options).expect("an address")
    }

    /// Answers one connection with `bytes`, and gives what it was asked.
    fn server(bytes: &'static str) -> (SocketAddr, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = vec![0; 4_096];
            let mut length = 0;
            while !request[..length].ends_with(b"offer") {
                let read = stream.read(&mut request[length..]).expect("a request");
                assert!(read > 0, "the whole request comes");
                length += read;
            }
            stream.write_all(bytes.as_bytes()).expect("answered");
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        (address, thread)
    }

    fn open(bytes: &'static str) -> (Result<Opened, Failure>, String) {
        let (address, thread) = server(bytes);
        let outcome = realtime(&format!("http://{address}/v1/realtime/calls")).open("offer");
        (outcome, thread.join().expect("served"))
    }

    #[test]
    fn posts_the_offer_with_the_key_and_takes_answer_and_location() {
        let (outcome, request) = open(
            "HTTP/1.1 201 Created\r\nLocation: /v1/realtime/calls/rtc_1\r\n\
             Content-Length: 6\r\n\r\nanswer",
        );
        let opened = outcome.expect("opened");
        assert_eq!(opened.answer, "answer");
        let call = opened.call.expect("a location");
        assert!(
            call.starts_with("http://127.0.0.1:") && call.ends_with("/calls/rtc_1"),
            "{call}"
        );
        let request = request.to_ascii_lowercase();
        assert!(
            request.starts_with("post /v1/realtime/calls http/1.1\r\n"),
            "{request}"
        );
        assert!(
            request.contains("authorization: bearer sk-test\r\n"),
            "{request}"
        );
        assert!(
            request.contains("content-type: application/sdp\r\n"),
            "{request}"
        );
    }

    #[test]
    fn a_server_without_room_is_told_from_one_with_an_error() {
        let refused = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nfull";
        let failure = open(refused).0.expect_err("refused");
        assert_eq!(failure.cause, Cause::Refused);
        assert!(
            failure.words.contains("503") && failure.words.contains("full"),
            "{failure}"
        );
        let wrong = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(open(wrong).0.expect_err("wrong").cause, Cause::HttpError);
    }

    #[test]
    fn a_dead_a_silent_and_a_babbling_server_have_a_cause_each() {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("bound");
        let url = format!("http://{address}/calls");
        let silent = realtime(&url).open("offer").expect_err("nobody answers");
        assert_eq!(silent.cause, Cause::HttpTimeout, "{silent}");
        drop(free);
        let dead = realtime(&url).open("offer").expect_err("nobody listens");
        assert_eq!(dead.cause, Cause::NoServer, "{dead}");
        let babble = open("Hello there\r\n\r\n").0.expect_err("no HTTP");
        assert_eq!(babble.cause, Cause::HttpBroken, "{babble}");
    }

    #[test]
    fn a_name_that_is_none_and_tls_that_is_none_have_a_cause_each() {
        // RFC 6761, 6.4: `invalid` never resolves.
        let unknown = realtime("http://edge.invalid/calls").open("offer");
        assert_eq!(unknown.expect_err("no such name").cause, Cause::Dns);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let answered = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            answered.expect("the client reads");
            // Until the client has had enough of it.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let plain = realtime(&format!("https://{address}/calls")).open("offer");
        let failure = plain.expect_err("no TLS");
        assert_eq!(failure.cause, Cause::Tls, "{failure}");
        thread.join().expect("served");
    }

    #[test]
    fn says_what_an_address_should_look_like() {
        let options = RealtimeOptions {
            url: "127.0.0.1:8080",
            key: None,
            expected: EXPECTED,
            trusted: None,
            timeout: Duration::from_secs(1),
            diallers: 1,
        };
        let error = Realtime::new(&options).expect_err("no scheme").to_string();
        assert!(error.contains("/v1/realtime/calls"), "{error}");
    }
}
