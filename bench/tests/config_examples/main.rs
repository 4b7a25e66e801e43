//! The shipped example configurations say what the daemons' structs say: every key, its comment,
//! its default.
//!
//! A key is documented once, in its struct. The examples are rendered from there, and this test
//! holds them to it; with `SYRINX_UPDATE_EXAMPLES=1` it writes them. Only the values are the
//! example's own, and those are held to be the defaults.

mod source;

use std::fmt::Debug;
use std::fs;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use source::Structs;
use syrinx_relay::config as relay;
use syrinx_shared::config::{Validate, load};
use syrinx_transceiver::config as transceiver;
use syrinx_transceiver::config::backends::{BackendConfig, Dialect};

/// Sections of the daemons' own files may be structs of these.
const SHARED_SECTIONS: [&str; 6] = [
    "shared/src/admin.rs",
    "shared/src/config/keys.rs",
    "shared/src/config/workers.rs",
    "shared/src/logging.rs",
    "transceiver/src/config/backends.rs",
    "transceiver/src/config/signalling.rs",
];

/// A prefix no environment has, so that the test reads the file alone.
const NO_TWINS: &str = "SYRINX_EXAMPLE_TEST";

#[test]
fn the_transceivers_example_is_rendered_from_its_structs() {
    holds_what_the_structs_say("transceiver");
}

#[test]
fn the_relays_example_is_rendered_from_its_structs() {
    holds_what_the_structs_say("relay");
}

#[test]
fn the_examples_hold_the_defaults() {
    let transceiver = example::<transceiver::Config>("transceiver");
    // Without a backend the echo answers, as it does by the example's.
    let backends = &transceiver.backends;
    let echo = BackendConfig {
        name: "echo".to_owned(),
        dialect: Some(Dialect::Echo),
        ..BackendConfig::default()
    };
    assert_eq!(first_difference(backends, &[echo]), None);
    let default = transceiver::Config {
        backends: backends.clone(),
        ..transceiver::Config::default()
    };
    assert_eq!(first_difference(&transceiver, &default), None);

    let relay = example::<relay::Config>("relay");
    // A relay has no route by default, and is of no use without one.
    let default = relay::Config {
        routes: relay.routes.clone(),
        ..relay::Config::default()
    };
    assert_eq!(first_difference(&relay, &default), None);
}

#[test]
fn the_examples_fit_each_other() {
    let relay = example::<relay::Config>("relay");
    let media = example::<transceiver::Config>("transceiver").media;
    assert_eq!(relay.public.listen, media.advertise);
    assert_eq!(relay.inner.cluster, media.cluster);
    let routes: Vec<_> = relay
        .routes
        .iter()
        .map(|r| (r.transceiver, r.address))
        .collect();
    assert_eq!(routes, [(media.transceiver, media.inner_listen)]);
}

#[test]
fn a_key_that_is_missing_from_an_example_is_noticed() {
    let structs = Structs::read(
        &[root().join("transceiver/src/config.rs")],
        &shared_sections(),
    );
    let text = fs::read_to_string(path("transceiver")).expect("the example is there");
    let without = text.replacen("\ncluster = 1\n", "\n", 1);
    assert_ne!(text, without);
    assert_eq!(
        structs.render(&without),
        Err("[media] has no `cluster`".to_owned())
    );
    let more = text.replacen("\ncluster = 1\n", "\ncluster = 1\n\nclutter = 1\n", 1);
    assert_eq!(
        structs.render(&more).as_deref(),
        Ok(text.as_str()),
        "nothing else survives"
    );
}

fn holds_what_the_structs_say(daemon: &str) {
    let own = root().join(format!("{daemon}/src/config.rs"));
    let structs = Structs::read(&[own], &shared_sections());
    let text = fs::read_to_string(path(daemon)).expect("the example is there");
    let rendered = structs.render(&text).unwrap_or_else(|missing| {
        panic!("systemd/{daemon}.toml: {missing}: add it with its default value")
    });
    if std::env::var_os("SYRINX_UPDATE_EXAMPLES").is_some() {
        fs::write(path(daemon), &rendered).expect("the example can be written");
        return;
    }
    let mut pairs = text.lines().zip(rendered.lines());
    let first = pairs.find(|(is, should)| is != should);
    assert!(
        text == rendered,
        "systemd/{daemon}.toml differs from its structs, first at {first:#?}; to write it: \
         SYRINX_UPDATE_EXAMPLES=1 cargo test --package syrinx-bench --test config_examples"
    );
}

fn example<T: DeserializeOwned + Validate + Debug>(daemon: &str) -> T {
    load(Some(&path(daemon)), NO_TWINS).unwrap_or_else(|error| panic!("{error}"))
}

/// The first line of two values' descriptions that differs: the example's, the default's.
fn first_difference(
    example: &(impl Debug + ?Sized),
    default: &(impl Debug + ?Sized),
) -> Option<(String, String)> {
    let (example, default) = (format!("{example:#?}"), format!("{default:#?}"));
    let mut pairs = example.lines().zip(default.lines());
    let pair = pairs.find(|(is, should)| is != should);
    pair.map(|(is, should)| (is.trim().to_owned(), should.trim().to_owned()))
}

fn root() -> PathBuf {
    let bench = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    bench
        .parent()
        .expect("the crate lies in the workspace")
        .to_owned()
}

fn path(daemon: &str) -> PathBuf {
    root().join(format!("systemd/{daemon}.toml"))
}

fn shared_sections() -> Vec<PathBuf> {
    SHARED_SECTIONS
        .iter()
        .map(|name| root().join(name))
        .collect()
}
