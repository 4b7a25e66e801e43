//! The figures that other work is judged by, one small file for all verbs: each verb writes its own
//! section and leaves the others' as they are. A figure that was not measured is absent.

use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use serde_json::{Map, Value};

use super::ledger::Fates;
use super::report::Report;
use super::scenario::Scenario;
use super::target::Kind;
use crate::result_file;

/// The section `relay`. Every `_vs_go` is the Go relay's CPU time a datagram divided by ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Section {
    /// Saturated, clients to transceiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_transceiver_saturated_vs_go: Option<f64>,
    /// Paced, clients to transceiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_transceiver_paced_vs_go: Option<f64>,
    /// Saturated, transceiver to clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_clients_saturated_vs_go: Option<f64>,
    /// Saturated, both ways.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplex_vs_go: Option<f64>,
    /// Our lost datagrams divided by those sent, over all situations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Our resident memory a flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_flow: Option<f64>,
}

impl Section {
    /// Draws the section from a report.
    pub fn of(report: &Report) -> Self {
        let ours = || {
            report
                .summary
                .iter()
                .filter(|line| line.kind == Kind::Syrinx)
        };
        let ratio = |scenario: Scenario| {
            let line = ours().find(|line| line.scenario == scenario)?;
            Some(line.go_over_this?.median)
        };
        let fates = ours().fold(Fates::default(), |sum, line| sum.plus(&line.fates));
        let memory = report
            .flow_memory
            .iter()
            .find(|memory| memory.kind == Kind::Syrinx);
        Self {
            to_transceiver_saturated_vs_go: ratio(Scenario::ToTransceiverSaturated),
            to_transceiver_paced_vs_go: ratio(Scenario::ToTransceiverPaced),
            to_clients_saturated_vs_go: ratio(Scenario::ToClientsSaturated),
            duplex_vs_go: ratio(Scenario::DuplexSaturated),
            loss: (fates.sent > 0).then(|| fates.lost() as f64 / fates.sent as f64),
            bytes_per_flow: memory.map(|memory| memory.bytes_each),
        }
    }

    /// Puts the section into the summary file `path`, whose other sections stay.
    ///
    /// # Errors
    /// When the file is there but is no JSON object, or cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        put(path, "relay", serde_json::to_value(self)?)
    }
}

fn put(path: &Path, section: &str, value: Value) -> anyhow::Result<()> {
    let mut sections: Map<String, Value> = if path.exists() {
        result_file::read_json(path).context("the summary to add to")?
    } else {
        Map::new()
    };
    sections.insert(section.to_owned(), value);
    result_file::write_json(path, &sections)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_other_sections_and_absent_figures_alone() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("summary.json");
        put(&path, "calls", serde_json::json!({ "lost_calls": 0 })).expect("written");
        let section = Section {
            loss: Some(0.0),
            ..Section::default()
        };
        section.write(&path).expect("written");
        let sections: Value = result_file::read_json(&path).expect("read");
        let expected =
            serde_json::json!({ "calls": { "lost_calls": 0 }, "relay": { "loss": 0.0 } });
        assert_eq!(sections, expected);
    }

    #[test]
    fn refuses_to_overwrite_what_is_no_summary() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("summary.json");
        std::fs::write(&path, "[1]").expect("written");
        assert!(Section::default().write(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "[1]");
    }
}
