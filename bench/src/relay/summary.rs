//! The relay's figures in the summary. A figure that was not measured is absent.

use std::path::Path;

use serde::Serialize;

use super::ledger::Fates;
use super::report::Report;
use super::scenario::Scenario;
use super::target::Kind;
use crate::summary;

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
        summary::replace(path, "relay", serde_json::to_value(self)?)
    }
}
