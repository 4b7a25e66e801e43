//! Who may use whom: the table that keeps the cores pure and each driver crate in one place.
//!
//! `OWNERS` says for each crate that touches the world which sources may name it; everything else
//! must reach it through them. `CORES` are the sources that take bytes, time and randomness as
//! arguments: they name no crate of the workspace's drivers and ask the system for nothing.

use std::collections::BTreeMap;

use super::source::{Finding, Source, Token, next_outside, reads, without_tests};

/// What a crate is for, its names, and the beginnings of the paths that may name it. `bench` may
/// see everything, and tests may drive what they test with what they like.
const OWNERS: [(&str, &[&str], &[&str]); 7] = [
    (
        "the engine",
        &["str0m", "dimpl"],
        &["transceiver/src/engine"],
    ),
    (
        "the kernel's constants",
        &["libc"],
        &[
            "shared/src/cores.rs",
            "shared/src/uring",
            "shared/src/worker",
        ],
    ),
    ("the ring", &["io_uring"], &["shared/src/uring"]),
    ("pinning", &["core_affinity"], &["shared/src/cores.rs"]),
    (
        "slow work of a worker, and streams of the control thread",
        &["glommio", "futures_lite"],
        &[
            "relay/src/driver",
            "shared/src/uring",
            "shared/src/worker",
            "transceiver/src/driver",
        ],
    ),
    (
        "TLS",
        &["rustls", "tokio_rustls"],
        &["shared/src/http", "transceiver/src/driver"],
    ),
    ("the control thread", &CONTROL_CRATES, &CONTROL_SOURCES),
];

/// What a process needs beside its packets.
const CONTROL_CRATES: [&str; 15] = [
    "anyhow",
    "axum",
    "clap",
    "getrandom",
    "hyper",
    "hyper_util",
    "metrics",
    "metrics_exporter_prometheus",
    "multer",
    "redis",
    "sd_notify",
    "tokio",
    "tokio_tungstenite",
    "tower_service",
    "tracing_subscriber",
];

/// Where it may be needed: the command line and the control thread, never beside a packet.
const CONTROL_SOURCES: [&str; 14] = [
    "shared/src/admin",
    "shared/src/bind",
    "shared/src/config",
    "shared/src/http",
    "shared/src/logging",
    "shared/src/metrics",
    "shared/src/process",
    "relay/src/commands",
    "relay/src/driver",
    "relay/src/main.rs",
    "transceiver/src/commands",
    "transceiver/src/driver",
    "transceiver/src/main.rs",
    "transceiver/src/signalling/http",
];

/// Sources that are pure: they run in the daemons, the simulator and the fuzzers alike.
const CORES: [&str; 19] = [
    "shared/src/wire",
    "shared/src/route",
    "shared/src/keys",
    "relay/src/forwarder",
    "relay/src/route_cache",
    "transceiver/src/engine",
    "transceiver/src/session",
    "transceiver/src/shard",
    "transceiver/src/playout",
    "transceiver/src/backend",
    "transceiver/src/signalling/access",
    "transceiver/src/signalling/api_keys",
    "transceiver/src/signalling/call_id",
    "transceiver/src/signalling/calls",
    "transceiver/src/signalling/directory",
    "transceiver/src/signalling/ephemeral",
    "transceiver/src/signalling/owners",
    "transceiver/src/signalling/registrar",
    "transceiver/src/signalling/session_config",
];

/// Modules of the workspace that a core must not name.
const WORLDLY_MODULES: [&str; 15] = [
    "admin",
    "bind",
    "clock",
    "config",
    "cores",
    "driver",
    "http",
    "inner_leg",
    "logging",
    "metrics",
    "notify",
    "process",
    "signals",
    "uring",
    "worker",
];

/// What asks the system instead of being told.
const AMBIENT: [&str; 11] = [
    "Instant::now",
    "SystemTime",
    "std::env",
    "std::fs",
    "std::process",
    "std::thread",
    "net::UdpSocket",
    "net::TcpStream",
    "net::TcpListener",
    "std::os",
    "rand::rng",
];

/// Crates that must never see each other: the relay forwards without knowing what terminates.
const STRANGERS: [(&str, &[&str]); 2] = [
    ("relay/", &["syrinx_transceiver"]),
    (
        "shared/",
        &["syrinx_relay", "syrinx_transceiver", "syrinx_bench"],
    ),
];

/// A path as the crate's root would spell it, `a::b::c`, and its line.
#[derive(Debug, PartialEq)]
struct Mention {
    path: String,
    line: usize,
    /// Whether an import of this file, mentioned on its own, already brought the name in.
    is_imported: bool,
}

impl Mention {
    fn root(&self) -> &str {
        self.path.split("::").next().unwrap_or_default()
    }
}

pub(crate) fn findings(source: &Source) -> Vec<Finding> {
    // Tests of a core may read clocks and files; they may not widen who owns a crate.
    let everything = mentions(source, &source.tokens);
    let mut findings = Vec::new();
    for mention in everything.iter().filter(|mention| !mention.is_imported) {
        findings.extend(foreign_crate(source, mention));
        findings.extend(stranger(source, mention));
    }
    if CORES.iter().any(|core| lies_in(&source.path, core)) {
        let shipped = mentions(source, &without_tests(&source.tokens));
        findings.extend(
            shipped
                .iter()
                .filter_map(|mention| worldly(source, mention)),
        );
    }
    findings
}

fn foreign_crate(source: &Source, mention: &Mention) -> Option<Finding> {
    let root = mention.root();
    let (purpose, _, owners) = OWNERS
        .iter()
        .find(|(_, crates, _)| crates.contains(&root))?;
    let is_src = source.path.contains("/src/") && !source.path.starts_with("bench/");
    let is_owner = owners.iter().any(|owner| source.path.starts_with(owner));
    let remark = format!("`{root}` is for {purpose}: see OWNERS in shared/tests/tidy/layers.rs");
    (is_src && !is_owner).then(|| source.finding(mention.line, remark))
}

fn stranger(source: &Source, mention: &Mention) -> Option<Finding> {
    let root = mention.root();
    let (_, unseen) = STRANGERS
        .iter()
        .find(|(folder, _)| source.path.starts_with(folder))?;
    unseen
        .contains(&root)
        .then(|| source.finding(mention.line, format!("this crate must not know `{root}`")))
}

fn worldly(source: &Source, mention: &Mention) -> Option<Finding> {
    let path = &mention.path;
    let mut names = path.split("::");
    let is_ours = names
        .next()
        .is_some_and(|root| root == "crate" || root.starts_with("syrinx_"));
    let module = names.next().unwrap_or_default();
    if is_ours && WORLDLY_MODULES.contains(&module) {
        return Some(source.finding(mention.line, format!("a core must not use `{path}`")));
    }
    let padded = format!("::{path}::");
    let ambient = AMBIENT
        .iter()
        .find(|asked| padded.contains(&format!("::{asked}::")))?;
    Some(source.finding(
        mention.line,
        format!("a core is told, it does not ask `{ambient}`"),
    ))
}

/// Every path of the source: imports taken apart, and paths in code, whose first name is replaced
/// by what an import or a module of this file makes of it.
fn mentions(source: &Source, tokens: &[Token]) -> Vec<Mention> {
    let mut found = Vec::new();
    let mut known = BTreeMap::new();
    let mut in_code = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].text == "use" && !reads(tokens, at + 1, &["<"]) {
            let end = next_outside(tokens, at + 1, &[";"]).unwrap_or(tokens.len());
            import(&tokens[at + 1..end], "", &mut found, &mut known);
            at = end;
        } else if tokens[at].text == "mod" && at + 1 < tokens.len() {
            let name = &tokens[at + 1].text;
            known
                .entry(name.clone())
                .or_insert_with(|| format!("self::{name}"));
        } else if reads(tokens, at + 1, &["::"]) && (at == 0 || tokens[at - 1].text != "::") {
            in_code.push((spelled(&tokens[at..]), tokens[at].line));
        }
        at += 1;
    }
    for (path, line) in in_code {
        let (root, rest) = path.split_once("::").unwrap_or((&path, ""));
        let resolved = known.get(root).map(|origin| format!("{origin}::{rest}"));
        let is_imported = resolved.is_some();
        found.push(Mention {
            path: resolved.unwrap_or(path),
            line,
            is_imported,
        });
    }
    for mention in &mut found {
        mention.path = absolute(source, &mention.path);
    }
    found
}

/// Takes one import tree apart and notes what each name it binds stands for.
fn import(
    tree: &[Token],
    prefix: &str,
    found: &mut Vec<Mention>,
    known: &mut BTreeMap<String, String>,
) {
    let mut start = 0;
    while start < tree.len() {
        let end = next_outside(tree, start, &[","]).unwrap_or(tree.len());
        let branch = &tree[start..end];
        start = end + 1;
        let group = branch.iter().position(|token| token.text == "{");
        let stem = &branch[..group.unwrap_or(branch.len())];
        let stem = stem
            .iter()
            .map(|token| token.text.as_str())
            .take_while(|text| *text != "as");
        let path = format!("{prefix}{}", stem.collect::<String>());
        if let Some(open) = group {
            import(&branch[open + 1..branch.len() - 1], &path, found, known);
        } else if let Some(last) = branch.last() {
            let path = path
                .trim_start_matches("::")
                .trim_end_matches("::self")
                .to_owned();
            let bound = if last.text == "self" {
                path.rsplit("::").next()
            } else {
                None
            };
            let bound = bound.unwrap_or(&last.text).to_owned();
            if bound != path {
                known.insert(bound, path.clone());
            }
            found.push(Mention {
                path,
                line: last.line,
                is_imported: false,
            });
        }
    }
}

/// `a::b::c` from the tokens at its start.
fn spelled(tokens: &[Token]) -> String {
    let is_name = |text: &str| text.chars().all(|c| c.is_alphanumeric() || c == '_');
    let mut path = tokens[0].text.clone();
    for pair in tokens[1..].chunks_exact(2) {
        if pair[0].text != "::" || !is_name(&pair[1].text) {
            break;
        }
        path = format!("{path}::{}", pair[1].text);
    }
    path
}

/// `super::x` and `self::x` as seen from the crate's root.
fn absolute(source: &Source, path: &str) -> String {
    let mut module: Vec<&str> = source
        .path_names()
        .skip_while(|name| *name != "src")
        .skip(1)
        .collect();
    if matches!(module.last(), Some(&"mod" | &"lib" | &"main")) {
        module.pop();
    }
    let mut names = path.split("::").peekable();
    if !matches!(names.peek(), Some(&"super" | &"self")) {
        return path.to_owned();
    }
    while let Some(name) = names.next_if(|name| ["super", "self"].contains(name)) {
        if name == "super" {
            module.pop();
        }
    }
    let rest = ["crate"].into_iter().chain(module).chain(names);
    rest.collect::<Vec<_>>().join("::")
}

/// Whether the path is the module's file or lies in its folder.
fn lies_in(path: &str, module: &str) -> bool {
    let rest = path.strip_prefix(module);
    rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remarks(path: &str, text: &str) -> Vec<String> {
        let source = Source::new(path, text.to_owned());
        findings(&source)
            .into_iter()
            .map(|finding| finding.remark)
            .collect()
    }

    fn paths(text: &str) -> Vec<String> {
        let source = Source::new("a.rs", text.to_owned());
        mentions(&source, &source.tokens)
            .into_iter()
            .map(|mention| mention.path)
            .collect()
    }

    #[test]
    fn import_trees_are_taken_apart() {
        let text = "use a::{b::{self, c as d}, e::*};\npub(crate) use ::f;\n";
        assert_eq!(paths(text), ["a::b", "a::b::c", "a::e::*", "f"]);
    }

    #[test]
    fn paths_in_code_and_macros_are_seen_as_their_imports_explain_them() {
        let text =
            "use a::config;\nfn f() { config::load(); tokio::select! { x = b::c::<u8>() => {} } }";
        assert_eq!(
            paths(text),
            ["a::config", "a::config::load", "tokio::select", "b::c"]
        );
    }

    #[test]
    fn the_engine_named_outside_its_folder_is_found() {
        let text = "use str0m::Rtc;\n";
        assert_eq!(remarks("transceiver/src/shard.rs", text).len(), 1);
        assert!(remarks("transceiver/src/engine/rtc.rs", text).is_empty());
        assert!(remarks("bench/src/load.rs", text).is_empty());
    }

    #[test]
    fn a_driver_crate_named_in_a_core_is_found_even_in_its_tests() {
        let text = "#[cfg(test)]\nmod tests { #[tokio::test] async fn f() {} }";
        assert_eq!(remarks("relay/src/forwarder/verdict.rs", text).len(), 1);
        assert!(remarks("relay/src/driver/control.rs", text).is_empty());
    }

    #[test]
    fn a_core_that_names_the_worlds_modules_is_found_however_it_spells_them() {
        assert_eq!(
            remarks(
                "relay/src/forwarder.rs",
                "use syrinx_shared::clock::Clock;\n"
            )
            .len(),
            1
        );
        assert_eq!(
            remarks("shared/src/wire/stun.rs", "use crate::uring;\n").len(),
            1
        );
        assert_eq!(
            remarks("shared/src/wire/stun.rs", "use super::super::worker::X;\n").len(),
            1
        );
        assert!(remarks("relay/src/forwarder.rs", "use syrinx_shared::wire::stun;\n").is_empty());
        assert!(
            remarks(
                "relay/src/driver/io.rs",
                "use syrinx_shared::clock::Clock;\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn a_core_that_asks_the_clock_is_found_but_its_tests_may() {
        let asks = "use std::time::Instant;\nfn f() { Instant::now(); }\n";
        assert_eq!(remarks("shared/src/route.rs", asks).len(), 1);
        let asks = "fn f() { std::fs::read(\"a\"); std::time::Instant::now(); }\n";
        assert_eq!(remarks("transceiver/src/shard/deadlines.rs", asks).len(), 2);
        let tests = "#[cfg(test)]\nmod tests { fn f() { std::time::Instant::now(); } }\n";
        assert!(remarks("shared/src/route.rs", tests).is_empty());
    }

    #[test]
    fn a_relay_that_knows_the_transceiver_is_found() {
        assert_eq!(
            remarks("relay/tests/flow.rs", "use syrinx_transceiver::shard;\n").len(),
            1
        );
        assert_eq!(
            remarks("shared/src/route.rs", "use syrinx_relay::x;\n").len(),
            1
        );
        assert!(remarks("transceiver/src/lib.rs", "use syrinx_relay::forwarder;\n").is_empty());
    }
}
