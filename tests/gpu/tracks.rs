//! Counter tracks of GPUs, recorded from a double of NVML that replays what a program logged: every
//! figure against its truth.

use crate::faults::{Recorder, run, wait_until};
use crate::gpu_machine::{Machine, energy_of, gpu, rows, track, why_missing};
use nix::sys::signal::Signal;
use nvml_double::scenario::{Activity, Gpu, Process, Scenario};
use serde_json::Value;

const UUID: &str = "GPU-11111111-aaaa";
const OTHER: &str = "GPU-22222222-bbbb";
const THREE_SECONDS: &[&str] = &["--duration", "3s"];

fn with(gpus: Vec<Gpu>) -> Scenario {
    Scenario {
        gpus,
        ..Scenario::default()
    }
}

/// The share of each window in which the device was busy, against the log; returns how many windows
/// there were.
fn assert_windows(
    activity: &Activity,
    rows: &[&crate::gpu_machine::Row],
    scale: f64,
    tolerance: f64,
) -> usize {
    for row in rows {
        let truth = activity.busy_ns(row.start_ns, row.end_ns) / row.length_ns() as f64 * scale;
        assert!(
            (row.number() - truth).abs() <= tolerance,
            "{} from {} to {}: {} and not {truth}",
            row.track,
            row.start_ns,
            row.end_ns,
            row.value
        );
    }
    rows.len()
}

#[test]
fn figures_are_those_of_the_device_that_the_program_uses() {
    let Some(machine) = Machine::start(300, 200) else {
        return;
    };
    let neighbour = Process {
        pid: std::process::id(),
        memory: 1 << 30,
        instance: None,
    };
    let mut used = machine.gpu(UUID);
    used.processes = Some(vec![machine.process(), neighbour]);
    used.throttle_busy = 0x4;
    let unused = Gpu {
        uuid: OTHER.to_owned(),
        ..Gpu::default()
    };
    let scenario = with(vec![unused, used.clone()]);
    let recorded = machine.record_until(&scenario, UUID, energy_of(3.0));
    let (report, rows) = (recorded.report(), rows(&recorded));
    assert_eq!(report["gpus"].as_array().unwrap().len(), 1);
    let device = gpu(&report, UUID);
    assert_eq!(device["index"], 1);
    assert_eq!(device["driver"], "550.00.double");
    assert_eq!(device["clock"], "realtime");

    // NVML's percents are whole; stamps are off by microseconds, GPM's by what a call takes.
    let activity = machine.activity();
    let windows = assert_windows(&activity, &track(&rows, UUID, "utilization"), 1.0, 0.03);
    assert!(windows >= 8, "{windows}");
    let windows = assert_windows(&activity, &track(&rows, UUID, "sm_active"), used.sm, 0.03);
    assert!(windows >= 5, "{windows}");
    assert!(track(&rows, OTHER, "utilization").is_empty());

    // Energy over whole steps of the counter: from the end of one reading to that of another.
    let energy = track(&rows, UUID, "energy");
    let joules: f64 = energy.iter().map(|row| row.number()).sum();
    let (from, to) = (energy[0].start_ns, energy[energy.len() - 1].end_ns);
    let busy_s = activity.busy_ns(from, to) / 1e9;
    let truth = (to - from) as f64 / 1e9 * 70.0 + busy_s * 430.0;
    // A step is 100 ms long, at either end.
    assert!(
        (joules - truth).abs() <= 0.1 * 500.0,
        "{joules} J and not {truth}"
    );
    assert_eq!(device["power_from"], "energy");
    let watts = device["energy_j"].as_f64().unwrap() / device["energy_s"].as_f64().unwrap();
    assert!(
        (device["power_w"].as_f64().unwrap() - watts).abs() < 0.02 * watts,
        "{device}"
    );

    assert_eq!(device["memory"]["max_bytes"], (10_u64 << 30) as f64);
    assert!(
        device["throttle"]["power cap"].as_f64().unwrap() > 0.5,
        "{device}"
    );
    let processes = device["processes"].as_array().unwrap();
    assert_eq!(processes[0]["pid"], machine.target.pid());
    assert_eq!(
        (&processes[0]["sampled"], &processes[0]["known_by"]),
        (&true.into(), &"driver".into())
    );
    assert_eq!(processes[0]["memory_bytes"], 9_u64 << 30);
    assert_eq!(processes[1]["pid"], std::process::id());
    assert_eq!(processes[1]["sampled"], false);
    assert!(processes[1]["name"].as_str().unwrap().starts_with("gpu"));

    let text = run(&["report", "--full", &recorded.path().to_string_lossy()]).stdout;
    for part in [
        "DEVICE 1",
        "any kernel",
        "THROTTLED: power cap",
        "other processes: gpu",
        "HOST, 1 process",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}

/// A driver's clock that is none of the machine's: moments are known to within what is stated.
#[test]
fn a_driver_with_a_clock_of_its_own() {
    let Some(machine) = Machine::start(1000, 1000) else {
        return;
    };
    let scenario = Scenario {
        clock_ahead_us: 3_600_000_000,
        ..with(vec![machine.gpu(UUID)])
    };
    let recorded = machine.record_until(&scenario, UUID, energy_of(3.5));
    let report = recorded.report();
    let device = gpu(&report, UUID);
    assert_eq!(device["clock"], "unknown");
    let error_ns = device["clock_error_us"].as_f64().unwrap() * 1e3;
    let rows = rows(&recorded);
    let windows = track(&rows, UUID, "utilization");
    assert!(windows.len() >= 10, "{}", windows.len());
    let activity = machine.activity();
    // The truth of the same window, shifted by no more than the error: with turns of a second some
    // shift fits.
    for row in windows {
        let fits = (-10..=10).any(|part| {
            let shift = (error_ns * f64::from(part) / 10.0) as i64;
            let moved = |ns: u64| ns.saturating_add_signed(shift);
            let busy = activity.busy_ns(moved(row.start_ns), moved(row.end_ns));
            let step = 2.0 * error_ns / 20.0 / row.length_ns() as f64;
            (busy / row.length_ns() as f64 - row.number()).abs() <= 0.02 + step
        });
        assert!(fits, "{row:?} with an error of {error_ns} ns");
    }
}

/// In a container the driver's pids are the host's: what the process may see is the hint.
#[test]
fn visible_devices_are_the_hint_where_no_list_shows_the_process() {
    for (visible, expected) in [("1", Some(OTHER)), ("GPU-1111", Some(UUID)), ("", None)] {
        let variables = [("CUDA_VISIBLE_DEVICES", visible)];
        let Some(machine) = Machine::start_with(50, 50, &variables) else {
            return;
        };
        let stranger = Process {
            pid: 4_000_000,
            memory: 1 << 30,
            instance: None,
        };
        let gpus = [UUID, OTHER].map(|uuid| Gpu {
            processes: Some(vec![stranger.clone()]),
            ..machine.gpu(uuid)
        });
        let scenario = with(gpus.to_vec());
        // What was known of a process still holds when it has ended.
        let recorded = match expected {
            Some(_) => {
                let folder = tempfile::tempdir().unwrap();
                let recorder = Recorder::spawn(machine.command(&scenario, &[]), folder);
                let path = recorder.path().to_string_lossy().into_owned();
                wait_until("the device is recorded", || {
                    let report = run(&["report", "--json", &path]).stdout;
                    let report: Option<Value> = serde_json::from_str(&report).ok();
                    report.is_some_and(|report| report["gpus"][0].is_object())
                });
                machine.target.kill(Signal::SIGKILL);
                recorder.finish()
            }
            None => machine.record(&scenario, THREE_SECONDS),
        };
        let report = recorded.report();
        let uuids: Vec<&str> = report["gpus"]
            .as_array()
            .unwrap()
            .iter()
            .map(|gpu| gpu["uuid"].as_str().unwrap())
            .collect();
        assert_eq!(uuids, Vec::from_iter(expected), "{visible}");
        match expected {
            Some(uuid) => {
                let own = &gpu(&report, uuid)["processes"][0];
                assert_eq!(own["known_by"], "visible_devices");
                assert_eq!(own["pid"], machine.target.pid());
                assert_eq!(own["memory_bytes"], Value::Null);
            }
            None => {
                let text = run(&["report", "--full", &recorded.path().to_string_lossy()]).stdout;
                assert!(
                    text.contains("no sampled process used a GPU (2 here"),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn gpus_that_are_named_are_recorded_whoever_uses_them() {
    let Some(machine) = Machine::start(50, 50) else {
        return;
    };
    let mut other = machine.gpu(OTHER);
    other.processes = None;
    let scenario = with(vec![machine.gpu(UUID), other]);
    let uuids = |options: &[&str]| -> Vec<String> {
        let options = [&["--duration", "1s"], options].concat();
        let report = machine.record(&scenario, &options).report();
        let gpus = report["gpus"].as_array().unwrap().iter();
        gpus.map(|gpu| gpu["uuid"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(uuids(&["--gpu", "all"]), [UUID, OTHER]);
    assert_eq!(uuids(&["--gpu", "1"]), [OTHER]);
    assert_eq!(uuids(&["--gpu", "GPU-2222"]), [OTHER]);
    assert_eq!(uuids(&["--gpu", "none"]), [""; 0]);
}

/// Utilization of an instance is told by GPM alone.
#[test]
fn why_a_figure_is_missing_is_said() {
    let Some(machine) = Machine::start(100, 100) else {
        return;
    };
    let gpu_without = Gpu {
        gpm: false,
        unsupported: vec!["nvmlDeviceGetPowerUsage".to_owned()],
        ..machine.gpu(UUID)
    };
    let recorded = machine.record_until(&with(vec![gpu_without]), UUID, |gpu| {
        energy_of(1.0)(gpu)
            && gpu["utilization"].is_number()
            && gpu["pcie_sent_bytes_s"].is_number()
    });
    let report = recorded.report();
    let device = gpu(&report, UUID);
    for key in [
        "sm_active",
        "sm_occupancy",
        "tensor_active",
        "dram_active",
        "nvlink_sent_bytes_s",
    ] {
        assert!(device[key].is_null(), "{key}: {device}");
    }
    assert_eq!(
        why_missing(device, "sm_active"),
        "GPM needs Hopper or later"
    );
    assert_eq!(why_missing(device, "power"), "this GPU has no such figure");
    // What GPM would tell of PCIe, a slower call does.
    assert_eq!(device["pcie_sent_bytes_s"], 2e9);
    assert!(device["utilization"].as_f64().is_some());
}
