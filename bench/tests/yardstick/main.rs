//! The yardsticks judged by what they must hold themselves.

mod calls;
mod outcomes;
mod relay;

use std::path::Path;
use std::process::{Command, Output};

use syrinx_bench::calls::report::Report;
use syrinx_bench::result_file;

/// The bench with a verb and its arguments.
fn command(verb: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_syrinx-bench"));
    command.arg(verb).args(arguments);
    command
}

/// Runs a verb that makes calls, with its result in `folder`; `report` and `compare` know that.
fn run(verb: &str, arguments: &[&str], folder: &Path) -> (Report, Output) {
    let json = folder.join("result.json");
    let mut command = command(verb, arguments);
    command.arg("--json").arg(&json);
    command.arg("--summary").arg(folder.join("summary.json"));
    let output = command.output().expect("the bench runs");
    assert!(output.status.success(), "{output:?}");
    assert_told(&json, &["Figures", "Over time"]);
    (result_file::read_json(&json).expect("a result"), output)
}

/// Insists that `report` makes a page of a result that has these words, and that `compare` finds
/// figures in it.
fn assert_told(json: &Path, words: &[&str]) {
    let html = json.with_extension("html");
    let page = command("report", &["--html"]).args([&html, json]).output();
    let page = page.expect("the bench runs");
    assert!(page.status.success(), "{page:?}");
    let html = std::fs::read_to_string(html).expect("a page");
    assert!(words.iter().all(|word| html.contains(word)), "{html}");
    let compared = command("compare", &[]).args([json, json]).output();
    let compared = compared.expect("the bench runs");
    let text = String::from_utf8_lossy(&compared.stdout);
    assert!(compared.status.success(), "{compared:?}");
    assert!(
        text.contains("verdict") && text.lines().count() > 1,
        "{text}"
    );
}

/// The words of a command line.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}
