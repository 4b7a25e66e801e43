//! Replays the corpus of every fuzz target in the ordinary test run: what a fuzzer once found
//! stays found.

use std::path::{Path, PathBuf};

#[path = "../fuzz/dialects.rs"]
mod dialects;
#[path = "../fuzz/targets.rs"]
mod targets;

/// Every input of a target's corpus, with its name.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect()
}

fn replay(target: &str, run: fn(&[u8])) {
    let inputs = corpus(target);
    assert!(inputs.len() >= 5, "the corpus of {target} is missing");
    for (path, bytes) in inputs {
        println!("{}", path.display());
        run(&bytes);
    }
}

#[test]
fn replays_the_stun_corpus() {
    replay("stun", targets::stun);
}

#[test]
fn replays_the_ufrag_corpus() {
    replay("ufrag", targets::ufrag);
}

#[test]
fn replays_the_bundle_corpus() {
    replay("bundle", targets::bundle);
}

#[test]
fn replays_the_train_corpus() {
    replay("train", targets::train);
}

#[test]
fn replays_the_forwarder_corpus() {
    replay("forwarder", targets::forwarder);
}

#[test]
fn replays_the_media_v1_corpus() {
    replay("media_v1", dialects::media_v1);
}

#[test]
fn replays_the_realtime_corpus() {
    replay("realtime", dialects::realtime);
}
