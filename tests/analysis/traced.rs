//! A trace of torch.profiler beside a recording of the same process: joined by clock and pid.

use crate::analysis_builder::*;
use serde_json::{Value, json};
use torchspy::analysis::traced::{NotJoined, traced};
use torchspy::analysis::{Analysis, analyze};
use torchspy::model::ids::ProcessId;
use torchspy::model::profile::Profile;
use torchspy::model::progress::{Condition, facts};
use torchspy::report::json::render_json;
use torchspy::report::tables::trace::sampled_idle;
use torchspy::report::text::{By, TextOptions, render_summary};
use torchspy::trace::kept::Kept;
use torchspy::trace::{Reading, TraceSummary, read, reduce};

/// The wall clock at time 0 of the recording, ns since 1970.
const WALL_NS: u64 = 1_790_857_026_000_000_000;
const PID: u64 = 100;

/// 100 ms of a trainer: 40 ms in an operator, then 60 ms of making a batch.
fn recording() -> Profile {
    let mut builder = Builder::trainer();
    builder.run.started_wall_ns = WALL_NS;
    let add = torch("at::_ops::add_Tensor::call(at::Tensor const&)");
    builder.ticks(0, 4, S::Running, &[user("main", 41), add]);
    builder.ticks(0, 6, S::Running, &fetch(&[]));
    builder.profile()
}

/// Of the same time: two steps, and a device that is idle from 20 to 61 ms. The launch that ends
/// that takes from 59 to 60 ms.
fn trace(pid: u64, base_ns: u64) -> TraceSummary {
    let host = |cat: &str, name: &str, ts: u64, dur: u64, args: Value| json!({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": pid, "ts": ts, "dur": dur, "args": args});
    let kernel = |correlation: u64, ts: u64, dur: u64| {
        json!({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": {"device": 0, "stream": 7, "correlation": correlation}})
    };
    let launch = |correlation: u64, ts: u64, dur: u64| {
        host(
            "cuda_runtime",
            "cudaLaunchKernel",
            ts,
            dur,
            json!({"correlation": correlation}),
        )
    };
    let mut events = Vec::new();
    for number in 0..2 {
        let t = 50_000 * number;
        events.push(host(
            "user_annotation",
            &format!("ProfilerStep#{number}"),
            t,
            50_000,
            json!({}),
        ));
        events.extend(
            (1..4).map(|index| host("cpu_op", "aten::add", t + 200 * index, 100, json!({}))),
        );
    }
    events.extend([launch(1, 1000, 500), kernel(1, 2000, 18_000)]);
    events.extend([launch(2, 59_000, 1000), kernel(2, 61_000, 39_000)]);
    let file = json!({"baseTimeNanoseconds": base_ns, "traceEvents": events}).to_string();
    reduce(read(file.as_bytes(), Reading::default()).unwrap())
}

fn with_trace(profile: &Profile) -> Analysis {
    let mut analysis = analyze(profile);
    analysis.traced = Some(traced(profile, trace(PID, WALL_NS)));
    analysis
}

#[test]
fn the_window_that_a_recording_keeps_is_known_of_its_process() {
    let profiled = |kept: Kept| {
        let mut builder = Builder::trainer();
        builder.run.started_wall_ns = WALL_NS;
        builder.ticks(0, 10, S::Running, &[user("main", 41)]);
        builder.sideband.conditions.push(Condition {
            process: ProcessId(0),
            name: facts::TORCH_TRACE.to_owned(),
            value: kept.text(),
        });
        builder.profile().profiled
    };
    let kept = Kept::new(Ok(trace(PID, WALL_NS)));
    assert_eq!(profiled(kept), [(ProcessId(0), 0, 100_000_000)]);
    assert!(profiled(Kept::new(Err("it ended".to_owned()))).is_empty());
}

#[test]
fn idle_time_of_the_device_has_the_lines_of_the_samples() {
    let profile = recording();
    let traced = traced(&profile, trace(PID, WALL_NS));
    let joined = traced.joined.unwrap();
    assert_eq!(joined.window, (0, 100_000_000));
    // 0 to 1.5 ms before the first launch had ended, and 20 to 60 ms.
    assert_eq!(joined.idle_ns, 41_500_000);
    let rows = sampled_idle(&profile, &joined);
    let at: Vec<(&str, Option<u32>, f64)> = rows
        .iter()
        .map(|row| {
            (
                row.file.as_deref().unwrap(),
                row.line,
                (row.idle_s * 1e6).round(),
            )
        })
        .collect();
    let expected = [
        ("/home/u/train.py", Some(41), 21_500.0),
        ("/home/u/data.py", Some(12), 20_000.0),
    ];
    assert_eq!(at, expected);
    assert!(rows.iter().all(|row| !row.phase.is_empty()), "{rows:?}");
    let sum: f64 = rows.iter().map(|row| row.share).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{rows:?}");
}

#[test]
fn operators_have_the_calls_of_the_trace() {
    let profile = recording();
    let analysis = with_trace(&profile);
    let report: Value = serde_json::from_str(&render_json(&profile, &analysis).unwrap()).unwrap();
    assert_eq!(report["ops"][0]["name"], "aten::add");
    assert_eq!(report["ops"][0]["calls_per_step"], 3.0);
    assert_eq!(report["traced"]["process"], 0);
    assert_eq!(report["traced"]["steps"]["count"], 2);
    let options = TextOptions {
        by: Some(By::Operator),
        ..TextOptions::default()
    };
    let text = render_summary(&profile, &analysis, options);
    assert!(
        text.contains("calls/step operator (times sampled, calls traced)"),
        "{text}"
    );
    assert!(text.contains("Disturbed"), "{text}");
    let text = render_summary(&profile, &analysis, TextOptions::default());
    assert!(
        text.contains("not yet launched: samples of the host"),
        "{text}"
    );

    // Without a trace, or with one of something else, calls are not known.
    let alone = analyze(&profile);
    let report: Value = serde_json::from_str(&render_json(&profile, &alone).unwrap()).unwrap();
    assert_eq!(report["ops"][0]["calls_per_step"], Value::Null);
    assert!(report.get("traced").is_none());
}

#[test]
fn another_process_or_time_is_not_joined() {
    let profile = recording();
    let why = |pid, base_ns| traced(&profile, trace(pid, base_ns)).joined.unwrap_err();
    assert_eq!(why(77, WALL_NS), NotJoined::OtherProcess);
    assert_eq!(why(PID, WALL_NS + 3_600_000_000_000), NotJoined::OtherTime);
    assert_eq!(why(PID, WALL_NS - 3_600_000_000_000), NotJoined::OtherTime);
    let mut analysis = analyze(&profile);
    analysis.traced = Some(traced(&profile, trace(77, WALL_NS)));
    let text = render_summary(&profile, &analysis, TextOptions::default());
    assert!(text.contains("Not joined"), "{text}");
    assert!(!text.contains("calls/step operator"), "{text}");
}
