//! Idle time by phase of steps that are shorter than the driver's windows, against the truth log.

use crate::installed::torch_python;
use crate::node::{Node, Ran};
use gpu_node::scenario::{Scenario, Wait};
use gpu_node::truth::{Kind, Truth};

/// Mean error of the estimates of a run, as a share of the phases' time; half of the intervals
/// where these are wider.
const ALLOWED: f64 = 0.03;
/// Share of the thread's time without a CPU, from which on other programs disturb.
const STARVED: f64 = 0.1;
/// torchspy's phases, and what the script calls them.
const PHASES: [(&str, &str); 4] = [
    ("forward", "forward"),
    ("backward", "backward"),
    ("optimizer", "optimizer"),
    ("user", "other"),
];

/// Times in which a device was busy, ascending, without overlaps, and the busy time until each.
struct Busy(Vec<(u64, u64, u64)>);

impl Busy {
    fn of(truth: &Truth) -> Self {
        let mut spans: Vec<(u64, u64)> = truth
            .of_kind(Kind::Work)
            .map(|(record, _)| (record.start, record.end))
            .collect();
        spans.sort_unstable();
        let mut merged: Vec<(u64, u64, u64)> = Vec::new();
        for (start, end) in spans {
            match merged.last_mut() {
                Some(last) if last.1 >= start => last.1 = last.1.max(end),
                last => {
                    let until = last.map_or(0, |last| last.2 + last.1 - last.0);
                    merged.push((start, end, until));
                }
            }
        }
        Self(merged)
    }

    fn until(&self, at: u64) -> u64 {
        let number = self.0.partition_point(|span| span.0 <= at);
        let last = number.checked_sub(1).map(|last| self.0[last]);
        last.map_or(0, |(start, end, until)| until + at.min(end) - start)
    }
}

/// Share of a phase's time in which the device was idle, by the script's clock, and that time, s.
fn idle_share(ran: &Ran, phase: &str) -> (f64, f64) {
    let [truth] = &ran.truths[..] else {
        panic!("{} processes", ran.truths.len())
    };
    let busy = Busy::of(truth);
    let (mut idle, mut all) = (0, 0);
    for span in ran.said["phases"][phase].as_array().unwrap() {
        let (start, end) = (span[0].as_u64().unwrap(), span[1].as_u64().unwrap());
        all += end - start;
        idle += end - start - (busy.until(end) - busy.until(start));
    }
    (idle as f64 / all as f64, all as f64 / 1e9)
}

/// Records `steps` of a model and compares what is resolved by regression. A machine that other
/// programs keep busy makes steps of any length: then it must say so.
fn check(model: &str, steps: &str, slow: f64, wait: Wait) {
    let Some(python) = torch_python() else { return };
    let node = Node::new(&Scenario {
        slow,
        wait,
        ..Scenario::default()
    });
    let words = ["gpu_train.py", "--model", model, "--steps", steps];
    let ran = node.record(&python, &words, &[]);
    let rows = ran.report["gpu_idle"].as_array().unwrap();
    let (mut resolved, mut error, mut allowed) = (0, 0.0, 0.0);
    for (phase, own) in PHASES {
        let row = rows
            .iter()
            .find(|row| row["kind"] == "phase" && row["name"] == phase);
        let row = row.unwrap_or_else(|| panic!("no {phase}: {rows:?}"));
        let host = row["host_s"].as_f64().unwrap();
        let (truth, said_s) = idle_share(&ran, own);
        println!("{model} {phase}: {truth:.3} of {host:.2} s: {row}");
        let Some(seconds) = row["seconds"].as_f64() else {
            assert!(row["refused"].is_string(), "{row}");
            continue;
        };
        // Without, visits are long enough for their own windows (tests/gpu/idle_live.rs).
        let Some(windows) = row["regression_windows"].as_u64() else {
            continue;
        };
        assert!(windows >= 60, "{row}");
        // The script's own code, unlike the others, also runs before its first step.
        let slack = match phase {
            "user" => (host - said_s).abs() / host,
            _ => 0.0,
        };
        let bound = |name: &str| row["interval"][name].as_f64().unwrap() / host;
        let holds = bound("low") - slack <= truth && truth <= bound("high") + slack;
        assert!(holds, "{truth}: {row}");
        error += ((seconds / host - truth).abs() - slack).max(0.0);
        allowed += ((bound("high") - bound("low")) / 2.0).max(ALLOWED);
        resolved += 1;
    }
    let waits = ran.report["waits"].as_array().unwrap().iter();
    let without_cpu = waits.filter(|row| row["kind"] == "cpu");
    let without_cpu: f64 = without_cpu.map(|row| row["share"].as_f64().unwrap()).sum();
    let text = rows.iter().map(|row| row["refused"].as_str());
    // A busy machine makes uneven steps; a quick one leaves phases a small part of a step.
    let refused = [
        "different lengths",
        "only",
        "do not tell the phases",
        "changed during the recording",
    ];
    let is_refused = text
        .flatten()
        .any(|why| refused.iter().any(|each| why.contains(each)));
    assert!(resolved > 0 || is_refused, "{model}: {rows:?}");
    // A sample of a thread without a CPU is long: the intervals must hold, estimates are rough.
    let is_starved = without_cpu > STARVED;
    println!(
        "{model}: off by {error:.3} over {resolved} ({allowed:.3} allowed), without a CPU {without_cpu:.2}"
    );
    assert!(
        is_starved || error <= allowed,
        "{model}: {error} of {allowed}"
    );
}

#[test]
fn idle_time_by_phase_of_a_gpt() {
    check("gpt", "300", 15.0, Wait::Block);
}

#[test]
fn idle_time_by_phase_of_a_cnn() {
    check("cnn", "300", 5.0, Wait::Block);
}

#[test]
fn idle_time_by_phase_of_a_cnn_that_spins() {
    check("cnn", "300", 5.0, Wait::Spin);
}

#[test]
fn idle_time_by_phase_of_a_gan() {
    check("gan", "300", 60.0, Wait::Spin);
}
