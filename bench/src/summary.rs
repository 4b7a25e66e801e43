//! The figures that other work is judged by, one small file for all verbs: each verb writes its own
//! figures and leaves the others' as they are. A figure that was not measured is absent.

use std::path::Path;

use anyhow::Context;
use serde_json::{Map, Value};

use crate::result_file;

/// Makes `value` the section `name` of the summary file `path`, whose other sections stay.
///
/// # Errors
/// When the file is there but is no JSON object, or cannot be written.
pub fn replace(path: &Path, name: &str, value: Value) -> anyhow::Result<()> {
    let mut sections = read(path)?;
    sections.insert(name.to_owned(), value);
    result_file::write_json(path, &sections)
}

/// Puts `figures` into the section `name`, whose other figures stay: several verbs fill it.
///
/// # Errors
/// As [`replace`].
pub fn merge(path: &Path, name: &str, figures: Map<String, Value>) -> anyhow::Result<()> {
    let mut sections = read(path)?;
    let section = sections.entry(name).or_insert_with(|| Map::new().into());
    section
        .as_object_mut()
        .with_context(|| format!("{}: {name} is no section", path.display()))?
        .extend(figures);
    result_file::write_json(path, &sections)
}

fn read(path: &Path) -> anyhow::Result<Map<String, Value>> {
    if path.exists() {
        result_file::read_json(path).context("the summary to add to")
    } else {
        Ok(Map::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_other_sections_alone_and_other_figures_where_asked() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("summary.json");
        let figures = |name: &str, value: u64| Map::from_iter([(name.to_owned(), value.into())]);
        merge(&path, "calls", figures("lost_calls", 0)).expect("written");
        merge(&path, "calls", figures("rss_per_call_kb", 90)).expect("written");
        replace(
            &path,
            "relay",
            serde_json::json!({ "loss": 0, "duplex_vs_go": 3 }),
        )
        .expect("one");
        replace(&path, "relay", serde_json::json!({ "loss": 1 })).expect("written");
        let sections: Value = result_file::read_json(&path).expect("read");
        let expected = serde_json::json!({
            "calls": { "lost_calls": 0, "rss_per_call_kb": 90 }, "relay": { "loss": 1 },
        });
        assert_eq!(sections, expected);
    }

    #[test]
    fn refuses_to_overwrite_what_is_no_summary() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("summary.json");
        std::fs::write(&path, "[1]").expect("written");
        assert!(replace(&path, "relay", Value::Null).is_err());
        assert!(merge(&path, "calls", Map::new()).is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "[1]");
    }
}
