//! A trace of torch.profiler in the page and in Markdown.

use crate::page::{column, data, page, trained};
use serde_json::{Value, json};
use torchspy::analysis::traced::traced;
use torchspy::analysis::{Analysis, analyze};
use torchspy::model::profile::Profile;
use torchspy::report::markdown;
use torchspy::report::page::{PageOptions, render};
use torchspy::trace::{Reading, TraceSummary, read, reduce};

/// When torch.profiler began, ns since the start of the recording.
const BEGAN_NS: u64 = 3_000_000_000;
const STEPS: u64 = 3;
const STEP_US: u64 = 200_000;

/// Steps of the training thread of `pid`, with a hundred kernels each on two streams, and one long
/// collective.
fn trace(pid: u64, base_ns: u64, kernels: u64) -> TraceSummary {
    let mut events = Vec::new();
    for step in 0..STEPS {
        let t = step * STEP_US;
        let mut host = |cat: &str, name: &str, at: u64, dur: f64, args: Value| {
            events.push(
                json!({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": pid,
                "ts": t + at, "dur": dur, "args": args}),
            );
        };
        host(
            "user_annotation",
            &format!("ProfilerStep#{step}"),
            0,
            199_000.0,
            json!({}),
        );
        host("cpu_op", "aten::linear", 10, 150_000.0, json!({}));
        for index in 0..kernels {
            let at = 100 + index * 140_000 / kernels;
            let shape =
                json!({"Input Dims": [[8, 16], [16, 32]], "Input type": ["float", "float"]});
            host("cpu_op", "aten::mm", at, 9.5, shape);
            let call = json!({"correlation": 1 + step * kernels + index});
            host("cuda_runtime", "cudaLaunchKernel", at + 2, 5.0, call);
        }
        for index in 0..kernels {
            let at = t + 110 + index * 140_000 / kernels;
            events.push(json!({"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at, "dur": 8.25,
                "args": {"device": 0, "stream": 7, "correlation": 1 + step * kernels + index}}));
        }
        events.push(json!({"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum", "pid": 0, "tid": 20,
            "ts": t + 100_000, "dur": 60_000, "args": {"device": 0, "stream": 20}}));
    }
    let file = json!({"baseTimeNanoseconds": base_ns, "deviceProperties": [{"name": "X100"}], "traceEvents": events});
    reduce(read(file.to_string().as_bytes(), Reading::default()).unwrap())
}

fn wall_ns(profile: &Profile) -> u64 {
    profile.wall_ns(profile.start_ns).unwrap() as u64
}

fn with_trace(profile: &Profile, kernels: u64) -> Analysis {
    let pid = profile.processes[0].info.pid as u64;
    let base_ns = wall_ns(profile) + BEGAN_NS;
    let mut analysis = analyze(profile);
    analysis.traced = Some(traced(profile, trace(pid, base_ns, kernels)));
    analysis
}

fn rendered(profile: &Profile, analysis: &Analysis) -> String {
    let mut bytes = Vec::new();
    render(profile, analysis, &PageOptions::default(), &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// For the check in browsers.
pub(crate) fn traced_page() -> String {
    let profile = trained();
    let analysis = with_trace(&profile, 100);
    rendered(&profile, &analysis)
}

fn signed(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[test]
fn spans_are_on_the_clock_of_the_recording() {
    let (head, bytes) = data(&traced_page());
    let drawn = &head["traced"];
    let window: [f64; 2] = serde_json::from_value(drawn["window_us"].clone()).unwrap();
    assert!((window[0] - 3_000_000.0).abs() < 1.0, "{window:?}");
    assert!(
        (window[1] - window[0] - 599_000.0).abs() < 1.0,
        "{window:?}"
    );
    let rows = drawn["rows"].as_array().unwrap();
    let labels: Vec<&str> = rows
        .iter()
        .map(|row| row["label"].as_str().unwrap())
        .collect();
    assert_eq!(labels[..2], ["stream 7", "stream 20"]);
    // Two streams; steps, linear, mm and launches below each other.
    assert_eq!(rows.len(), 6, "{labels:?}");
    // The second stream has a collective in each step.
    let gaps = column(&head, &bytes, "trace.1.gap");
    let lengths = column(&head, &bytes, "trace.1.length");
    assert_eq!(signed(gaps[0]), (BEGAN_NS + 100_000_000) as i64);
    assert_eq!(lengths, [60_000_000; STEPS as usize]);
    let name = column(&head, &bytes, "trace.1.name")[0] as usize;
    assert_eq!(drawn["names"][name], "ncclDevKernel_AllReduce_Sum");
    let kind = drawn["kind"][name].as_u64().unwrap() as usize;
    assert_eq!(drawn["kinds"][kind], "collective");
    assert_eq!(drawn["notes"], json!([]), "all are drawn one by one");
    let tables: Vec<&str> = head["trace_tables"]
        .as_array()
        .unwrap()
        .iter()
        .map(|table| table["name"].as_str().unwrap())
        .collect();
    for name in [
        "trace_operators",
        "trace_shapes",
        "trace_kernels",
        "trace_devices",
    ] {
        assert!(tables.contains(&name), "{tables:?}");
    }
    assert_eq!(
        head["report"]["traced"],
        Value::Null,
        "the tables are there once"
    );
    let verdict = head["verdict"].to_string();
    assert!(
        verdict.contains("TRACED")
            && verdict.contains("ran from 3.00 to 3.60 s")
            && verdict.contains("disturbed"),
        "{verdict}"
    );
}

#[test]
fn a_large_trace_is_drawn_in_bounds_and_says_what_is_merged() {
    let profile = trained();
    let small = page(&profile).len();
    let analysis = with_trace(&profile, 10_000);
    let page = rendered(&profile, &analysis);
    let (head, bytes) = data(&page);
    let rows = head["traced"]["rows"].as_array().unwrap().len();
    let (mut spans, mut counted) = (0, 0);
    for row in 0..rows {
        let counts = column(&head, &bytes, &format!("trace.{row}.count"));
        spans += counts.len();
        counted += counts.iter().sum::<u64>();
    }
    assert!(spans <= 40_000, "{spans}");
    // Three for each kernel: operator, call and kernel; three for each step besides.
    assert_eq!(counted, STEPS * (3 * 10_000 + 3));
    assert!(
        page.len() - small < 600_000,
        "{} bytes more",
        page.len() - small
    );
    let notes = head["traced"]["notes"].to_string();
    assert!(
        notes.contains("drawn together with their neighbours"),
        "{notes}"
    );
    // The collectives are long, and stay.
    assert_eq!(column(&head, &bytes, "trace.1.count"), [1; STEPS as usize]);
}

#[test]
fn a_trace_of_another_process_has_tables_and_no_place_on_the_axis() {
    let profile = trained();
    let mut analysis = analyze(&profile);
    let base_ns = wall_ns(&profile);
    analysis.traced = Some(traced(&profile, trace(77_777, base_ns, 10)));
    let (head, _) = data(&rendered(&profile, &analysis));
    assert_eq!(head["traced"]["window_us"], Value::Null);
    assert_eq!(head["traced"]["rows"], json!([]));
    assert!(!head["trace_tables"].as_array().unwrap().is_empty());
    assert!(
        head["verdict"]
            .to_string()
            .contains("none of its processes has the trace's pid or rank")
    );
}

#[test]
fn markdown_has_a_short_table_of_the_trace() {
    let profile = trained();
    let mut bytes = Vec::new();
    markdown::render(&profile, &with_trace(&profile, 100), &mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (tables, report) = text.split_once("<details>").unwrap();
    for says in [
        "trace of torch.profiler",
        "3 whole steps",
        "Disturbed",
        "`aten::mm`",
        "`gemm`",
    ] {
        assert!(tables.contains(says), "{says}: {tables}");
    }
    assert!(!report.contains("aten::mm"), "it is there once: {report}");
    assert!(text.lines().count() <= 60 + 18, "{}", text.lines().count());
}
