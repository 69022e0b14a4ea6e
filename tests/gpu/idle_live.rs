//! Idle time by line, recorded from a double of NVML that replays what a program logged.

use crate::faults::{assert_error, output_of, run};
use crate::gpu_machine::Machine;
use nvml_double::scenario::Scenario;
use serde_json::Value;
use std::process::Command;

const UUID: &str = "GPU-11111111-aaaa";

fn record(
    busy_ms: u64,
    idle_ms: u64,
    duration: &str,
) -> Option<(Machine, crate::faults::Recorded)> {
    let machine = Machine::start(busy_ms, idle_ms)?;
    let scenario = Scenario {
        gpus: vec![machine.gpu(UUID)],
        ..Scenario::default()
    };
    let recorded = machine.record(&scenario, &["--duration", duration]);
    Some((machine, recorded))
}

/// The rows of a function's lines.
fn rows<'v>(report: &'v Value, function: &str) -> Vec<&'v Value> {
    let all = report["gpu_idle"].as_array().unwrap().iter();
    all.filter(|row| row["kind"] == "line" && row["name"] == function)
        .collect()
}

/// The device is idle while the program sleeps, and busy while it computes. Each figure that is
/// given has bounds that hold this, and turns shorter than two windows have none.
#[test]
fn idle_time_of_lines_holds_what_was_planted() {
    for (busy_ms, idle_ms, resolved) in [(1500, 2000, true), (500, 700, true), (60, 40, false)] {
        let Some((_machine, recorded)) = record(busy_ms, idle_ms, "8s") else {
            return;
        };
        let report = recorded.report();
        let mut reported = 0;
        for (function, share) in [("be_idle", 1.0), ("keep_busy", 0.0)] {
            for row in rows(&report, function) {
                let host = row["host_s"].as_f64().unwrap();
                // A line that a sample or two saw by chance is not the turn.
                if host < 0.5 {
                    continue;
                }
                reported += 1;
                assert_eq!(row["resolved"], resolved, "{busy_ms} {idle_ms}: {row}");
                if resolved {
                    let truth = share * host;
                    let bound = |name: &str| row["interval"][name].as_f64().unwrap();
                    // The sampler's own edges are known to a tick.
                    assert!(bound("low") <= truth + 0.05, "{truth}: {row}");
                    assert!(bound("high") >= truth - 0.05, "{truth}: {row}");
                    assert!(bound("high") - bound("low") < 0.7 * host, "{row}");
                } else {
                    assert!(
                        row["seconds"].is_null() && row["interval"].is_null(),
                        "{row}"
                    );
                }
            }
        }
        assert!(reported >= 2, "{report}");
        let text = run(&["report", "--full", &recorded.path().to_string_lossy()]).stdout;
        assert!(
            text.contains("GPU 0 IDLE while the training thread was at"),
            "{text}"
        );
    }
}

#[test]
fn drawings_of_idle_windows_alone() {
    let Some((_machine, recorded)) = record(800, 1200, "5s") else {
        return;
    };
    let path = recorded.path();
    let path = path.to_string_lossy();
    let folded = |options: &[&str]| {
        let fixed = ["convert", &path, "--format", "folded", "-o", "-"];
        let output = run(&[&fixed[..], options].concat());
        assert!(output.status.success(), "{}", output.stderr);
        output
    };
    let ticks = |text: &str, function: &str| -> u64 {
        let lines = text.lines().filter(|line| line.contains(function));
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    };
    let (all, idle) = (folded(&[]), folded(&["--gpu-idle"]));
    assert!(
        idle.stderr.contains("windows in which the GPU was idle"),
        "{}",
        idle.stderr
    );
    let (before, after) = (
        ticks(&all.stdout, "keep_busy"),
        ticks(&idle.stdout, "keep_busy"),
    );
    assert!(after * 5 < before, "{after} of {before}");
    let (before, after) = (
        ticks(&all.stdout, "be_idle"),
        ticks(&idle.stdout, "be_idle"),
    );
    assert!(after * 2 > before, "{after} of {before}");
    let mut command = Command::new(crate::faults::TORCHSPY);
    command.args([
        "convert",
        &path,
        "--gpu-idle",
        "--format",
        "json",
        "-o",
        "-",
    ]);
    assert_error(
        &output_of(&mut command),
        "--gpu-idle changes nothing in a .json",
        &["it works with .svg"],
    );
}

#[test]
fn a_recording_without_a_gpu_has_no_idle_windows() {
    let Some(machine) = Machine::start(50, 50) else {
        return;
    };
    let recorded = machine.record(&Scenario::default(), &["--duration", "1s", "--gpu", "none"]);
    let mut command = Command::new(crate::faults::TORCHSPY);
    command
        .args(["convert", "--gpu-idle", "--format", "folded", "-o", "-"])
        .arg(recorded.path());
    assert_error(
        &output_of(&mut command),
        "no windows of GPU utilization",
        &["DEVICE"],
    );
}
