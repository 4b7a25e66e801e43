//! Looks at a run while it goes: at the processes under test, for what a call costs; and for the
//! eyes of who waits.

use std::ops::Range;
use std::time::Duration;

use super::engine::{Tick, Watch};
use super::process::{Process, Reading};
use super::report::{Point, ProcessCost, ProcessPoint};
use crate::live;
use crate::progress::Progress;

/// Most points of a series; a longer run keeps every second of them, then every fourth, and so on.
const POINTS_MAX: usize = 2_000;

/// The watcher of one run.
pub struct Observer<'a> {
    processes: &'a [Process],
    window: Range<Duration>,
    progress: &'a mut Progress,
    label: String,
    before: Vec<Option<Reading>>,
    window_start: Option<Look>,
    window_end: Option<Look>,
    last: Option<Look>,
    points: Vec<Point>,
    stride: usize,
    ticks: usize,
}

/// All processes at one moment.
#[derive(Clone, Debug)]
struct Look {
    at: Duration,
    active: u64,
    readings: Vec<Option<Reading>>,
}

impl<'a> Observer<'a> {
    /// Reads the processes as they are before the first call.
    pub fn new(
        processes: &'a [Process],
        window: Range<Duration>,
        progress: &'a mut Progress,
        label: String,
    ) -> Self {
        Self {
            before: processes.iter().map(Process::read).collect(),
            processes,
            window,
            progress,
            label,
            window_start: None,
            window_end: None,
            last: None,
            points: Vec::new(),
            stride: 1,
            ticks: 0,
        }
    }

    /// What the processes cost: within the window for `call_s` seconds of calls, and over the run
    /// for `started` calls.
    pub fn costs(&self, call_s: f64, started: u64) -> Vec<ProcessCost> {
        let costs = self.processes.iter().enumerate().map(|(index, process)| {
            let of = |look: &Option<Look>| look.as_ref().and_then(|look| look.readings[index]);
            let before = self.before[index].unwrap_or_default();
            let (start, end) = (of(&self.window_start), of(&self.window_end));
            let spent = start
                .zip(end)
                .map(|(start, end)| end.cpu.saturating_sub(start.cpu));
            let wall = self.window_start.as_ref().zip(self.window_end.as_ref());
            let wall_s = wall.map(|(start, end)| end.at.saturating_sub(start.at).as_secs_f64());
            let active = self.window_end.as_ref().map_or(0, |look| look.active);
            let last = of(&self.last);
            // A process that was restarted meanwhile is another one, of which nothing is known.
            let then = end.or(last);
            let grown_kib = then.map(|then| then.resident_kib as f64 - before.resident_kib as f64);
            let all = last.map(|last| last.cpu.saturating_sub(before.cpu));
            let over = |part: Duration, whole: f64| {
                (whole > 0.0).then(|| part.as_secs_f64() * 1e3 / whole)
            };
            ProcessCost {
                name: process.name.clone(),
                cpu_ms_per_call_second: spent.and_then(|spent| over(spent, call_s)),
                cpu_ms_per_start: all.and_then(|all| over(all, started as f64)),
                busy_share: spent
                    .zip(wall_s)
                    .map(|(spent, wall_s)| spent.as_secs_f64() / wall_s),
                resident_before_kib: before.resident_kib,
                resident_kib: then.map(|then| then.resident_kib),
                resident_per_call_kib: grown_kib
                    .filter(|_| active > 0)
                    .map(|kib| kib / active as f64),
                descriptors_before: before.descriptors,
                descriptors: then.and_then(|then| then.descriptors),
            }
        });
        costs.collect()
    }

    /// The run over time.
    pub fn into_series(self) -> Vec<Point> {
        self.points
    }

    fn keep(&mut self, point: Point) {
        self.ticks += 1;
        if !self.ticks.is_multiple_of(self.stride) {
            return;
        }
        self.points.push(point);
        if self.points.len() == POINTS_MAX {
            let mut index = 0;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 0
            });
            self.stride *= 2;
        }
    }
}

impl Watch for Observer<'_> {
    fn tick(&mut self, tick: Tick) {
        let look = Look {
            at: tick.at,
            active: tick.active,
            readings: self.processes.iter().map(Process::read).collect(),
        };
        if tick.at >= self.window.start && self.window_start.is_none() {
            self.window_start = Some(look.clone());
        }
        if tick.at >= self.window.end && self.window_end.is_none() {
            self.window_end = Some(look.clone());
        }
        let us = |part| tick.round_trip.quantile_us(part);
        let point = Point {
            at_s: tick.at.as_secs_f64(),
            active: tick.active,
            established: tick.established,
            failed: tick.failed,
            lost: tick.lost,
            said: tick.said,
            heard: tick.heard,
            round_trip_p50_us: us(0.5),
            round_trip_p99_us: us(0.99),
            processes: look.readings.iter().map(process_point).collect(),
        };
        let names: Vec<&str> = self.processes.iter().map(|one| one.name.as_str()).collect();
        live::show(&self.label, &names, &point);
        let p99 = point
            .round_trip_p99_us
            .map_or("-".to_owned(), |us| format!("{:.1}", us / 1e3));
        self.progress.note(&format!(
            "{} {:.0} s: {} up, {} failed, {} lost, round trip p99 {p99} ms",
            self.label, point.at_s, point.active, point.failed, point.lost
        ));
        self.last = Some(look);
        self.keep(point);
    }
}

fn process_point(reading: &Option<Reading>) -> ProcessPoint {
    reading.map_or_else(ProcessPoint::default, |reading| ProcessPoint {
        cpu_ms: reading.cpu.as_secs_f64() * 1e3,
        resident_kib: reading.resident_kib,
        descriptors: reading.descriptors,
    })
}

#[cfg(test)]
mod tests {
    use super::super::latency::Latencies;
    use super::*;

    fn tick(at: Duration, active: u64) -> Tick {
        Tick {
            at,
            active,
            established: active,
            failed: 0,
            lost: 0,
            round_trip: Latencies::default(),
            said: 0,
            heard: 0,
        }
    }

    #[test]
    fn charges_a_process_for_the_window_alone() {
        let own = [Process::of_pid(std::process::id()).expect("this one")];
        let mut progress = Progress::new(1);
        let window = Duration::from_secs(1)..Duration::from_secs(2);
        let mut observer = Observer::new(&own, window, &mut progress, "test".to_owned());
        observer.tick(tick(Duration::from_secs(1), 4));
        let mut sum = 0_u64;
        for step in 0..5_000_000 {
            sum = std::hint::black_box(sum.wrapping_add(step));
        }
        observer.tick(tick(Duration::from_secs(2), 4));
        let cost = &observer.costs(4.0, 2)[0];
        let each = cost.cpu_ms_per_call_second.expect("a window");
        let busy = cost.busy_share.expect("a window");
        assert!(each > 0.0 && (each * 4.0 / 1e3 - busy).abs() < 1e-9);
        assert!(cost.resident_per_call_kib.is_some() && cost.cpu_ms_per_start > Some(0.0));
        assert_eq!(observer.costs(0.0, 0)[0].cpu_ms_per_call_second, None);
        assert_eq!(observer.into_series().len(), 2);
    }

    #[test]
    fn thins_a_long_series_out_and_keeps_its_span() {
        let mut progress = Progress::new(1);
        let window = Duration::ZERO..Duration::ZERO;
        let mut observer = Observer::new(&[], window, &mut progress, "test".to_owned());
        for second in 0..10_000 {
            let at_s = f64::from(second);
            observer.keep(Point {
                at_s,
                active: 0,
                established: 0,
                failed: 0,
                lost: 0,
                said: 0,
                heard: 0,
                round_trip_p50_us: None,
                round_trip_p99_us: None,
                processes: Vec::new(),
            });
        }
        let points = observer.into_series();
        assert!((POINTS_MAX / 2..POINTS_MAX).contains(&points.len()));
        assert!(points[points.len() - 1].at_s > 9_980.0);
        assert!(points.windows(2).all(|pair| pair[0].at_s < pair[1].at_s));
    }
}
