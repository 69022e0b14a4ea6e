//! GPUs and drivers that go wrong: each fault costs a gap, and says why. The sampler goes on.

use crate::faults::{Recorder, assert_error, output_of, run};
use crate::gpu_machine::{Machine, double_without, gpu, rows, track, why_missing};
use nvml_double::scenario::{Fault, Instance, Process, Scenario};
use serde_json::Value;

const UUID: &str = "GPU-11111111-aaaa";
const OTHER: &str = "GPU-22222222-bbbb";
const LONG_CALL: &str = "a call of the driver took long";
/// Longer than any call that is planted to come back.
const NEVER: f64 = f64::INFINITY;

fn two(machine: &Machine, faults: Vec<Fault>) -> Scenario {
    Scenario {
        gpus: vec![machine.gpu(UUID), machine.gpu(OTHER)],
        faults,
        ..Scenario::default()
    }
}

/// What is missing of a device. A call takes long on a busy machine, too: one that was planted
/// takes `least_s` at least.
fn gaps(device: &Value, least_s: f64) -> Vec<(f64, f64, String)> {
    let gaps = device["missing"].as_array().unwrap().iter();
    gaps.map(|gap| {
        (
            gap["from_s"].as_f64().unwrap(),
            gap["to_s"].as_f64().unwrap_or(f64::INFINITY),
            gap["reason"].as_str().unwrap().to_owned(),
        )
    })
    .filter(|(from, to, reason)| reason != LONG_CALL || to - from >= least_s)
    .collect()
}

/// Samples of the program's main thread by the second in which they begin, from `inspect
/// --samples`.
fn ticks_by_second(recorded: &crate::faults::Recorded) -> Vec<u64> {
    let path = recorded.path();
    let output = run(&["inspect", "--samples", &path.to_string_lossy()]);
    let mut seconds = Vec::new();
    for line in output.stdout.lines() {
        let Some(rest) = line.strip_prefix("  at ") else {
            continue;
        };
        let start: f64 = rest.split(' ').next().unwrap().parse().unwrap();
        let ticks = rest
            .split(", ")
            .nth(1)
            .and_then(|part| part.split(' ').next());
        let second = start.max(0.0) as usize;
        seconds.resize(seconds.len().max(second + 1), 0);
        seconds[second] += ticks.unwrap().parse::<u64>().unwrap();
    }
    seconds
}

/// A call that hangs for 5 s is a gap on its device. Samples are taken as before, and the other
/// device is read as before.
#[test]
fn a_call_that_blocks_delays_no_sample() {
    let Some(machine) = Machine::start(100, 0) else {
        return;
    };
    let blocked = Fault {
        call: "nvmlDeviceGetTemperature".to_owned(),
        gpu: Some(0),
        from_s: 2.0,
        times: Some(1),
        block_ms: 5000,
        ..Fault::default()
    };
    let scenario = two(&machine, vec![blocked]);
    // The call may begin late.
    let recorded = machine.record(&scenario, &["--duration", "12s"]);
    let report = recorded.report();
    let gap = gaps(gpu(&report, UUID), 4.9);
    assert_eq!(gap.len(), 1, "{gap:?}");
    let (from, to, reason) = &gap[0];
    assert_eq!(reason, LONG_CALL);
    assert!(gaps(gpu(&report, OTHER), 4.9).is_empty(), "{report}");

    // As many ticks in each second of the gap as in others.
    let ticks = ticks_by_second(&recorded);
    let (first, last) = (from.ceil() as usize, to.floor() as usize);
    let within = &ticks[first..last];
    let whole: Vec<u64> = (1..ticks.len() - 1)
        .filter(|second| !(first.saturating_sub(1)..=last).contains(second))
        .map(|second| ticks[second])
        .collect();
    let usual = whole.iter().sum::<u64>() as f64 / whole.len() as f64;
    let blocked = within.iter().sum::<u64>() as f64 / within.len() as f64;
    assert!(within.len() >= 3 && !whole.is_empty(), "{ticks:?}");
    // Ticks that wait for a CPU are skipped; behind the call nearly all would be.
    assert!(blocked >= 0.3 * usual, "{ticks:?}, gap {from} to {to}");

    // What the driver buffers itself has no gap.
    let table = rows(&recorded);
    for uuid in [UUID, OTHER] {
        let windows = track(&table, uuid, "utilization");
        let joined = windows
            .windows(2)
            .filter(|pair| pair[1].start_ns.abs_diff(pair[0].end_ns) < 1_000_000);
        assert_eq!(joined.count() + 1, windows.len(), "{uuid}");
        assert!(windows.len() > 30, "{uuid}: {}", windows.len());
    }
    let energy = track(&table, UUID, "energy");
    let across = energy.iter().max_by_key(|row| row.length_ns()).unwrap();
    assert!(across.length_ns() >= 4_900_000_000, "{across:?}");
    let others = track(&table, OTHER, "energy")
        .into_iter()
        .filter(|row| across.start_ns < row.start_ns && row.end_ns < across.end_ns);
    // Readings come as often as their cost allows, every 2 s at the least.
    assert!(others.count() >= 1);
}

/// A look at who uses a device is a call like any other: for as long as it hangs nothing else is
/// read.
#[test]
fn a_look_at_processes_that_blocks_is_a_gap() {
    let Some(machine) = Machine::start(100, 0) else {
        return;
    };
    let blocked = Fault {
        call: "nvmlDeviceGetComputeRunningProcesses_v3".to_owned(),
        gpu: Some(0),
        from_s: 1.5,
        times: Some(1),
        block_ms: 2000,
        ..Fault::default()
    };
    let recorded = machine.record(&two(&machine, vec![blocked]), &["--duration", "8s"]);
    let report = recorded.report();
    let gap = gaps(gpu(&report, UUID), 1.9);
    assert_eq!(gap.len(), 1, "{gap:?}");
    assert_eq!(gap[0].2, LONG_CALL);
    assert!(gaps(gpu(&report, OTHER), 1.9).is_empty(), "{report}");
}

/// A recording ends, whatever the driver does. The call blocks for a day: who waits for it does not
/// end before the tests are ended.
#[test]
fn a_call_that_never_comes_back_does_not_hold_up_the_end() {
    let Some(machine) = Machine::start(100, 100) else {
        return;
    };
    for (call, concerned) in [
        ("nvmlDeviceGetTotalEnergyConsumption", true),
        ("nvmlInit_v2", false),
    ] {
        let hangs = Fault {
            call: call.to_owned(),
            gpu: concerned.then_some(0),
            from_s: if concerned { 1.0 } else { 0.0 },
            block_ms: 24 * 3_600_000,
            ..Fault::default()
        };
        let recorded = machine.record(&two(&machine, vec![hangs]), &["--duration", "3s"]);
        let report = recorded.report();
        if concerned {
            let gap = gaps(gpu(&report, UUID), NEVER);
            assert!(
                gap.iter().any(|gap| gap.2 == "the driver did not answer"),
                "{gap:?}"
            );
            assert!(gaps(gpu(&report, OTHER), NEVER).is_empty());
        } else {
            assert_eq!(report["gpus_missing"][0], "the driver did not answer");
        }
        let host = report["host_use"]["processes"].as_array().unwrap();
        assert_eq!(host[0]["pid"], machine.target.pid());
        assert!(host[0]["cpus"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn a_device_that_vanishes_keeps_what_was_read() {
    let Some(machine) = Machine::start(100, 100) else {
        return;
    };
    let mut scenario = two(&machine, Vec::new());
    scenario.gpus[0].lost_at_s = Some(4.0);
    let recorded = machine.record(&scenario, &["--duration", "8s"]);
    let report = recorded.report();
    let device = gpu(&report, UUID);
    let gap = gaps(device, NEVER);
    assert_eq!(gap.len(), 1, "{gap:?}");
    assert_eq!(gap[0].2, "the GPU fell off the bus");
    assert!(gap[0].0 >= 1.0 && gap[0].1.is_infinite(), "{gap:?}");
    assert!(device["sm_active"].as_f64().is_some());
    let other = gpu(&report, OTHER);
    assert!(gaps(other, NEVER).is_empty());
    let seconds = |device: &Value| device["energy_s"].as_f64().unwrap();
    assert!(seconds(device) < seconds(other));
}

#[test]
fn a_call_that_fails_for_a_while_is_a_gap_for_that_while() {
    let Some(machine) = Machine::start(100, 100) else {
        return;
    };
    let fails = Fault {
        call: "nvmlDeviceGetTotalEnergyConsumption".to_owned(),
        gpu: Some(0),
        from_s: 2.0,
        until_s: Some(5.0),
        code: 999,
        ..Fault::default()
    };
    let recorded = machine.record(&two(&machine, vec![fails]), &["--duration", "9s"]);
    let report = recorded.report();
    let device = gpu(&report, UUID);
    let gap = gaps(device, NEVER);
    assert_eq!(gap.len(), 1, "{gap:?}");
    assert_eq!(
        why_missing(device, "energy"),
        "an internal driver error occurred"
    );
    let table = rows(&recorded);
    assert!(gap[0].1.is_finite() && gap[0].1 < 9.0, "{gap:?}");
    // The counter counted on: what it rose by meanwhile is in the window after.
    let longest = track(&table, UUID, "energy")
        .iter()
        .map(|row| row.length_ns())
        .max();
    assert!(longest.unwrap() >= 900_000_000, "{longest:?}");
    assert!(track(&table, UUID, "sm_active").len() > 5);
}

#[test]
fn a_driver_that_lacks_newer_functions() {
    let Some(mut machine) = Machine::start(100, 100) else {
        return;
    };
    machine.library = double_without(
        machine.folder.path(),
        &[
            "nvmlDeviceGetTotalEnergyConsumption",
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlGpmQueryDeviceSupport",
            "nvmlDeviceGetMigMode",
        ],
    );
    let recorded = machine.record_until(&two(&machine, Vec::new()), UUID, |gpu| {
        gpu["utilization"].is_number()
            && gpu["power_w"].is_number()
            && gpu["processes"][0].is_object()
    });
    let report = recorded.report();
    let device = gpu(&report, UUID);
    assert_eq!(device["memory"]["max_bytes"], (10_u64 << 30) as f64);
    assert_eq!(device["memory"]["total_bytes"], 80_u64 << 30);
    assert_eq!(device["processes"][0]["pid"], machine.target.pid());
    assert!(device["energy_j"].is_null(), "{device}");
    assert_eq!(device["power_from"], "power");
    assert!(device["utilization"].as_f64().is_some());
    for name in ["energy", "sm_active"] {
        assert_eq!(why_missing(device, name), "this driver is too old for it");
    }
}

#[test]
fn instances_of_a_device_in_mig_mode() {
    let Some(machine) = Machine::start(100, 100) else {
        return;
    };
    let instances = [1, 2].map(|instance| Instance {
        uuid: format!("MIG-{instance}"),
        instance,
        ..Instance::default()
    });
    let mut scenario = two(&machine, Vec::new());
    scenario.gpus[0].mig = Some(instances.to_vec());
    scenario.gpus[0].processes = Some(vec![Process {
        instance: Some(2),
        ..machine.process()
    }]);
    // In MIG mode, and not split.
    scenario.gpus[1].mig = Some(Vec::new());
    scenario.gpus[1].processes = None;
    let recorded = machine.record_until(&scenario, "MIG-2", |gpu| gpu["sm_active"].is_number());
    let report = recorded.report();
    let used = gpu(&report, "MIG-2");
    assert_eq!((&used["index"], &used["mig"]), (&0.into(), &1.into()));
    assert!(used["sm_active"].as_f64().is_some(), "{used}");
    assert!(used["utilization"].is_null());
    assert_eq!(used["memory"]["total_bytes"], 20_u64 << 30);
    assert!(why_missing(used, "utilization").contains("MIG instance"));
    let uuids: Vec<&Value> = report["gpus"]
        .as_array()
        .unwrap()
        .iter()
        .map(|gpu| &gpu["uuid"])
        .collect();
    assert!(!uuids.contains(&&Value::from("MIG-1")), "{uuids:?}");
    let missing = report["gpus_missing"].to_string();
    assert!(
        missing.contains("GPU 1 is in MIG mode and has no instance"),
        "{missing}"
    );
    let chosen = machine.record(&scenario, &["--duration", "2s", "--gpu", "0:0"]);
    let report = chosen.report();
    assert_eq!(report["gpus"].as_array().unwrap().len(), 1);
    gpu(&report, "MIG-1");
}

#[test]
fn a_driver_that_does_not_work_is_one_line() {
    let Some(machine) = Machine::start(100, 100) else {
        return;
    };
    // NVML_ERROR_DRIVER_NOT_LOADED, NO_PERMISSION, LIB_RM_VERSION_MISMATCH.
    for (code, words) in [
        (9, "the NVIDIA driver is not loaded"),
        (4, "no permission"),
        (18, "driver mismatch"),
    ] {
        let scenario = Scenario {
            init: code,
            ..Scenario::default()
        };
        let recorded = machine.record(&scenario, &["--duration", "1s"]);
        let text = run(&["report", "--full", &recorded.path().to_string_lossy()]).stdout;
        let line = text
            .lines()
            .find(|line| line.starts_with("DEVICE not recorded"));
        assert!(text.contains(words), "{words}: {text}");
        assert!(line.is_some(), "{text}");
        assert!(recorded.report()["gpus"].as_array().unwrap().is_empty());
        // Who names a GPU wants it.
        let output = output_of(&mut machine.command(&scenario, &["--gpu", "0"]));
        assert_error(&output, words, &["without --gpu"]);
        assert_eq!(output.status.code(), Some(2));
    }
}

#[test]
fn what_is_not_there_is_an_error_before_anything_starts() {
    let Some(mut machine) = Machine::start(100, 100) else {
        return;
    };
    let scenario = two(&machine, Vec::new());
    let output = output_of(&mut machine.command(&scenario, &["--gpu", "0,7"]));
    assert_error(&output, "there is no GPU 7", &["0 Double X100", OTHER]);
    let output = output_of(&mut machine.command(&scenario, &["--gpu", "cuda:0"]));
    assert_error(&output, "`cuda:0` is no GPU", &["by number or UUID"]);
    let text = machine.folder.path().join("libtext.so");
    std::fs::write(&text, "no library").unwrap();
    machine.library = text;
    let output = output_of(&mut machine.command(&scenario, &[]));
    assert_error(&output, "cannot be loaded", &["libnvidia-ml.so.1"]);
    machine.library = machine.folder.path().join("missing.so");
    let output = output_of(&mut machine.command(&scenario, &[]));
    assert_error(&output, "there is no such file", &["libnvidia-ml.so.1"]);
    assert!(!machine.folder.path().join("run.tspy").exists());
}

/// Readings that cost much come seldom.
#[test]
fn collecting_stays_within_its_budget() {
    let Some(machine) = Machine::start(100, 100) else {
        return;
    };
    let dear = Fault {
        call: "nvmlDeviceGetTotalEnergyConsumption".to_owned(),
        gpu: Some(0),
        spin_us: 10_000,
        ..Fault::default()
    };
    let command = machine.command(&two(&machine, vec![dear]), &["--duration", "6s"]);
    let folder = tempfile::tempdir().unwrap();
    let recorded = Recorder::spawn(command, folder).finish().expect_success();
    let table = rows(&recorded);
    let median = |uuid: &str| {
        let mut lengths: Vec<u64> = track(&table, uuid, "energy")
            .iter()
            .map(|row| row.length_ns())
            .collect();
        lengths.sort_unstable();
        lengths[lengths.len() / 2]
    };
    // 10 ms of 0.2 % of a core, which is what one device of two has, is the longest period. The
    // other's calls cost something too, and the mean takes some rounds to see what the dear ones
    // cost.
    assert!(
        median(UUID) > 2 * median(OTHER),
        "{} {}",
        median(UUID),
        median(OTHER)
    );
}
