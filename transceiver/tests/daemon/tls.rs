//! HTTPS on the signalling address: who speaks it is served, and certificates change under way.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::calls::{CALLS, offer};
use crate::client::{Answer, parse};
use crate::process::{Ground, PATIENCE, Transceiver, output_of, read_all};

const NAME: &str = "edge.test";

/// Writes a fresh certificate and its key, and returns the certificate.
fn certify(ground: &Ground) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
    let write = |file: &str, label: &str, der: &[u8]| {
        let text = STANDARD.encode(der);
        let pem = format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n");
        std::fs::write(ground.folder.path().join(file), pem).unwrap();
    };
    write("edge.pem", "CERTIFICATE", made.cert.der());
    write("edge.key", "PRIVATE KEY", &made.signing_key.serialize_der());
    made.cert.der().clone()
}

fn twins(ground: &Ground) -> [(&'static str, String); 2] {
    let at = |file: &str| ground.folder.path().join(file).display().to_string();
    [
        (
            "SYRINX_TRANSCEIVER__SIGNALLING__TLS_CERTIFICATE_FILE",
            at("edge.pem"),
        ),
        (
            "SYRINX_TRANSCEIVER__SIGNALLING__TLS_KEY_FILE",
            at("edge.key"),
        ),
    ]
}

fn start(ground: Ground) -> Transceiver {
    let twins = twins(&ground);
    let twins = twins
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    ground.start_with("", &twins)
}

/// Opens a call over TLS, trusting one certificate; `None` when that is not the server's.
fn open(transceiver: &Transceiver, trusted: &CertificateDer<'static>) -> Option<Answer> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(NAME).unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(transceiver.ground.at(8080)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    let offer = offer();
    let head = format!(
        "POST {CALLS} HTTP/1.1\r\nhost: {NAME}\r\nconnection: close\r\n\
         content-type: application/sdp\r\ncontent-length: {}\r\n\r\n{offer}",
        offer.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    Some(parse(&read_all(stream)))
}

#[test]
fn calls_are_opened_over_tls_and_certificates_change_under_way() {
    let ground = Ground::new();
    let first = certify(&ground);
    let mut transceiver = start(ground);
    assert_eq!(open(&transceiver, &first).unwrap().status, 201);
    let plain = TcpStream::connect(transceiver.ground.at(8080)).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    (&plain)
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    assert!(
        !read_all(plain).contains("HTTP/1.1"),
        "no plain HTTP beside it"
    );

    let second = certify(&transceiver.ground);
    assert!(
        open(&transceiver, &second).is_none(),
        "the files alone change nothing"
    );
    transceiver.signal("HUP");
    transceiver.wait_for("the other certificate", |transceiver| {
        open(transceiver, &second).is_some_and(|answer| answer.status == 201)
    });
    assert!(open(&transceiver, &first).is_none());

    std::fs::write(transceiver.ground.folder.path().join("edge.key"), "no key").unwrap();
    transceiver.signal("HUP");
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(open(&transceiver, &second).unwrap().status, 201);
    transceiver.signal("TERM");
    let (code, log) = transceiver.wait();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("signalling on https://"), "{log}");
    assert!(log.contains("signalling.tls_key_file = "), "{log}");
}

#[test]
fn files_that_make_no_server_are_refused_at_the_start() {
    let ground = Ground::new();
    certify(&ground);
    std::fs::write(ground.folder.path().join("edge.pem"), "").unwrap();
    let mut command = ground.command("");
    command.arg("--check").envs(twins(&ground));
    let output = output_of(&mut command);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = "syrinx-transceiver: signalling.tls_certificate_file = ";
    assert!(said.starts_with(expected), "{said}");
}
