//! `wss://`: who is trusted, and for which name.

use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use futures_rustls::rustls::crypto::aws_lc_rs;
use futures_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use futures_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};
use syrinx_transceiver::backend::link::{LinkCause, LinkEvent};
use syrinx_transceiver::config::backends::BackendConfig;

use crate::backend::{Listener, accept_with, echo};
use crate::worker::{Worker, among_others, config, control, session};

/// A certificate as text (RFC 7468).
fn pem(certificate: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(certificate);
    let lines = text
        .as_bytes()
        .chunks(64)
        .map(|line| str::from_utf8(line).unwrap());
    let body = lines.collect::<Vec<_>>().join("\n");
    format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
}

/// A server's certificate for `name`, which is its own authority, and the file that says so.
fn certificate(name: &str, folder: &Path) -> (Arc<ServerConfig>, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let file = folder.join("ca.pem");
    std::fs::write(&file, pem(made.cert.der())).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::from(key));
    (Arc::new(config.unwrap()), file.to_str().unwrap().to_owned())
}

fn accept(
    listener: &Listener,
    config: Arc<ServerConfig>,
) -> StreamOwned<ServerConnection, TcpStream> {
    let stream = listener.accept_raw();
    StreamOwned::new(ServerConnection::new(config).unwrap(), stream)
}

fn backend_at(listener: &Listener, ca_file: &str) -> BackendConfig {
    BackendConfig {
        tls_ca_file: ca_file.to_owned(),
        ..config(&[&format!("wss://{}/", listener.address())])
    }
}

#[test]
fn a_backend_that_is_trusted_is_spoken_to() {
    let _others = among_others();
    let folder = tempfile::tempdir().unwrap();
    let listener = Listener::new();
    let (server, ca_file) = certificate("127.0.0.1", folder.path());
    let worker = Worker::start(backend_at(&listener, &ca_file));
    let backend = thread::spawn(move || {
        let (socket, _) = accept_with(accept(&listener, server), None);
        echo(socket)
    });
    worker.open(session(1));
    assert_eq!(worker.next(), LinkEvent::Up);
    let long = "x".repeat(200_000);
    worker.send(session(1), control(&long));
    assert!(worker.next() == LinkEvent::Text(long));
    worker.close(session(1), 1000, "hung up");
    let said = backend.join().unwrap();
    assert_eq!(said, Some((1000, "hung up".to_owned())));
}

/// How a worker that trusts `ca_file` fares with a server of this certificate.
fn refusal(listener: Listener, server: Arc<ServerConfig>, ca_file: &str) -> String {
    let worker = Worker::start(backend_at(&listener, ca_file));
    let backend = thread::spawn(move || {
        let mut stream = accept(&listener, server);
        let _ = std::io::Read::read(&mut stream, &mut [0; 1]);
    });
    worker.open(session(1));
    let (cause, detail, will_retry) = worker.next_down();
    assert_eq!((cause, will_retry), (LinkCause::Tls, false), "{detail}");
    backend.join().unwrap();
    detail
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    let _others = among_others();
    let folder = tempfile::tempdir().unwrap();
    let (server, ca_file) = certificate("agent.internal", folder.path());
    let detail = refusal(Listener::new(), server, &ca_file);
    assert!(
        detail.contains("name") || detail.contains("valid for"),
        "{detail}"
    );
}

#[test]
fn an_authority_that_is_not_trusted_is_refused() {
    let _others = among_others();
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = certificate("127.0.0.1", folder.path());
    let detail = refusal(Listener::new(), server, "");
    assert!(detail.contains("UnknownIssuer"), "{detail}");
}

#[test]
fn a_server_without_tls_is_refused() {
    let _others = among_others();
    let listener = Listener::new();
    let worker = Worker::start(backend_at(&listener, ""));
    let backend = thread::spawn(move || {
        let mut stream = listener.accept_raw();
        let _ = std::io::Read::read(&mut stream, &mut [0; 512]);
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    worker.open(session(1));
    let (cause, _, will_retry) = worker.next_down();
    assert_eq!((cause, will_retry), (LinkCause::Tls, false));
    backend.join().unwrap();
}
