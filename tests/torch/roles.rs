//! A real torchrun job: every process is named by its role, and what is no Python is tolerated.

use crate::faults::{output_of, program};
use crate::native_live::torch_python;
use crate::{missed_s, record};
use serde_json::Value;
use std::process::Command;

/// The processes of a report with this role.
fn of_role<'a>(report: &'a Value, role: &str) -> Vec<&'a Value> {
    let processes = report["processes"].as_array().unwrap();
    processes
        .iter()
        .filter(|process| process["role"] == role)
        .collect()
}

/// What a failure shows of a report.
fn rows(report: &Value) -> String {
    let processes = report["processes"].as_array().unwrap();
    let row = |process: &Value| {
        let of = |key: &str| process[key].to_string();
        let keys = [
            "pid",
            "parent_pid",
            "role",
            "rank",
            "worker",
            "wall_s",
            "python",
            "note",
            "command",
        ];
        keys.map(of).join(" ")
    };
    processes.iter().map(row).collect::<Vec<_>>().join("\n")
}

/// The parts of a dump that are of one process's threads.
fn threads_of(dump: &str, pid: &Value) -> String {
    let line = dump
        .lines()
        .find(|line| line.starts_with("  P") && line.contains(&format!(" pid {pid} of ")))
        .unwrap_or_else(|| panic!("no process {pid}: {dump}"));
    let id = line.trim().split(' ').next().unwrap();
    dump.split("\nthread T")
        .skip(1)
        .filter(|text| text.contains(&format!(" of {id}: ")))
        .collect()
}

/// Two Gloo ranks below torchrun, two DataLoader workers below each. The workers inherit RANK and
/// are no ranks; `sleep` is no Python.
fn check_roles(start_method: &str) {
    let Some(python) = torch_python() else { return };
    let python = python.to_string_lossy();
    let script = program("ddp_gloo.py");
    let words = [
        &*python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        &*script,
        "--steps",
        "160",
        "--workers",
        "2",
        "--start-method",
        start_method,
        "--helper",
    ];
    let recorded = record(&words, "ptrace");
    let (report, dump) = (recorded.report(), recorded.inspect());

    let launchers = of_role(&report, "launcher");
    assert_eq!(launchers.len(), 1, "{}", rows(&report));
    assert!(
        launchers[0]["wall_s"].as_f64().unwrap() > 0.0,
        "{}",
        rows(&report)
    );
    assert_eq!(launchers[0]["rank"], Value::Null);

    let trainers = of_role(&report, "trainer");
    assert_eq!(trainers.len(), 2, "{}", rows(&report));
    for (rank, trainer) in trainers.iter().enumerate() {
        assert_eq!(trainer["rank"], rank);
        assert_eq!(trainer["local_rank"], rank);
        assert_eq!(trainer["world_size"], 2);
        assert_eq!(trainer["parent_pid"], launchers[0]["pid"]);
        assert!(trainer["torch"].is_string(), "{trainer}");
        // It was read as what it is: its own Python frames, and phases from them.
        assert!(
            threads_of(&dump, &trainer["pid"]).contains("py train ("),
            "{trainer}"
        );
        assert!(
            trainer["phases"]["backward"].as_f64().unwrap() > 0.0,
            "{trainer}"
        );
        assert!(
            recorded.messages.contains(&format!("\n  rank {rank}/2 ")),
            "{}",
            recorded.messages
        );
    }
    assert_eq!(
        report["processes"][report["primary"].as_u64().unwrap() as usize]["rank"],
        0,
        "the report is about the first trainer"
    );

    let workers = of_role(&report, "dataloader_worker");
    for trainer in &trainers {
        let mut numbers: Vec<&Value> = workers
            .iter()
            .filter(|worker| worker["parent_pid"] == trainer["pid"])
            .map(|worker| &worker["worker"])
            .collect();
        numbers.sort_by_key(|number| number.as_u64());
        assert_eq!(numbers, [0, 1], "{}", rows(&report));
    }
    assert_eq!(workers.len(), 4, "{}", rows(&report));
    for worker in &workers {
        assert_eq!(worker["rank"], Value::Null, "RANK is inherited: {worker}");
        assert!(
            threads_of(&dump, &worker["pid"]).contains("py _worker_loop ("),
            "{worker}"
        );
    }
    // All of them have RANK in their environment all the same.
    assert!(dump.matches("     RANK=").count() >= 6, "{dump}");

    let sleepers: Vec<&Value> = of_role(&report, "other")
        .into_iter()
        .filter(|process| process["command"][0] == "sleep")
        .collect();
    assert_eq!(sleepers.len(), 2, "{}", rows(&report));
    for sleeper in sleepers {
        assert_eq!(sleeper["note"], "not a Python process");
        assert_eq!(sleeper["python"], Value::Null);
    }
}

#[test]
fn torchrun_with_forked_workers() {
    check_roles("fork");
}

#[test]
fn torchrun_with_spawned_workers() {
    check_roles("spawn");
}

/// A child that is started anew by the same Python is no copy of its parent, however soon it is
/// found.
#[test]
fn children_of_the_same_python_are_read() {
    let Some(python) = crate::faults::any_python() else {
        return;
    };
    let child = "import time\ndef in_child():\n    while time.process_time() < 0.4: sum(range(1000))\nin_child()";
    let parent = "import subprocess, sys\ndef in_parent():\n    for _ in range(6): subprocess.check_call([sys.executable, '-c', sys.argv[1]])\nin_parent()";
    let recorded = record(&[&python, "-c", parent, child], "ptrace");
    let (report, dump) = (recorded.report(), recorded.inspect());
    let processes = report["processes"].as_array().unwrap();
    let root = output_of(
        Command::new(&python).args(["-c", "import platform; print(platform.python_version())"]),
    );
    let is_read = |process: &Value| {
        let own = match process["command"][2].as_str() {
            Some(text) if text.contains("in_parent()") => "py in_parent (",
            _ => "py in_child (",
        };
        process["python"] == root.stdout.trim() && threads_of(&dump, &process["pid"]).contains(own)
    };
    let lacking = processes.iter().find(|process| !is_read(process));
    // A child lasts for 0.4 s at least.
    let missed_s = missed_s(&report);
    if missed_s > 0.2 && (processes.len() < 7 || lacking.is_some()) {
        println!("skipped: the machine is too busy to see each child: {missed_s} s were missed");
        return;
    }
    assert_eq!(processes.len(), 7, "{report}");
    assert_eq!(lacking, None, "{dump}");
}
