//! The manual's page on metrics and what the daemons expose are held to each other.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use syrinx_bench::process::edge::{Edge, EdgeOptions};
use syrinx_bench::process::exposition::Exposition;

/// What a histogram is exposed as, beside its own name.
const HISTOGRAM_SUFFIXES: [&str; 3] = ["_bucket", "_sum", "_count"];

/// Labels whose values are words with a meaning of their own.
const WORD_LABELS: [&str; 4] = ["direction", "reason", "outcome", "phase"];

/// A backend that no call is made for, so that there are metrics of links.
const BACKEND: &str = "[[backends]]\nname = \"main\"\ndialect = \"media.v1\"\n\
    urls = [\"ws://127.0.0.1:9/\"]\n";

#[test]
fn every_metric_and_every_word_of_a_label_is_in_the_manual_and_no_other() {
    let options = EdgeOptions {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        workers: 1,
    };
    let edge = Edge::start_with(options, BACKEND).expect("the edge starts");
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/manual/metrics.md");
    let words = backquoted(&std::fs::read_to_string(manual).expect("the page is there"));

    let mut exposed = BTreeSet::new();
    for (prefix, daemon) in [
        ("syrinx_relay", &edge.relay),
        ("syrinx_transceiver", &edge.transceiver),
    ] {
        let exposition = daemon.metrics().expect("metrics are exposed");
        for series in exposition.names() {
            exposed.extend(label_words(&exposition, series));
            let name = HISTOGRAM_SUFFIXES
                .iter()
                .find_map(|suffix| series.strip_suffix(suffix));
            let name = name.unwrap_or(series);
            let short = name
                .strip_prefix(prefix)
                .unwrap_or_else(|| panic!("{name} is foreign"));
            // What both daemons expose is listed once, without the prefix.
            let listed = if words.contains(name) { name } else { short };
            exposed.insert(listed.to_owned());
        }
    }
    let missing: Vec<_> = exposed.difference(&words).collect();
    assert!(
        missing.is_empty(),
        "exposed, and not in shared/manual/metrics.md: {missing:?}"
    );
    let is_metric = |word: &&String| {
        let is_prefix = ["syrinx_relay", "syrinx_transceiver"].contains(&word.as_str());
        (word.starts_with("syrinx_") || word.starts_with('_')) && !is_prefix
    };
    let extra: Vec<_> = words.difference(&exposed).filter(is_metric).collect();
    assert!(
        extra.is_empty(),
        "in shared/manual/metrics.md, and not exposed: {extra:?}"
    );
}

/// Everything between backquotes.
fn backquoted(text: &str) -> BTreeSet<String> {
    text.lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect()
}

fn label_words(exposition: &Exposition, name: &str) -> BTreeSet<String> {
    let values = |label: &&str| exposition.by(name, label).into_keys();
    WORD_LABELS.iter().flat_map(values).collect()
}
