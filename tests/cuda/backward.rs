//! Backward on the engine's threads: below the line that called it, for as long as the script says.

use crate::faults::program;
use crate::installed::torch_python;
use crate::node::{Node, Ran};
use gpu_node::scenario::{Gpu, Scenario, Wait};
use serde_json::Value;

const PROGRAM: &str = "gpu_train.py";
/// Of the time of all steps.
const ALLOWED: f64 = 0.015;
/// The same where launches sleep: a sleep that ends amid a read moves time from one phase to
/// another (docs/src/limits.md).
const ALLOWED_SLEEPING: f64 = 0.04;
/// Standard errors: five trainings with two phases each make ten comparisons.
const ERRORS: f64 = 3.0;
/// Of the waits for the engine, those with frames of what it did. On a busy machine a thread waits
/// for a CPU after the engine has ended, and the two are not polled at one moment: 20 runs on two
/// CPUs had 0.64 to 0.92, whatever the number of ticks. Without the join it is 0.
const LEAST_JOINED: f64 = 0.5;

/// Seconds that the script itself spent in a phase.
fn spent(said: &Value, phase: &str) -> f64 {
    let spans = said["phases"][phase].as_array().unwrap().iter();
    let ns = spans.map(|span| span[1].as_u64().unwrap() - span[0].as_u64().unwrap());
    ns.sum::<u64>() as f64 / 1e9
}

/// Lines of backward that do not call it, and time that is at no line.
fn elsewhere(ran: &Ran) -> Vec<String> {
    let text = std::fs::read_to_string(program(PROGRAM)).unwrap();
    let source: Vec<&str> = text.lines().collect();
    let table = &ran.report["backward"];
    let rows = table["lines"].as_array();
    let rows = rows.unwrap_or_else(|| panic!("no backward: {}", ran.messages));
    let calls = |row: &&Value| {
        let line = row["line"].as_u64().unwrap_or(0) as usize;
        let is_own = row["file"]
            .as_str()
            .is_some_and(|file| file.ends_with(PROGRAM));
        is_own && source[line - 1].contains(".backward()")
    };
    let at: f64 = rows
        .iter()
        .filter(calls)
        .map(|row| row["total_s"].as_f64().unwrap())
        .sum();
    let total = table["total_s"].as_f64().unwrap();
    println!("{at:.3} s of {total:.3} s of backward at its lines");
    match total > 0.0 && at > 0.999 * total {
        true => Vec::new(),
        false => vec![format!("{at:.3} of {total:.3} s: {rows:?}")],
    }
}

/// The part of the waits for the engine that has frames of what it did, and all of them, in ticks.
fn joined(ran: &Ran) -> (u64, u64) {
    let stacks = ran.folded();
    let waits = stacks.iter().filter_map(|(stack, ticks)| {
        let (_, below) = stack.split_once("_engine_run_backward")?;
        Some((below.split_once("ReadyQueue::pop")?.1, ticks))
    });
    // The C++ library waits, and begins a thread.
    waits.fold((0, 0), |(joined, all), (below, ticks)| {
        let is_joined = below.matches("(libstdc++").count() > 1;
        (joined + if is_joined { *ticks } else { 0 }, all + ticks)
    })
}

/// Phases whose share of the steps' time is not the script's.
fn off(ran: &Ran, allowed: f64) -> Vec<String> {
    let steps = ran.said["step_ns"].as_array().unwrap();
    let [first, last] = [&steps[0][0], &steps[steps.len() - 1][1]];
    let all = (last.as_u64().unwrap() - first.as_u64().unwrap()) as f64 / 1e9;
    let wall = ran.report["wall_s"].as_f64().unwrap();
    let found = |phase: &str| ran.report["phases"][phase].as_f64().unwrap() * wall;
    // Captures of the training thread within the steps.
    let captures = ran.report["quality"]["training_hz"].as_f64().unwrap() * all;
    let compared = [
        ("forward", found("forward")),
        ("backward", found("backward") + found("recompute")),
    ];
    let mut wrong = Vec::new();
    for (phase, seconds) in compared {
        let spent = spent(&ran.said, phase);
        let share = (spent / all).clamp(0.0, 1.0);
        let error = (share * (1.0 - share) / captures).sqrt();
        let text = format!("{phase}: {seconds:.3} of {spent:.3} s, ±{error:.3}, in {all:.3} s");
        println!("{text}");
        if (seconds - spent).abs() > (allowed + ERRORS * error) * all {
            wrong.push(text);
        }
    }
    wrong
}

fn check(kind: &str, steps: &str, gpus: usize, scenario: Scenario) {
    let Some(python) = torch_python() else { return };
    let gpu = |number| Gpu {
        uuid: format!("GPU-51700000-0000-0000-0000-{number:012x}"),
        ..Gpu::default()
    };
    let allowed = match scenario.wait {
        Wait::Block => ALLOWED_SLEEPING,
        _ => ALLOWED,
    };
    let node = Node::new(&Scenario {
        gpus: (0..gpus).map(gpu).collect(),
        ..scenario
    });
    let words = [PROGRAM, "--model", kind, "--steps", steps];
    let ran = node.record(&python, &words, &["--gpu", "none", "--rate", "200"]);
    let (with, all) = joined(&ran);
    println!("{kind}: {with} of {all} ticks of waits for the engine show what it did");
    let mut wrong = elsewhere(&ran);
    wrong.extend(off(&ran, allowed));
    if (with as f64) < LEAST_JOINED * all as f64 || all == 0 {
        wrong.push(format!("{with} of {all} ticks have the engine's frames"));
    }
    assert!(wrong.is_empty(), "{kind}: {wrong:#?}");
}

/// A queue that is full most of the time: launches and the engine's threads sleep for short times.
#[test]
fn backward_of_a_cnn_is_below_its_line() {
    let scenario = Scenario {
        slow: 6.0,
        queue: 64,
        wait: Wait::Block,
        ..Scenario::default()
    };
    check("cnn", "150", 1, scenario);
}

#[test]
fn backward_on_two_devices_is_below_its_line() {
    check("two_devices", "150", 2, Scenario::default());
}

#[test]
fn reentrant_backward_is_below_its_line() {
    check("checkpoint_reentrant", "60", 1, Scenario::default());
}

#[test]
fn hooks_in_backward_are_below_its_line() {
    check("hooks", "150", 1, Scenario::default());
}

#[test]
fn backward_of_a_thread_is_below_its_line() {
    check("caller", "150", 1, Scenario::default());
}
