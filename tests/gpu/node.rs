//! Devices of a simulated node: what a reader of their spans knows, and what the double of NVML
//! makes of it.

use crate::faults::{Recorded, Recorder};
use crate::gpu_machine::{Machine, Row, gpu, rows, track};
use gpu_node::monotonic_ns;
use gpu_node::node::{Node, OPEN, Use};
use gpu_node::scenario::{Scenario as NodeScenario, Throttle, uuid};
use nvml_double::scenario::{Activity, Fault, Gpu, Scenario};
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::Ordering::Release;

const MS: u64 = 1_000_000;
const PATTERN: Activity = Activity::Square {
    period_ms: 500,
    busy_ms: 300,
};
const USED: Use = Use {
    multiprocessors: 0.5,
    memory: 0.25,
};

/// A node of two devices. The second follows [`PATTERN`] for a minute, on two streams whose queues
/// are that far ahead, this process has 3 GiB on it, and it is throttled.
fn plant(folder: &Path) -> Node {
    let mut scenario = NodeScenario::of_gpus(2);
    scenario.gpus[1].throttle = Some(Throttle {
        from_s: 0.0,
        factor: 2.0,
    });
    let text = serde_json::to_vec(&scenario).unwrap();
    std::fs::write(folder.join("scenario.json"), text).unwrap();
    let node = Node::open(folder).unwrap();
    node.memory(1).unwrap().store(3 << 30, Release);
    let first = monotonic_ns() / (500 * MS) * 500 * MS;
    for start in (0..120).map(|turn| first + turn * 500 * MS) {
        for part in 0..30 {
            let start = start + part * 10 * MS;
            node.put(1, start, start + 10 * MS, USED);
        }
    }
    for start in (0..120).map(|turn| first + turn * 500 * MS) {
        node.put(1, start + 95 * MS, start + 205 * MS, USED);
    }
    node
}

fn record(machine: &Machine, node: &Path, scenario: Option<&Scenario>) -> Recorded {
    // The first reading may be a slow one, and set a long period for what follows.
    let options = ["--duration", "5s", "--gpu", "all"];
    let mut command = machine.command(scenario.unwrap_or(&Scenario::default()), &options);
    command.env(gpu_node::FOLDER, node);
    if scenario.is_none() {
        command.env_remove(nvml_double::SCENARIO);
    }
    let folder = tempfile::tempdir().unwrap();
    Recorder::spawn(command, folder).finish().expect_success()
}

fn assert_follows_pattern(rows: &[&Row], scale: f64, at_least: usize) {
    assert!(rows.len() >= at_least, "{rows:?}");
    for row in rows {
        let share = PATTERN.busy_ns(row.start_ns, row.end_ns) / row.length_ns() as f64;
        let truth = share * scale;
        assert!((row.number() - truth).abs() <= 0.03, "{row:?}: {truth}");
    }
}

fn assert_energy(rows: &[&Row], busy_ns: impl Fn(u64, u64) -> f64) {
    let joules: f64 = rows.iter().map(|row| row.number()).sum();
    let (from, to) = (rows[0].start_ns, rows[rows.len() - 1].end_ns);
    let truth = (to - from) as f64 / 1e9 * 70.0 + busy_ns(from, to) / 1e9 * 430.0;
    // A step of the counter is 100 ms long, at either end.
    assert!((joules - truth).abs() <= 50.0, "{joules} J and not {truth}");
}

/// Without a scenario of NVML's own, devices are the node's.
#[test]
fn figures_are_those_of_the_nodes_queues() {
    let Some(machine) = Machine::start(50, 50) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let _node = plant(folder.path());
    let recorded = record(&machine, folder.path(), None);
    let (report, rows) = (recorded.report(), rows(&recorded));
    let (idle, busy) = (uuid(0), uuid(1));
    let of = |name: &str| track(&rows, &busy, name);
    assert_follows_pattern(&of("utilization"), 1.0, 8);
    assert_follows_pattern(&of("sm_active"), 0.5, 5);
    assert_follows_pattern(&of("dram_active"), 0.25, 5);
    assert_energy(&of("energy"), |from, to| PATTERN.busy_ns(from, to));
    let device = gpu(&report, &busy);
    assert_eq!(device["name"], "Simulated GPU");
    assert_eq!(device["memory"]["total_bytes"], 40_u64 << 30);
    assert_eq!(device["memory"]["max_bytes"], (3_u64 << 30) as f64);
    let clock = |device: &Value| device["sm_clock_mhz"].as_f64().unwrap();
    assert!((clock(device) - 990.0).abs() < 1.0, "{device}");
    let throttled = &device["throttle"]["thermal, by hardware"];
    assert!(throttled.as_f64().unwrap() > 0.9, "{device}");
    let process = &device["processes"][0];
    assert_eq!(process["pid"], std::process::id());
    assert_eq!(process["memory_bytes"], 3_u64 << 30);

    let device = gpu(&report, &idle);
    assert_eq!(device["utilization"], 0.0);
    assert!((clock(device) - 1980.0).abs() < 1.0, "{device}");
    assert_eq!(device["memory"]["max_bytes"], 0.0);
    assert!(device["processes"].as_array().unwrap().is_empty());
    assert_energy(&track(&rows, &idle, "energy"), |_, _| 0.0);
}

/// A scenario plants on top of a device of the node what a driver does with it.
#[test]
fn a_scenario_goes_before_the_node() {
    let Some(machine) = Machine::start(50, 50) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let _node = plant(folder.path());
    let of_node = Gpu::of_node(1, &NodeScenario::of_gpus(2).gpus[1]);
    let busy = of_node.uuid.clone();
    let fault = Fault {
        call: "nvmlDeviceGetMemoryInfo_v2".to_owned(),
        code: 3,
        ..Fault::default()
    };
    let scenario = Scenario {
        gpus: vec![Gpu {
            window_ms: 100,
            processes: Some(vec![machine.process()]),
            ..of_node
        }],
        faults: vec![fault],
        ..Scenario::default()
    };
    let recorded = record(&machine, folder.path(), Some(&scenario));
    let (report, rows) = (recorded.report(), rows(&recorded));
    let windows = track(&rows, &busy, "utilization");
    assert_follows_pattern(&windows, 1.0, 15);
    assert!(windows.iter().all(|row| row.length_ns() < 110 * MS));
    let device = gpu(&report, &busy);
    assert_eq!(device["index"], 0);
    assert_eq!(device["processes"][0]["pid"], machine.target.pid());
}

/// Spans that come late, overlap, have not ended, or are read in any order.
#[test]
fn what_a_reader_knows_is_what_ran() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, reader) = (
        Node::open(folder.path()).unwrap(),
        Node::open(folder.path()).unwrap(),
    );
    let base = monotonic_ns();
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    // A second before and after now: what has ended, runs, or is queued.
    let mut spans: Vec<(u64, u64)> = Vec::new();
    let mut open: Vec<(u64, usize)> = Vec::new();
    for round in 0..400 {
        let start = base - 1000 * MS + random(2000 * MS);
        let end = if random(20) == 0 {
            OPEN
        } else {
            start + random(3 * MS)
        };
        let number = writer.put(3, start, end, USED);
        if end == OPEN {
            open.push((number, spans.len()));
        }
        spans.push((start, end));
        if random(8) == 0 && !open.is_empty() {
            let (number, at) = open.swap_remove(random(open.len() as u64) as usize);
            spans[at].1 = spans[at].0 + random(30 * MS);
            writer.end(3, number, spans[at].1);
        }
        let from = base - 1000 * MS + random(2000 * MS);
        let to = from + random(200 * MS);
        let mut all: Vec<(u64, u64)> = spans
            .iter()
            .map(|span| (span.0.max(from), span.1.min(to)))
            .filter(|span| span.1 > span.0)
            .collect();
        all.sort_unstable();
        let (mut truth, mut until) = (0, from);
        for (start, end) in all {
            truth += end.saturating_sub(start.max(until));
            until = until.max(end);
        }
        let busy = reader.busy(3, from, to);
        assert!(
            (busy.ns - truth as f64).abs() < 100.0,
            "{round}: {busy:?} {truth}"
        );
        assert!((busy.multiprocessors_ns - 0.5 * busy.ns).abs() < 1e-3 * busy.ns + 1.0);
        assert!((busy.memory_ns - 0.25 * busy.ns).abs() < 1e-3 * busy.ns + 1.0);
    }
    // The ring has room for 2^17: a reader that keeps up misses none.
    let (start, step) = (base - 10_000 * MS, 10_000);
    for number in 0..400_000 {
        let start = start + number * step;
        writer.put(5, start, start + step / 2, USED);
        if number % 100_000 == 0 {
            reader.busy(5, start, start + step);
        }
    }
    let busy = reader.busy(5, start, start + 400_000 * step);
    assert_eq!(busy.ns, 2000.0 * MS as f64);
}
