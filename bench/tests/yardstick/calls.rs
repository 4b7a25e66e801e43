//! The verbs that make calls, run as an operator runs them against a pair that they start
//! themselves.

use std::path::Path;

use serde_json::Value;
use syrinx_bench::calls::barge_in::report::Report as BargeIn;
use syrinx_bench::calls::report::{Report, Run};
use syrinx_bench::calls::tally::Phase;
use syrinx_bench::result_file;

use crate::{assert_told, command, run, words};

/// Insists that so many calls came to their planned end, and none was lost.
fn assert_completed(run: &Run, count: u64) {
    let calls = (run.calls.completed, run.calls.lost, run.failures.total());
    assert_eq!(calls, (count, 0, 0), "{:?}", run.failures);
}

fn only(report: &Report) -> &Run {
    assert_eq!(report.runs.len(), 1);
    &report.runs[0]
}

fn summary(folder: &Path) -> Value {
    result_file::read_json(&folder.join("summary.json")).expect("a summary")
}

#[test]
fn calls_through_relay_and_transceiver_are_measured_from_the_offer_to_the_last_packet() {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = words("--calls 6 --rate 20 --settle-s 1 --window-s 1.5");
    let (report, output) = run("calls", &arguments, folder.path());
    assert!(report.origin.complete && report.origin.verb == "calls");
    let run = only(&report);
    assert_eq!((run.calls.established, run.calls.completed), (6, 6));
    assert_eq!(
        (run.calls.failed, run.calls.lost, run.failures.total()),
        (0, 0, 0)
    );
    for phase in Phase::ALL {
        let set_up = run
            .phase(phase)
            .unwrap_or_else(|| panic!("no {}", phase.name()));
        assert_eq!(set_up.total.count, 6, "{}", phase.name());
    }
    let said = run.media.said;
    assert!(
        (6 * 73..=6 * 77).contains(&said),
        "{said} packets in 1.5 s of 6 calls"
    );
    assert_eq!((run.media.lost, run.media.foreign), (0, 0));
    let names: Vec<&str> = run
        .processes
        .iter()
        .map(|cost| cost.name.as_str())
        .collect();
    assert_eq!(names, ["relay", "transceiver"]);
    assert!(
        run.processes
            .iter()
            .all(|cost| cost.cpu_ms_per_call_second > Some(0.0))
    );
    assert!(run.series.iter().any(|point| point.active == 6));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("6 of 6 calls established"), "{text}");
    let figures = &summary(folder.path())["calls"];
    assert_eq!(figures["lost_calls"], 0.0);
    assert!(figures["rss_per_call_kb"].is_number(), "{figures}");
}

#[test]
fn the_generators_own_ceiling_is_measured_against_a_reflector() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut arguments = vec!["--targets", "reflector", "--calls", "4", "--rate", "20"];
    arguments.extend(["--settle-s", "0.5", "--window-s", "1"]);
    let (report, output) = run("calls", &arguments, folder.path());
    let run = only(&report);
    assert_eq!(
        (run.calls.completed, run.media.lost),
        (4, 0),
        "{:?}",
        run.failures
    );
    assert_eq!(run.processes.len(), 1);
    assert_eq!(run.processes[0].name, "reflector");
    assert!(
        run.generator.room_for_calls > Some(4.0),
        "{:?}",
        run.generator
    );
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("room for"), "{text}");
    // It is not the project's edge, and says nothing in its summary.
    let calls = &summary(folder.path())["calls"];
    assert!(
        calls["rss_per_call_kb"].is_null() && calls["lost_calls"].is_null(),
        "{calls}"
    );
}

#[test]
fn a_link_of_either_dialect_is_measured_beside_the_edges_own_echo() {
    let folder = tempfile::tempdir().expect("a folder");
    let targets = "syrinx,media-v1,realtime";
    let mut arguments = vec!["--targets", targets, "--calls", "4", "--rate", "20"];
    arguments.extend(["--settle-s", "2", "--window-s", "3"]);
    let (report, output) = run("calls", &arguments, folder.path());
    assert!(report.origin.complete, "{report:?}");
    let names: Vec<&str> = report.runs.iter().map(|run| run.target.name()).collect();
    assert_eq!(names, ["syrinx", "media-v1", "realtime"]);
    for run in &report.runs {
        let (name, media) = (run.target.name(), &run.media);
        assert_eq!(run.calls.completed, 4, "{name}: {:?}", run.failures);
        assert_eq!((media.lost, media.foreign), (0, 0), "{name}: {media:?}");
        let trips = media.round_trip.as_ref().map(|trips| trips.count);
        assert_eq!(trips, Some(media.heard), "{name}");
        // Each way has a delay of its own where the backend marks packets, and together they are
        // the round trip.
        let ways = media.up.as_ref().zip(media.down.as_ref());
        assert_eq!(ways.is_some(), name == "media-v1", "{name}: {media:?}");
        if let Some((up, down)) = ways {
            assert_eq!((up.count, down.count), (media.heard, media.heard));
            let trip = media.round_trip.as_ref().map_or(0.0, |trips| trips.mean);
            let off = (up.mean + down.mean) / trip - 1.0;
            assert!(off.abs() < 0.01, "{up:?} {down:?} {trip}");
        }
        // The backend is not charged to the edge.
        assert_eq!(run.processes.len(), 2, "{name}: {:?}", run.processes);
    }
    // 50 packets a second of each call, and where they are decoded a burst a second.
    let said = [1, 2].map(|place| report.runs[place].media.said);
    assert!((4 * 147..=4 * 153).contains(&said[0]), "{said:?}");
    assert!((4 * 2..=4 * 4).contains(&said[1]), "{said:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("bursts of sound said, 0 lost"), "{text}");
    let silent = text.matches("the echo of syrinx does not say").count();
    assert_eq!(silent, 1, "{text}");
}

#[test]
fn a_target_that_cannot_be_met_as_asked_is_refused_with_the_remedy() {
    let wrong = [
        (
            "calls",
            ["realtime", "--speech", "conversation"],
            "continuous",
        ),
        (
            "calls",
            ["media-v1", "--url", "http://127.0.0.1:9/c"],
            "syrinx",
        ),
        ("roam", ["realtime", "--seed", "2"], "media-v1"),
    ];
    for (verb, arguments, words) in wrong {
        let mut bench = command(verb, &["--calls", "1", "--targets"]);
        let output = bench.args(arguments).output().expect("the bench runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && text.contains(words),
            "{arguments:?}: {text}"
        );
    }
}

#[test]
fn calls_outlive_a_restart_of_the_relay_and_the_silence_is_known() {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = words("--calls 4 --rate 20 --settle-s 1 --observe-s 9");
    let (report, _) = run("recovery", &arguments, folder.path());
    let run = only(&report);
    assert_completed(run, 4);
    let incident = run.incident.as_ref().expect("a restart");
    assert!(incident.what.contains("restarted") && incident.took_ms > Some(0.0));
    // Every packet that was said while nobody listened is lost, and every loss is such a packet.
    let blackout_ms = incident.blackout_ms.expect("a blackout");
    assert!(
        incident.packets_lost > 0 && blackout_ms > 60.0,
        "{incident:?}"
    );
    let at_most = 4.0 * (blackout_ms / 20.0 + 2.0);
    assert!(incident.packets_lost as f64 <= at_most, "{incident:?}");
    assert!(incident.settled_ms >= Some(60.0), "{incident:?}");
    let figures = &summary(folder.path())["recovery"];
    assert_eq!(
        figures["supervised_restart_packets_lost"],
        incident.packets_lost as f64
    );
}

#[test]
fn calls_follow_clients_that_change_their_address() {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = words("--calls 4 --rate 20 --settle-s 1 --observe-s 4 --spread-s 1");
    let (report, _) = run("roam", &arguments, folder.path());
    let run = only(&report);
    assert_completed(run, 4);
    assert!(run.media.heard > run.media.said / 2, "{:?}", run.media);
}

#[test]
fn a_storm_makes_every_call_again_and_times_the_second_ones_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = words("--calls 5 --rate 20 --settle-s 1 --observe-s 3");
    let (report, _) = run("storm", &arguments, folder.path());
    let run = only(&report);
    assert_eq!(
        (run.calls.established, run.calls.completed),
        (10, 10),
        "{:?}",
        run.failures
    );
    let audio = run.phase(Phase::Audio).expect("audio came back");
    assert_eq!(audio.total.count, 5);
    let incident = run.incident.as_ref().expect("a storm");
    assert!(incident.settled_ms > Some(0.0), "{incident:?}");
}

#[test]
fn an_interrupted_answer_falls_silent_and_the_edge_knows_how_much_of_it_was_heard() {
    for dialect in ["media.v1", "realtime"] {
        let folder = tempfile::tempdir().expect("a folder");
        let json = folder.path().join("result.json");
        let output = command("barge-in", &["--calls", "4", "--at-once", "2"])
            .args(["--dialect", dialect, "--json"])
            .arg(&json)
            .output()
            .expect("the bench runs");
        assert!(output.status.success(), "{output:?}");
        let report: BargeIn = result_file::read_json(&json).expect("a result");
        assert!(report.origin.complete, "{report:?}");
        assert_eq!(report.dialect.name(), dialect);
        assert_eq!(report.runs.len(), 1);
        let run = &report.runs[0];
        assert_eq!((run.answers, run.unreported), (4, 0), "{report:?}");
        assert_eq!(run.reported_error_us, Some(0.0), "{report:?}");
        assert_eq!(run.by.len(), 2);
        assert_told(&json, &["Barge-in", dialect, "the client's clear"]);
        let stops = run.stop.as_ref().map(|all| (all.count, all.p50 <= all.p99));
        assert_eq!(stops, Some((4, true)), "{report:?}");
    }
}
