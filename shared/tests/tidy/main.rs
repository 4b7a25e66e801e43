//! Executes the countable rules of the style guide over every source of the workspace.
//!
//! A rule that only stands in a document is kept until the first busy week; a rule that is a test
//! is kept. Each rule is a function from one source to its findings, with a unit test beside it
//! that proves it can fail. What clippy or rustc already refuse is left to them.

mod layers;
mod rules;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use source::{Finding, Source};

/// Folders that hold build products or what the tools wrote, never sources.
const FOREIGN_FOLDERS: [&str; 3] = ["target", "node_modules", "run"];

/// The workspace is far below this; the walk stops here rather than follow a loop of links.
const FILES_MAX: usize = 10_000;

#[test]
fn every_source_keeps_every_rule() {
    let sources = workspace_files("rs")
        .into_iter()
        .map(|(name, text)| Source::new(&name, text));
    let findings: Vec<Finding> = sources.flat_map(|source| judge(&source)).collect();
    assert!(findings.is_empty(), "{}", report(&findings));
}

#[test]
fn every_link_of_the_manual_leads_to_a_file() {
    let mut dead = Vec::new();
    for (name, text) in workspace_files("md") {
        let folder = root()
            .join(&name)
            .parent()
            .expect("a file has a folder")
            .to_owned();
        let broken = local_links(&text).filter(|link| !folder.join(link).exists());
        dead.extend(broken.map(|link| format!("{name}: {link}")));
    }
    assert!(
        dead.is_empty(),
        "links that lead nowhere:\n{}",
        dead.join("\n")
    );
}

#[test]
fn the_walk_sees_this_file_and_no_build_product() {
    let names: Vec<String> = workspace_files("rs")
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert!(
        names.iter().any(|name| name == "shared/tests/tidy/main.rs"),
        "{names:?}"
    );
    assert!(
        !names.iter().any(|name| name.contains("target/")),
        "{names:?}"
    );
}

#[test]
fn links_are_read_without_their_fragment_and_foreign_ones_are_left_alone() {
    let text =
        "[a](b.md#part), [c](https://example.org/x), [d](#here) and `[e](f)` is [g](../h/i).";
    assert_eq!(
        local_links(text).collect::<Vec<_>>(),
        ["b.md", "f", "../h/i"]
    );
}

fn judge(source: &Source) -> Vec<Finding> {
    let mut findings: Vec<Finding> = rules::ALL.iter().flat_map(|rule| rule(source)).collect();
    findings.extend(layers::findings(source));
    findings
}

fn report(findings: &[Finding]) -> String {
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    format!("{} finding(s):\n{}", lines.len(), lines.join("\n"))
}

fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest
        .parent()
        .expect("the crate lies in the workspace")
        .to_owned()
}

/// Name relative to the root, with `/`, and text of each file with this extension, sorted.
fn workspace_files(extension: &str) -> Vec<(String, String)> {
    let root = root();
    let mut folders = vec![root.clone()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for entry in entries {
            let path = entry.expect("a readable folder entry").path();
            let name = path
                .file_name()
                .expect("an entry has a name")
                .to_string_lossy();
            if path.is_dir() && !name.starts_with('.') && !FOREIGN_FOLDERS.contains(&&*name) {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
        assert!(
            found.len() < FILES_MAX,
            "more than {FILES_MAX} files under {}",
            root.display()
        );
    }
    found.sort();
    found.into_iter().map(|path| read(&root, &path)).collect()
}

fn read(root: &Path, path: &Path) -> (String, String) {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let relative = path.strip_prefix(root).expect("found under the root");
    (relative.to_string_lossy().replace('\\', "/"), text)
}

/// Targets of Markdown links that name a file beside the text.
fn local_links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| {
        let target = rest.split(')').next()?;
        let file = target.split('#').next()?;
        (!file.is_empty() && !target.contains("://")).then_some(file)
    })
}
