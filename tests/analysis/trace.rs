//! Traces of torch.profiler, made by hand after real ones of torch 2.0 to 2.15: what is counted,
//! and what a damaged file costs.

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::io::Write;
use torchspy::analysis::scaling::mean::Estimate;
use torchspy::report::tables::trace::TABLES;
use torchspy::report::tables::trace::collectives::collectives;
use torchspy::report::tables::trace::devices::{devices, idle};
use torchspy::report::tables::trace::kernels::{copies, kernels};
use torchspy::report::tables::trace::operators::{TracedOperator, operators, shapes};
use torchspy::report::text::trace::render_trace;
use torchspy::report::text::{Detail, TextOptions};
use torchspy::trace::advice::{Advice, advice};
use torchspy::trace::kept::Kept;
use torchspy::trace::{Reading, StepMark, TraceError, TraceSummary, read, reduce};

const PID: u64 = 4242;

/// An event on a thread of the host; times in us.
fn host(cat: &str, name: &str, ts: f64, dur: f64, args: Value) -> Value {
    json!({"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": PID, "ts": ts, "dur": dur, "args": args})
}

fn op(name: &str, ts: f64, dur: f64) -> Value {
    host(
        "cpu_op",
        name,
        ts,
        dur,
        json!({"External id": 1, "Ev Idx": 0}),
    )
}

fn shaped(name: &str, ts: f64, dur: f64, dims: Value, types: Value) -> Value {
    host(
        "cpu_op",
        name,
        ts,
        dur,
        json!({"Input Dims": dims, "Input type": types}),
    )
}

fn step(number: u64, ts: f64, dur: f64) -> Value {
    host(
        "user_annotation",
        &format!("ProfilerStep#{number}"),
        ts,
        dur,
        json!({}),
    )
}

fn launch(correlation: u64, ts: f64, dur: f64) -> Value {
    host(
        "cuda_runtime",
        "cudaLaunchKernel",
        ts,
        dur,
        json!({"cbid": 211, "correlation": correlation}),
    )
}

fn kernel(name: &str, correlation: u64, stream: u64, ts: f64, dur: f64, more: Value) -> Value {
    let mut args = json!({
        "device": 0, "context": 1, "stream": stream, "correlation": correlation,
        "grid": [8, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 2
    });
    for (key, value) in more.as_object().unwrap() {
        args[key] = value.clone();
    }
    json!({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args})
}

/// A file as Kineto lays it out.
fn file(events: &[Value]) -> Vec<u8> {
    let events: Vec<String> = events.iter().map(Value::to_string).collect();
    format!(
        "{{\n  \"schemaVersion\": 1,\n  \"deviceProperties\": [{{\"id\": 0, \"name\": \"NVIDIA A100\"}}],\n  \
         \"record_shapes\": 1,\n  \"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": 1, \"world_size\": 2}},\n  \
         \"baseTimeNanoseconds\": 1790857026000000000,\n  \"traceEvents\": [\n  {}\n  ],\n  \"traceName\": \"t.json\"\n}}\n",
        events.join(",\n  ")
    )
    .into_bytes()
}

fn reduced(bytes: &[u8]) -> TraceSummary {
    reduce(read(bytes, Reading::default()).unwrap())
}

fn find<'r>(rows: &'r [TracedOperator], name: &str) -> &'r TracedOperator {
    rows.iter().find(|row| row.name == name).unwrap()
}

/// Two steps on one device. The second product is launched late, and a collective overlaps with it.
fn cuda() -> Vec<Value> {
    let all_reduce = json!({
        "Collective name": "allreduce", "In msg nelems": 1_000_000, "Out msg nelems": 1_000_000,
        "Group size": 4, "dtype": "BFloat16", "Process Group Description": "default_pg"
    });
    let mut events = Vec::new();
    for number in 0..2 {
        let t = 1000.0 * number as f64 + 1000.0;
        let id = 10 * number;
        let dims = json!([[64, 30], [30, 128]]);
        let types = json!(["c10::BFloat16", "c10::BFloat16"]);
        events.extend([
            step(number, t, 900.0),
            shaped("aten::matmul", t + 10.0, 60.0, dims.clone(), types.clone()),
            shaped("aten::mm", t + 20.0, 40.0, dims, types),
            launch(id + 1, t + 30.0, 20.0),
            kernel("gemm", id + 1, 7, t + 55.0, 145.0, json!({})),
            // The device is idle from 200 to 425; the call ends at 420.
            op("aten::relu", t + 350.0, 80.0),
            launch(id + 2, t + 400.0, 20.0),
            kernel("relu", id + 2, 7, t + 425.0, 5.0, json!({})),
            host("cpu_op", "record_param_comms", t + 440.0, 40.0, all_reduce.clone()),
            launch(id + 3, t + 450.0, 10.0),
            kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                id + 3, 20, t + 470.0, 200.0, all_reduce.clone()),
            launch(id + 4, t + 480.0, 10.0),
            kernel("gemm", id + 4, 7, t + 570.0, 200.0, json!({"grid": [16, 1, 1]})),
            host("cuda_runtime", "cudaMemcpyAsync", t + 500.0, 10.0, json!({"correlation": id + 5})),
            json!({"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0, "tid": 7,
                "ts": t + 780.0, "dur": 20.0, "args": {"device": 0, "stream": 7, "correlation": id + 5,
                "bytes": 500_000, "memory bandwidth (GB/s)": 25.0}}),
            json!({"ph": "s", "id": id + 1, "pid": PID, "tid": PID, "ts": t, "cat": "ac2g", "name": "ac2g"}),
        ]);
    }
    events
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn own_time_is_without_what_an_operator_calls() {
    let events = [
        step(3, 0.0, 100.0),
        op("aten::linear", 10.0, 50.5),
        op("aten::addmm", 20.0, 30.25),
        op("aten::addmm", 51.0, 1.0),
        // Calls itself: its time counts once.
        op("f", 70.0, 20.0),
        op("f", 75.0, 10.0),
        op("g", 86.0, 1.0),
        // Two overloads, one call.
        op("aten::sum", 92.0, 6.0),
        op("aten::sum", 93.0, 4.0),
        op("aten::fill_", 94.0, 1.0),
        step(4, 100.0, 50.0),
        op("aten::addmm", 110.0, 5.0),
        op("g", 120.0, 1.0),
        op("g", 122.0, 1.0),
        op("g", 124.0, 1.0),
        op("g", 126.0, 1.0),
        // Outside of every step.
        op("aten::addmm", 500.0, 5.0),
    ];
    let trace = reduced(&file(&events));
    let rows = operators(&trace);
    let linear = find(&rows, "aten::linear");
    assert!(
        near(linear.self_s, 19.25e-6) && near(linear.total_s, 50.5e-6),
        "{linear:?}"
    );
    let addmm = find(&rows, "aten::addmm");
    assert_eq!(
        (addmm.calls, addmm.calls_per_step),
        (4, Some(1.5)),
        "{addmm:?}"
    );
    // What is outside of the steps is no part of their times.
    assert!(near(addmm.total_s, 41.25e-6), "{addmm:?}");
    assert_eq!(addmm.calls_in_steps, Some(3));
    assert!(
        near(addmm.self_in_steps_s.unwrap(), 36.25e-6)
            && near(addmm.total_in_steps_s.unwrap(), 36.25e-6),
        "{addmm:?}"
    );
    let f = find(&rows, "f");
    assert!(
        f.calls == 2 && near(f.self_s, 19e-6) && near(f.total_s, 20e-6),
        "{f:?}"
    );
    let sum = find(&rows, "aten::sum");
    assert!(
        sum.calls == 1 && near(sum.self_s, 5e-6) && near(sum.total_s, 6e-6),
        "{sum:?}"
    );
    assert!(rows.iter().all(|row| !row.name.starts_with("ProfilerStep")));
    assert_eq!(trace.head.base_ns, 1_790_857_026_000_000_000);
    assert_eq!((trace.head.pid, trace.head.rank), (Some(PID), Some(1)));
}

#[test]
fn threads_nest_alone_and_the_order_in_the_file_does_not_matter() {
    let mut other = op("aten::mm", 12.0, 10.0);
    other["tid"] = json!(PID + 1);
    let mut events = vec![
        op("aten::linear", 10.0, 50.0),
        other,
        op("aten::mm", 20.0, 5.0),
    ];
    let forwards = operators(&reduced(&file(&events)));
    events.reverse();
    let backwards = operators(&reduced(&file(&events)));
    for rows in [forwards, backwards] {
        assert!(near(find(&rows, "aten::linear").self_s, 45e-6), "{rows:?}");
        assert!(near(find(&rows, "aten::mm").self_s, 15e-6), "{rows:?}");
    }
}

#[test]
fn a_step_that_the_end_cuts_is_left_out() {
    let mut events = Vec::new();
    for number in 0..4 {
        let t = 100.0 * number as f64;
        events.push(step(number, t, 100.0));
        let operators = if number == 3 { 1 } else { 6 };
        events.extend((0..operators).map(|index| op("aten::add", t + 5.0 * index as f64, 1.0)));
    }
    let trace = reduced(&file(&events));
    assert_eq!((trace.steps.whole.len(), trace.steps.cut), (3, true));
    assert_eq!(
        find(&operators(&trace), "aten::add").calls_per_step,
        Some(6.0)
    );
}

#[test]
fn without_profiler_steps_the_optimizer_marks_them() {
    let mut events = Vec::new();
    for number in 0..4 {
        let t = 100.0 * number as f64;
        let name = "Optimizer.step#AdamW.step";
        events.push(host("user_annotation", name, t, 10.0, json!({})));
        events.push(op("aten::add", t + 20.0, 1.0));
        events.push(op("aten::add", t + 5.0, 1.0));
    }
    let trace = reduced(&file(&events));
    assert_eq!(
        (trace.steps.whole.len(), trace.steps.mark),
        (3, StepMark::Optimizer)
    );
    assert_eq!(
        find(&operators(&trace), "aten::add").calls_per_step,
        Some(2.0)
    );
}

/// Steps of an optimizer: one for each start, us.
fn optimizer(class: &str, starts: &[f64], dur: f64) -> Vec<Value> {
    let name = format!("Optimizer.step#{class}.step");
    let starts = starts.iter();
    starts
        .map(|&ts| host("user_annotation", &name, ts, dur, json!({})))
        .collect()
}

fn steps_ns(events: &[Value]) -> Vec<u64> {
    let trace = reduced(&file(events));
    let steps = trace.steps.whole.iter();
    steps.map(|(start, end)| end - start).collect()
}

#[test]
fn a_step_of_two_optimizers_is_one() {
    let mut events = optimizer("Muon", &[50.0, 150.0, 250.0, 350.0], 10.0);
    events.extend(optimizer("AdamW", &[70.0, 170.0, 270.0], 10.0));
    assert_eq!(steps_ns(&events), [100_000; 3]);
    // As often as each other.
    events.extend(optimizer("AdamW", &[370.0], 10.0));
    assert_eq!(steps_ns(&events), [100_000; 3]);
    // One that steps rarely.
    events.extend(optimizer("SGD", &[90.0, 290.0], 5.0));
    assert_eq!(steps_ns(&events), [100_000; 3]);
    // Another process in the same file.
    let mut other = optimizer("AdamW", &[72.0, 172.0, 272.0], 10.0);
    for event in &mut other {
        (event["pid"], event["tid"]) = (json!(PID + 1), json!(PID + 1));
    }
    events.extend(other);
    assert_eq!(steps_ns(&events), [100_000; 3]);
    events.reverse();
    assert_eq!(steps_ns(&events), [100_000; 3]);
}

#[test]
fn an_optimizer_within_another_makes_no_steps() {
    let mut events = optimizer("ZeroRedundancyOptimizer", &[0.0, 100.0, 200.0], 20.0);
    let starts = [1.0, 5.0, 9.0, 101.0, 105.0, 109.0, 201.0, 205.0, 209.0];
    events.extend(optimizer("Adam", &starts, 2.0));
    assert_eq!(steps_ns(&events), [100_000; 2]);
    events.reverse();
    assert_eq!(steps_ns(&events), [100_000; 2]);
}

#[test]
fn an_optimizer_of_each_parameter_marks_no_steps() {
    let name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad";
    let starts = [0.0, 10.0, 20.0, 100.0, 110.0, 120.0];
    let nodes = starts.iter().map(|&ts| op(name, ts, 8.0));
    let mut events: Vec<Value> = nodes.collect();
    let within: Vec<f64> = starts.iter().map(|ts| ts + 2.0).collect();
    events.extend(optimizer("AdamW", &within, 4.0));
    let trace = reduced(&file(&events));
    assert_eq!(
        (trace.steps.whole.len(), trace.steps.mark),
        (0, StepMark::None)
    );
    // LBFGS runs the backward pass within its step.
    let mut events = optimizer("LBFGS", &[0.0, 100.0, 200.0], 50.0);
    events.extend([op(name, 10.0, 8.0), op(name, 110.0, 8.0)]);
    assert_eq!(steps_ns(&events), [100_000; 2]);
}

#[test]
fn a_call_within_one_with_other_shapes_counts_once_in_its_name() {
    let copy =
        |ts, dur, size: u64| shaped("aten::copy_", ts, dur, json!([[size]]), json!(["float"]));
    let events = [
        copy(10.0, 30.0, 8),
        op("aten::empty", 11.0, 1.0),
        copy(15.0, 20.0, 4),
        copy(50.0, 5.0, 4),
    ];
    let trace = reduced(&file(&events));
    let rows = operators(&trace);
    let by_name = find(&rows, "aten::copy_");
    assert_eq!(by_name.calls, 3);
    assert!(near(by_name.total_s, 35e-6), "{by_name:?}");
    assert!(near(by_name.self_s, 34e-6), "{by_name:?}");
    assert_eq!(by_name.total_in_steps_s, None);
    let of = |shape: &str| {
        let rows = shapes(&trace);
        let row = rows.iter().find(|row| row.shapes.as_deref() == Some(shape));
        row.unwrap().total_s
    };
    assert!(near(of("[[8]]"), 30e-6) && near(of("[[4]]"), 25e-6));
}

#[test]
fn tables_of_text_are_of_whole_steps() {
    // What follows two steps takes ten times as long.
    let mut events = Vec::new();
    for (number, long) in [(0_u32, 1.0), (1, 1.0), (2, 10.0)] {
        let (t, id) = (1000.0 * f64::from(number), u64::from(number) + 1);
        if number < 2 {
            events.push(step(id, t, 1000.0));
        }
        events.push(op("aten::mm", t + 10.0, 20.0 * long));
        events.push(launch(id, t + 12.0, 5.0));
        events.push(kernel("gemm", id, 7, t + 100.0, 30.0 * long, json!({})));
    }
    let trace = reduced(&file(&events));
    let rows = operators(&trace);
    let mm = find(&rows, "aten::mm");
    assert!(near(mm.total_s, 240e-6), "{mm:?}");
    assert!(near(mm.total_in_steps_s.unwrap(), 40e-6), "{mm:?}");
    assert!(near(mm.device_s.unwrap(), 360e-6), "{mm:?}");
    assert!(near(mm.device_in_steps_s.unwrap(), 60e-6), "{mm:?}");
    let gemm = &kernels(&trace)[0];
    assert_eq!((gemm.calls, gemm.calls_in_steps), (3, Some(2)));
    assert!(near(gemm.total_in_steps_s.unwrap(), 60e-6), "{gemm:?}");
    let text = all_of(&trace);
    assert!(text.contains("OPERATORS in whole steps"), "{text}");
    let row = text.lines().find(|line| line.ends_with("aten::mm"));
    let words: Vec<&str> = row.unwrap().split_whitespace().collect();
    // Calls; self, total and device time in ms.
    assert_eq!(words[0], "2", "{words:?}");
    assert_eq!(words[2..], ["0.03", "0.04", "0.06", "aten::mm"]);
}

/// Four steps: `aten::mm` of three shapes in two threads, `aten::relu` in one step, `aten::neg` in
/// none.
fn varied() -> Vec<Value> {
    let mut events = Vec::new();
    for (number, long) in [(0_u32, 10.0), (1, 20.0), (2, 10.0), (3, 20.0)] {
        let t = 1000.0 * f64::from(number);
        events.push(step(number.into(), t, 1000.0));
        let mm =
            |ts, dur, rows: u64| shaped("aten::mm", ts, dur, json!([[rows, 16]]), json!(["float"]));
        events.push(mm(t + 10.0, long, 8));
        // What one shape takes more in a step, the other takes less.
        events.push(mm(t + 100.0, 40.0 - long, 4));
        let mut other = mm(t + 10.0, long, 2);
        other["tid"] = json!(PID + 1);
        events.push(other);
        // Another thread makes up for what the first shape takes more.
        let mut other = mm(t + 100.0, 30.0 - long, 8);
        other["tid"] = json!(PID + 1);
        events.push(other);
    }
    events.push(op("aten::relu", 500.0, 8.0));
    events.push(op("aten::neg", 5000.0, 8.0));
    events
}

#[test]
fn times_of_a_step_have_intervals_by_how_much_steps_differ() {
    let trace = reduced(&file(&varied()));
    assert_eq!(trace.steps.whole.len(), 4);
    // Student's t of 3 degrees of freedom.
    let half = |sd_us: f64| 3.18245 * sd_us / 2.0 / 1e3;
    let is_near = |it: &Estimate, value_us: f64, sd_us: f64| {
        let (value, half) = (value_us / 1e3, half(sd_us));
        let low = (value - half).max(0.0);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-5;
        near(it.value, value) && near(it.low.unwrap(), low) && near(it.high.unwrap(), value + half)
    };
    let rows = shapes(&trace);
    let of = |shape: &str| {
        let row = rows.iter().find(|row| row.shapes.as_deref() == Some(shape));
        row.unwrap().self_ms_per_step.unwrap()
    };
    // Of 10, 20, 10, 20: 100 / 3 by the variance.
    let sd_us = (100.0_f64 / 3.0).sqrt();
    assert!(is_near(&of("[[4,16]]"), 25.0, sd_us), "{rows:?}");
    assert!(is_near(&of("[[2,16]]"), 15.0, sd_us), "{rows:?}");
    // Both threads together are equally long.
    assert!(is_near(&of("[[8,16]]"), 30.0, 0.0), "{rows:?}");
    // 10 + 30 + 10 + 20 and 20 + 20 + 20 + 10: the sum of all shapes never differs.
    let rows = operators(&trace);
    let mm = find(&rows, "aten::mm");
    for it in [mm.self_ms_per_step, mm.total_ms_per_step] {
        assert!(is_near(&it.unwrap(), 70.0, 0.0), "{mm:?}");
    }
    // 8, 0, 0, 0: the interval does not go below 0.
    let relu = find(&rows, "aten::relu").total_ms_per_step.unwrap();
    assert!(is_near(&relu, 2.0, 4.0), "{relu:?}");
    assert_eq!(relu.low, Some(0.0));
    let neg = find(&rows, "aten::neg").self_ms_per_step.unwrap();
    assert!(is_near(&neg, 0.0, 0.0), "{neg:?}");
}

#[test]
fn without_several_steps_there_is_no_interval() {
    let events = [step(0, 0.0, 100.0), op("aten::mm", 10.0, 20.0)];
    let rows = operators(&reduced(&file(&events)));
    let mm = find(&rows, "aten::mm").self_ms_per_step.unwrap();
    assert!(near(mm.value, 0.02), "{mm:?}");
    assert_eq!((mm.low, mm.high), (None, None));
    let rows = operators(&reduced(&file(&events[1..])));
    assert_eq!(find(&rows, "aten::mm").self_ms_per_step, None);
}

#[test]
fn intervals_are_kept_in_a_recording() {
    let trace = reduced(&file(&varied()));
    let text = Kept::new(Ok(trace.clone())).text();
    let again = Kept::parse(&text).unwrap().result.unwrap();
    assert_eq!(again.spreads, trace.spreads);
    assert!(!trace.spreads.unwrap().by_name.is_empty());
    // An earlier version kept sums alone.
    let mut text: Value = serde_json::from_str(&text).unwrap();
    let kept = text["result"]["Ok"].as_object_mut().unwrap();
    assert!(kept.remove("spreads").is_some());
    let older = Kept::parse(&text.to_string()).unwrap().result.unwrap();
    let rows = operators(&older);
    let mm = find(&rows, "aten::mm").self_ms_per_step.unwrap();
    assert!(near(mm.value, 0.07), "{mm:?}");
    assert_eq!((mm.low, mm.high), (None, None));
}

#[test]
fn tables_of_data_have_intervals() {
    let trace = reduced(&file(&varied()));
    for (name, make) in &TABLES[..2] {
        let sheet = make(&trace);
        for key in ["self_ms_per_step", "total_ms_per_step"] {
            let of = |end: &str| {
                let wanted = format!("{key}{end}");
                let column = sheet.columns.iter().position(|(key, _)| *key == wanted);
                match sheet.rows[0][column.unwrap()] {
                    torchspy::report::table::Value::Number(number) => number,
                    ref other => panic!("{name} {wanted}: {other:?}"),
                }
            };
            assert!(
                of("_low") <= of("") && of("") <= of("_high"),
                "{name} {key}"
            );
        }
    }
}

#[test]
fn shapes_and_types_are_told_apart() {
    let mm = |ts, rows: u64, kind: &str| {
        shaped(
            "aten::mm",
            ts,
            2.0,
            json!([[rows, 16], [16, 4]]),
            json!([kind, kind]),
        )
    };
    let events = [
        mm(0.0, 8, "float"),
        mm(10.0, 8, "float"),
        mm(20.0, 8, "double"),
        mm(30.0, 2, "float"),
    ];
    let rows = shapes(&reduced(&file(&events)));
    let calls = |shape: &str, kind: &str| {
        let is_asked = |row: &&TracedOperator| {
            row.shapes.as_deref() == Some(shape) && row.types.as_deref().unwrap().contains(kind)
        };
        rows.iter().find(is_asked).unwrap().calls
    };
    assert_eq!(rows.len(), 3);
    assert_eq!(calls("[[8,16],[16,4]]", "float"), 2);
    assert_eq!(calls("[[8,16],[16,4]]", "double"), 1);
    assert_eq!(calls("[[2,16],[16,4]]", "float"), 1);
}

#[test]
fn kernels_have_their_launches() {
    let trace = reduced(&file(&cuda()));
    let rows = kernels(&trace);
    let gemm = rows.iter().find(|row| row.name == "gemm").unwrap();
    assert_eq!(
        (gemm.calls, gemm.calls_per_step, gemm.grids),
        (4, Some(2.0), 2)
    );
    assert!(near(gemm.total_s, 690e-6), "{gemm:?}");
    assert_eq!(gemm.streams, [7]);
    assert_eq!(gemm.launched_by.as_deref(), Some("aten::mm"));
    let relu = rows.iter().find(|row| row.name == "relu").unwrap();
    assert_eq!(relu.launched_by.as_deref(), Some("aten::relu"));
    assert_eq!(relu.grid.as_deref(), Some("[8,1,1]"));
    let by_operator = operators(&trace);
    assert!(near(
        find(&by_operator, "aten::mm").device_s.unwrap(),
        290e-6
    ));
    assert_eq!(find(&by_operator, "aten::matmul").device_s, Some(0.0));

    let copies = copies(&trace);
    assert_eq!(copies.len(), 1);
    assert_eq!(
        (copies[0].bytes, copies[0].gb_per_s),
        (Some(1_000_000), Some(25.0))
    );
}

#[test]
fn collectives_have_bytes_and_bandwidth() {
    let rows = collectives(&reduced(&file(&cuda())));
    let [all_reduce] = rows.as_slice() else {
        panic!("{rows:?}");
    };
    assert_eq!((all_reduce.calls, all_reduce.bytes), (2, Some(2_000_000)));
    // 2 MB in 200 us; of four ranks each link carries 3/2 of it.
    assert!(
        near(all_reduce.algorithm_gb_per_s.unwrap(), 10.0),
        "{all_reduce:?}"
    );
    assert!(
        near(all_reduce.bus_gb_per_s.unwrap(), 15.0),
        "{all_reduce:?}"
    );

    // gloo's are spans of the host with the shapes of their tensors: 4 kB in 1 ms.
    let args = json!({"Input Dims": [[1000]], "Input type": ["float"]});
    let gloo = host("user_annotation", "gloo:all_reduce", 5.0, 1000.0, args);
    let rows = collectives(&reduced(&file(&[gloo])));
    assert_eq!((rows[0].calls, rows[0].bytes), (1, Some(4000)));
    assert!(near(rows[0].algorithm_gb_per_s.unwrap(), 0.004), "{rows:?}");
    assert_eq!(rows[0].bus_gb_per_s, None);

    // Kernels of torch before 2.4 have no arguments: those of the call around the launch count.
    let mut older = cuda();
    for event in &mut older {
        if event["name"].as_str().unwrap().starts_with("nccl") {
            event["args"]
                .as_object_mut()
                .unwrap()
                .remove("Collective name");
        }
    }
    assert_eq!(collectives(&reduced(&file(&older))).len(), 1);
}

#[test]
fn kernels_of_a_graph_are_not_compared_with_its_launch() {
    let mut events = vec![step(0, 0.0, 1000.0), launch(1, 10.0, 100.0)];
    for number in 0..8 {
        let ts = 120.0 + 20.0 * f64::from(number);
        events.push(kernel("gemm", 1, 7, ts, 10.0, json!({})));
    }
    events.extend([
        launch(2, 500.0, 20.0),
        kernel("relu", 2, 7, 530.0, 5.0, json!({})),
    ]);
    let trace = reduced(&file(&events));
    let device = &devices(&trace)[0];
    assert_eq!(
        (
            device.kernels,
            device.kernels_with_call,
            device.shorter_than_call
        ),
        (9, 1, 1)
    );
    let text = all_of(&trace);
    assert!(text.contains("100.0 % of the 1 compared"), "{text}");
}

#[test]
fn communication_is_not_of_nccl_alone() {
    let of = |name: &str| {
        let events = [
            step(0, 0.0, 100.0),
            kernel(name, 1, 7, 10.0, 10.0, json!({})),
        ];
        let trace = reduced(&file(&events));
        let device = &devices(&trace)[0];
        let text = all_of(&trace);
        assert_eq!(
            text.contains("no kernel is known as such; 2 ranks"),
            device.communication_s == 0.0,
            "{text}"
        );
        device.communication_s > 0.0
    };
    for name in [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)",
        "void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*)",
        "allToAllV(void*, void*, long*, unsigned long)",
        "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, void*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
    ] {
        assert!(of(name), "{name}");
    }
    for name in [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(float)",
        "void gemm<nvshmem_tile>(float*)",
    ] {
        assert!(!of(name), "{name}");
    }
}

#[test]
fn a_device_is_busy_overlapped_or_idle() {
    let trace = reduced(&file(&cuda()));
    let rows = devices(&trace);
    let [device] = rows.as_slice() else {
        panic!("{rows:?}");
    };
    // From the start of the first step to the end of the second.
    assert!(near(device.window_s, 1900e-6), "{device:?}");
    assert!(near(device.compute_s, 2.0 * 350e-6), "{device:?}");
    assert!(near(device.communication_s, 2.0 * 200e-6), "{device:?}");
    assert!(near(device.overlap_s, 2.0 * 100e-6), "{device:?}");
    assert!(near(device.copies_s, 2.0 * 20e-6), "{device:?}");
    let busy = device.compute_s + device.communication_s - device.overlap_s + device.copies_s;
    assert!(near(device.idle_s, device.window_s - busy), "{device:?}");
    assert_eq!((device.kernels, device.kernels_per_step), (8, Some(4.0)));
    assert_eq!(device.shorter_than_call, 2);
    // First product: 25 us after its call began; relu 25; the collective 20; the last one was
    // launched while the device was busy.
    assert_eq!(
        (device.launch_latencies, device.launch_latency_us),
        (6, Some(25.0))
    );

    // Before relu: 200 to 350 nothing, 50 in relu, 20 in the call. Before the collective: 10
    // outside (430 to 440), 10 in record_param_comms, 10 in the call.
    let rows = idle(&trace);
    let of = |name: Option<&str>| {
        rows.iter()
            .find(|row| row.name.as_deref() == name)
            .unwrap()
            .idle_s
    };
    assert!(near(of(Some("aten::relu")), 2.0 * 50e-6), "{rows:?}");
    assert!(
        near(of(Some("record_param_comms")), 2.0 * 10e-6),
        "{rows:?}"
    );
    let sum: f64 = rows.iter().map(|row| row.idle_s).sum();
    assert!(near(sum, device.idle_not_launched_s), "{rows:?}");
    assert!(device.idle_not_launched_s + device.idle_launched_s <= device.idle_s + 1e-9);
}

#[test]
fn slow_shapes_are_named_with_their_time() {
    let found = advice(&reduced(&file(&cuda())));
    let unaligned = found.iter().find_map(|advice| match advice {
        Advice::Unaligned(slow) => Some(*slow),
        _ => None,
    });
    // The inner dimension is 30. The operator around it launches nothing itself.
    let unaligned = unaligned.unwrap();
    assert_eq!(
        (unaligned.calls, unaligned.shapes, unaligned.device_ns),
        (2, 1, 290_000)
    );
    let is_short = |advice: &&Advice| matches!(advice, Advice::ShortKernels { short: 2, .. });
    assert_eq!(found.iter().filter(is_short).count(), 1, "{found:?}");

    let mut aligned = cuda();
    for event in &mut aligned {
        if event["args"]["Input Dims"].is_array() {
            event["args"]["Input Dims"] = json!([[1, 32], [32, 128]]);
        }
    }
    // One row is no multiple of 8 either: that time is stated once.
    let found = advice(&reduced(&file(&aligned)));
    let of_shapes: Vec<&Advice> = found
        .iter()
        .filter(|advice| matches!(advice, Advice::OneRow(_) | Advice::Unaligned(_)))
        .collect();
    assert!(matches!(of_shapes[..], [Advice::OneRow(_)]), "{found:?}");
    for event in &mut aligned {
        if event["args"]["Input Dims"].is_array() {
            event["args"]["Input Dims"] = json!([[64, 32], [32, 128]]);
        }
    }
    let found = advice(&reduced(&file(&aligned)));
    let is_shape = |advice: &Advice| matches!(advice, Advice::OneRow(_) | Advice::Unaligned(_));
    assert!(!found.iter().any(is_shape), "{found:?}");
}

/// Everything that is made of a trace, for what must not panic.
fn all_of(trace: &TraceSummary) -> String {
    for (_, make) in TABLES {
        make(trace);
    }
    let options = TextOptions {
        detail: Detail::Full,
        ..TextOptions::default()
    };
    render_trace(trace, options)
}

#[test]
fn a_file_that_is_cut_anywhere_is_read_as_far_as_it_goes() {
    let whole = file(&cuda());
    let events = |trace: &TraceSummary| -> u64 {
        let on_devices = kernels(trace).into_iter().chain(copies(trace));
        let host: u64 = trace.host.iter().map(|times| times.calls).sum();
        host + on_devices.map(|row| row.calls).sum::<u64>()
    };
    let all = events(&reduced(&whole));
    let mut last = 0;
    for length in 0..whole.len() {
        let cut = &whole[..length];
        let trace = match read(cut, Reading::default()) {
            Ok(trace) => reduce(trace),
            Err(TraceError::Empty | TraceError::NoEvents) => {
                assert_eq!(last, 0, "{length}");
                continue;
            }
            Err(other) => panic!("{length}: {other}"),
        };
        let found = events(&trace);
        assert!(found >= last, "{length}: {found} after {last}");
        last = found;
        // The last byte is a line feed.
        assert_eq!(
            trace.losses.cut.is_some(),
            length < whole.len() - 1,
            "{length}"
        );
        if length % 97 == 0 {
            assert!(all_of(&trace).contains("WARNING"), "{length}");
        }
    }
    assert_eq!(last, all);
}

#[test]
fn compressed_files_are_read_and_may_be_cut_too() {
    let whole = file(&cuda());
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&whole).unwrap();
    let packed = encoder.finish().unwrap();
    let calls = |trace: &TraceSummary| trace.host.iter().map(|times| times.calls).sum::<u64>();
    let all = calls(&reduced(&whole));
    assert_eq!(calls(&reduced(&packed)), all);
    let mut found = 0;
    for length in 2..packed.len() {
        if let Ok(trace) = read(&packed[..length], Reading::default()) {
            let is_cut = trace.losses.cut.is_some();
            let trace = reduce(trace);
            assert!(calls(&trace) == all || is_cut, "{length}");
            found = found.max(calls(&trace));
        }
    }
    assert!(found > 0);
}

#[test]
fn what_is_no_trace_is_refused() {
    let refused = |bytes: &[u8]| read(bytes, Reading::default()).unwrap_err();
    assert!(matches!(refused(b""), TraceError::Empty));
    assert!(matches!(
        refused(b"  \n"),
        TraceError::Empty | TraceError::NoEvents
    ));
    assert!(matches!(refused(b"TSPY\x01\x02"), TraceError::NotJson));
    assert!(matches!(
        refused(b"{\"traceEvents\": []}"),
        TraceError::NoEvents
    ));
    assert!(matches!(refused(b"[1, 2, 3]"), TraceError::NoEvents));
    assert!(matches!(refused(b"{\"a\": 1, b: 2}"), TraceError::NotJson));
    // A trace of something else.
    let other =
        br#"[{"ph": "X", "name": "f", "cat": "function", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]"#;
    assert!(matches!(refused(other), TraceError::NoEvents));
    // Events without an object around them.
    let bare = Value::Array(vec![op("aten::mm", 1.0, 2.0)]).to_string();
    assert_eq!(operators(&reduced(bare.as_bytes()))[0].calls, 1);
}

#[test]
fn a_damaged_event_costs_itself_alone() {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let values = [
        "null",
        "true",
        "\"x\"",
        "\"\\ud800\"",
        "[]",
        "{}",
        "-1",
        "1e999",
        "-1e999",
        "1e300",
        "0.0000001",
        "18446744073709551615",
        "18446744073709551616",
        "999999999999999999999999999999",
        "1.2.3",
        "nan",
        "\"18446744073709551615\"",
        "[[[1]]]",
        "[[-1, 1e99]]",
        &deep,
    ];
    let templates = [
        r#"{"ph": PH, "cat": "cpu_op", "name": NAME, "pid": PID, "tid": TID, "ts": TS, "dur": DUR, "args": {"Input Dims": DIMS, "Input type": TYPES, "Collective name": COLL, "In msg nelems": NELEMS, "dtype": DTYPE, "Group size": GROUP}}"#,
        r#"{"ph": PH, "cat": "kernel", "name": NAME, "pid": PID, "tid": TID, "ts": TS, "dur": DUR, "args": {"correlation": CORR, "stream": STREAM, "device": DEVICE, "grid": GRID, "block": GRID, "bytes": BYTES, "Collective name": COLL, "In msg nelems": NELEMS, "dtype": DTYPE, "Group size": GROUP}}"#,
        r#"{"ph": PH, "cat": CAT, "name": NAME, "pid": PID, "tid": TID, "ts": TS, "dur": DUR, "args": ARGS}"#,
    ];
    let usual = [
        ("PH", "\"X\""),
        ("CAT", "\"cuda_runtime\""),
        ("NAME", "\"e\""),
        ("PID", "1"),
        ("TID", "2"),
        ("TS", "5"),
        ("DUR", "1"),
        ("ARGS", "{\"correlation\": 1}"),
        ("DIMS", "[[1, 2]]"),
        ("TYPES", "[\"float\"]"),
        ("COLL", "\"allreduce\""),
        ("NELEMS", "8"),
        ("DTYPE", "\"Float\""),
        ("GROUP", "2"),
        ("CORR", "1"),
        ("STREAM", "7"),
        ("DEVICE", "0"),
        ("GRID", "[1, 1, 1]"),
        ("BYTES", "8"),
    ];
    let good = op("aten::mm", 1.0, 2.0).to_string();
    let later = op("aten::mm", 11.0, 2.0).to_string();
    for template in templates {
        for (damaged, _) in usual {
            for value in values {
                let mut event = template.to_owned();
                for (name, as_usual) in usual {
                    let value = if name == damaged { value } else { as_usual };
                    event = event.replace(&format!(": {name}"), &format!(": {value}"));
                }
                let file = format!("{{\"traceEvents\": [{good},\n{event},\n{later}]}}");
                let trace = reduced(file.as_bytes());
                let rows = operators(&trace);
                assert_eq!(find(&rows, "aten::mm").calls, 2, "{damaged} {value:.40}");
                all_of(&trace);
            }
        }
    }
}

#[test]
fn sums_of_hostile_numbers_do_not_overflow() {
    let most = 1_u64 << 62;
    let args =
        json!({"Input Dims": [[most], [most], [most]], "Input type": ["bool", "bool", "bool"]});
    let mut gloo = host("user_annotation", "gloo:all_reduce", 5.0, 10.0, args);
    assert_eq!(
        collectives(&reduced(&file(&[gloo.clone()])))[0].bytes,
        Some(3 * most)
    );
    gloo["args"] = json!({
        "Input Dims": [[most], [most], [most], [most]], "Input type": ["bool", "bool", "bool", "bool"]
    });
    assert_eq!(collectives(&reduced(&file(&[gloo])))[0].bytes, None);

    let mut trace = reduced(&file(&cuda()));
    for times in &mut trace.host {
        times.calls = u64::MAX;
    }
    for ns in trace.device_ns.values_mut() {
        *ns = u64::MAX;
    }
    for kernel in &mut trace.kernels {
        kernel.total_ns = u64::MAX;
    }
    for (_, ns) in &mut trace.idle {
        *ns = u64::MAX;
    }
    for span in trace.rows.rows.iter_mut().flat_map(|row| &mut row.spans) {
        span.count = u64::MAX;
    }
    all_of(&trace);
    trace.not_drawn();
}

#[test]
fn a_missing_quote_or_bracket_is_survived() {
    let good = op("aten::mm", 1.0, 2.0).to_string();
    let later = op("aten::mm", 11.0, 2.0).to_string();
    // The quote's string ends with its line; what the event lacks is counted.
    let file = format!(
        "{{\"traceEvents\": [{good},\n{{\"ph\": \"X\", \"name\": \"a\"b\",\n\"ts\": 1}},\n{later}]}}"
    );
    let trace = reduced(file.as_bytes());
    assert_eq!(operators(&trace)[0].calls, 2);
    assert_eq!(trace.losses.damaged, 1);
    // An event that never ends takes the rest of the file.
    let file = format!("{{\"traceEvents\": [{good},\n{{\"ph\": {{,\n{good}]}}");
    let trace = reduced(file.as_bytes());
    assert_eq!(operators(&trace)[0].calls, 1);
    assert!(trace.losses.cut.is_some());
    // One of many megabytes is left out, and what follows is read.
    let long = "x".repeat(3 << 20);
    let file = format!(
        "{{\"traceEvents\": [{good}, {{\"name\": \"{long}\"}}, {later}], \"z\": \"{long}\"}}"
    );
    let trace = reduced(file.as_bytes());
    assert_eq!(operators(&trace)[0].calls, 2);
    assert_eq!(trace.losses.damaged, 2);
}

#[test]
fn memory_is_bounded_and_what_is_beyond_is_counted() {
    let mm = |n: u64| shaped("aten::mm", n as f64, 1.0, json!([[n, 1]]), json!(["float"]));
    let events: Vec<Value> = (0..1000).map(mm).collect();
    let reading = Reading {
        most_events: 600,
        most_text: 100_000,
    };
    let trace = reduce(read(file(&events).as_slice(), reading).unwrap());
    assert_eq!(trace.losses.not_kept, 400);
    let rows = operators(&trace);
    assert_eq!(find(&rows, "aten::mm").calls, 600);
    let by_shape = shapes(&trace);
    assert!(
        by_shape.len() > 50 && by_shape.len() < 400,
        "{}",
        by_shape.len()
    );
    let without = by_shape.iter().find(|row| row.shapes.is_none()).unwrap();
    assert_eq!(without.calls, trace.losses.without_shapes);
    assert!(all_of(&trace).contains("400 events are not counted"));
}

proptest! {
    #[test]
    fn damaged_bytes_never_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut bytes = file(&cuda());
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(trace) = read(bytes.as_slice(), Reading::default()) {
            all_of(&reduce(trace));
        }
    }
}
