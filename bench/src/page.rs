//! `report`: results as one HTML file that a person reads, sends and prints: nothing in it is
//! loaded from elsewhere, and it has no script.
//!
//! Each kind of result has a part that says which tables and charts it is worth; this module knows
//! only headings, facts, tables and figures.

pub mod barge_in;
pub mod calls;
mod figures;
pub mod relay;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::origin::Origin;
use crate::result_file;

/// More files than this are a mistake of the shell's.
const FILES_MAX: usize = 32;

const STYLE: &str = include_str!("page/style.css");

/// What `report` is asked for.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Results of this program, as its verbs wrote them with --json.
    #[arg(required = true, value_name = "RESULT.json")]
    pub results: Vec<PathBuf>,
    /// The page.
    #[arg(long, value_name = "FILE.html")]
    pub html: PathBuf,
    /// Its heading.
    #[arg(long, default_value = "Syrinx bench")]
    pub title: String,
}

/// Reads the results and writes the page.
///
/// # Errors
/// A file is not there or is no result; the error names it. Nothing is written then.
pub fn run(options: &Options) -> anyhow::Result<()> {
    if options.results.len() > FILES_MAX {
        bail!(
            "{} results are more than one page holds",
            options.results.len()
        );
    }
    let mut page = Page::new(&options.title);
    for path in &options.results {
        add(&mut page, path)?;
    }
    result_file::write(&options.html, &page.finish())
}

/// Adds one result, whichever verb made it.
fn add(page: &mut Page, path: &Path) -> anyhow::Result<()> {
    let value: Value = result_file::read_json(path)?;
    let verb = value
        .get("verb")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let wrong = || format!("{} is not a whole result of this version", path.display());
    match verb {
        "relay" => {
            let report = serde_json::from_value(value).with_context(wrong)?;
            relay::add(page, &name, &report)
        }
        verb if crate::calls::report::VERBS.contains(&verb) => {
            let report = serde_json::from_value(value).with_context(wrong)?;
            calls::add(page, &name, &report)
        }
        crate::calls::barge_in::report::VERB => {
            let report = serde_json::from_value(value).with_context(wrong)?;
            barge_in::add(page, &name, &report)
        }
        "" => bail!("{} is not a result of this program", path.display()),
        other => bail!("{}: this version knows no verb {other:?}", path.display()),
    }
}

/// A page that grows from the top.
#[derive(Debug)]
pub struct Page {
    title: String,
    /// Anchors of the parts, and their names.
    parts: Vec<String>,
    body: String,
}

/// Versions by the names of their targets.
fn named<K>(
    versions: &BTreeMap<K, String>,
    name: impl Fn(&K) -> &'static str,
) -> Vec<(String, String)> {
    let versions = versions.iter();
    let versions = versions.map(|(kind, version)| (name(kind).to_owned(), version.clone()));
    versions.collect()
}

impl Page {
    /// An empty page.
    #[must_use]
    pub fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            parts: Vec::new(),
            body: String::new(),
        }
    }

    /// Begins a part with a heading of its own, and says where its figures come from: the file, its
    /// origin, and each target with its version.
    pub fn part(
        &mut self,
        heading: &str,
        (file, origin): (&str, &Origin),
        versions: Vec<(String, String)>,
    ) {
        self.parts.push(heading.to_owned());
        let number = self.parts.len();
        self.push(&format!(
            "<h2 id=\"part{number}\">{}</h2>",
            escaped(heading)
        ));
        if !origin.complete {
            self.warning("This run was stopped before its end.");
        }
        self.facts(file, origin, versions);
    }

    fn facts(&mut self, file: &str, origin: &Origin, versions: Vec<(String, String)>) {
        let machine = &origin.machine;
        let hypervisor = match machine.hypervisor.as_str() {
            "" => String::new(),
            name => format!(" ({name})"),
        };
        let mut facts = vec![
            ("result".to_owned(), file.to_owned()),
            ("begun".to_owned(), utc(origin.begun_unix_s)),
            (
                "machine".to_owned(),
                format!(
                    "{} cores of {}, {} MiB{hypervisor}",
                    machine.cores, machine.processor, machine.memory_mib
                ),
            ),
            ("kernel".to_owned(), machine.kernel.clone()),
            ("bench".to_owned(), machine.bench.clone()),
        ];
        facts.extend(versions);
        facts.push(("seed".to_owned(), origin.seed.to_string()));
        facts.push((
            "command".to_owned(),
            format!("syrinx-bench {}", origin.arguments.join(" ")),
        ));
        self.push("<dl>");
        for (name, value) in &facts {
            self.push(&format!(
                "<dt>{}</dt><dd>{}</dd>",
                escaped(name),
                escaped(value)
            ));
        }
        self.push("</dl>");
    }

    /// A heading within the part.
    pub fn heading(&mut self, text: &str) {
        self.push(&format!("<h3>{}</h3>", escaped(text)));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        self.push(&format!("<p>{}</p>", escaped(text)));
    }

    /// A paragraph that keeps figures from being taken at their word.
    pub fn warning(&mut self, text: &str) {
        self.push(&format!("<p class=\"warning\">{}</p>", escaped(text)));
    }

    /// A table; the first cell of a row names it, the others are numbers. A row of one cell opens a
    /// group.
    pub fn table(&mut self, heading: &[&str], rows: &[Vec<String>]) {
        self.push("<table><thead><tr>");
        for cell in heading {
            self.push(&format!("<th>{}</th>", escaped(cell)));
        }
        self.push("</tr></thead><tbody>");
        for row in rows {
            if let [name] = row.as_slice() {
                let name = escaped(name);
                self.push(&format!(
                    "<tr class=\"group\"><th colspan=\"{}\">{name}</th></tr>",
                    heading.len()
                ));
                continue;
            }
            let cells = row.iter().enumerate().map(|(place, cell)| {
                let tag = if place == 0 { "th" } else { "td" };
                format!("<{tag}>{}</{tag}>", escaped(cell))
            });
            let cells: String = cells.collect();
            self.push(&format!("<tr>{cells}</tr>"));
        }
        self.push("</tbody></table>");
    }

    /// A chart, as [`chart`](crate::chart) draws it; nothing where nothing was measured.
    pub fn chart(&mut self, svg: Option<String>) {
        let Some(svg) = svg else {
            return;
        };
        // Sized by the page: a fixed width would be cut off on paper.
        let start = svg.find("<svg").unwrap_or_default();
        let sized = svg[start..].replacen("<svg width=", "<svg data-width=", 1);
        let sized = sized.replacen("height=", "data-height=", 1);
        self.push(&format!("<figure>{sized}</figure>"));
    }

    /// The whole page.
    #[must_use]
    pub fn finish(&self) -> String {
        let title = escaped(&self.title);
        let links = self.parts.iter().enumerate().map(|(place, name)| {
            let number = place + 1;
            format!("<li><a href=\"#part{number}\">{}</a></li>", escaped(name))
        });
        let contents = if self.parts.len() > 1 {
            format!("<nav><ul>{}</ul></nav>", links.collect::<String>())
        } else {
            String::new()
        };
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style></head>\n<body>\n\
             <h1>{title}</h1>\n{contents}\n{}</body>\n</html>\n",
            self.body
        )
    }

    fn push(&mut self, html: &str) {
        self.body.push_str(html);
        self.body.push('\n');
    }
}

/// Text as it stands in HTML, within and outside of attributes.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            other => safe.push(other),
        }
    }
    safe
}

/// A point in time as `2026-11-30 13:05 UTC`, by Howard Hinnant's `civil_from_days`
/// (chrono-Compatible Low-Level Date Algorithms): a page needs no calendar beyond this.
fn utc(unix_s: u64) -> String {
    let (days, rest) = (unix_s / 86_400, unix_s % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (rest / 3_600, rest % 3_600 / 60);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write!(text, "{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    /// A page with one part, of a file that means mischief.
    fn page(title: &str, heading: &str, processor: &str) -> Page {
        let machine = Machine {
            processor: processor.to_owned(),
            ..Machine::default()
        };
        let origin = Origin {
            machine,
            begun_unix_s: 1_796_043_900,
            ..Origin::default()
        };
        let versions = vec![("syrinx".to_owned(), "0.1.0 \"x\"".to_owned())];
        let mut page = Page::new(title);
        page.part(heading, ("a<b>.json", &origin), versions);
        page
    }

    #[test]
    fn nothing_that_a_result_says_becomes_markup() {
        let mut page = page("a & b", "calls <i>", "<script>alert(1)</script>");
        page.table(&["<th>"], &[vec!["<td>".to_owned(), "1 < 2".to_owned()]]);
        let html = page.finish();
        for evil in ["<script>", "<i>", "a<b>", "<td><td>", "a & b", "1 < 2"] {
            assert!(!html.contains(evil), "{evil}");
        }
        assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    }

    #[test]
    fn a_run_that_was_stopped_says_so_and_when_it_began() {
        let html = page("bench", "calls", "a processor").finish();
        assert!(html.contains("stopped before its end"), "{html}");
        assert!(html.contains("2026-11-30 13:05 UTC"), "{html}");
        assert!(!html.contains("<nav>"), "one part needs no contents");
    }

    #[test]
    fn dates_are_right_on_the_edges_of_years_and_leap_days() {
        for (unix_s, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(utc(unix_s), text);
        }
    }

    #[test]
    fn a_chart_takes_the_width_of_the_page() {
        let mut page = Page::new("bench");
        let svg = "<svg width=\"9\" height=\"8\" viewBox=\"0 0 9 8\"><rect width=\"1\"/></svg>";
        page.chart(Some(svg.to_owned()));
        let html = page.finish();
        assert!(html.contains("<svg data-width=\"9\" data-height=\"8\" viewBox"));
        assert!(html.contains("<rect width=\"1\"/>"));
    }

    #[test]
    fn a_file_that_is_no_result_is_named_and_nothing_is_written() {
        let folder = tempfile::tempdir().expect("folder");
        let html = folder.path().join("page.html");
        for (text, words) in [
            ("{}", "not a result"),
            ("{\"verb\": \"dance\"}", "no verb \"dance\""),
            ("{\"verb\": \"relay\"}", "not a whole result"),
            ("{", "not a result"),
        ] {
            let path = folder.path().join("odd.json");
            std::fs::write(&path, text).expect("written");
            let error = run(&Options {
                results: vec![path],
                html: html.clone(),
                title: "bench".to_owned(),
            });
            let error = format!("{:#}", error.expect_err("no result"));
            assert!(
                error.contains("odd.json") && error.contains(words),
                "{error}"
            );
            assert!(!html.exists());
        }
    }
}
