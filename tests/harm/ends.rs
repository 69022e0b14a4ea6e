//! Threads and processes that end, are replaced, or are not there at all while they are sampled.

use crate::faults::{
    How, Recorder, Target, any_python, compiled, counted, faults_can_be_made, functions, missed_s,
    partial, program, seconds_with, stacks_cut_by, state_of, wait_until,
};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

const FAST: &[&str] = &["--rate", "500", "--max-stopped", "100"];

/// SIGKILL between two steps of a stop: nobody but torchspy itself can have sent it, so it was
/// reached.
#[test]
fn the_target_is_killed_at_every_step_of_a_stop() {
    let Some(python) = any_python() else { return };
    if !faults_can_be_made() {
        return;
    }
    for point in ["chosen", "seized", "interrupted", "held", "read"] {
        let fault = format!("{point}:200:1:signal-9");
        let mut target = Target::start(&[&python, &program("fault_exit.py"), "--go", "return"]);
        let how = How {
            options: FAST,
            fault: Some(&fault),
        };
        let recorded = Recorder::attach(target.pid(), how)
            .finish()
            .expect_success();
        assert_eq!(target.wait().signal(), Some(9), "{point}");
        let report = recorded.report();
        // Where the target waits for a CPU, a stop comes too late, and may be of no use.
        let quality = &report["quality"];
        let asked = ["stops", "stop_timeouts"].map(|each| quality[each].as_u64().unwrap());
        assert!(asked.iter().sum::<u64>() >= 199, "{point}: {quality}");
        assert!(functions(&report).contains_key("main"), "{point}: {report}");
    }
}

/// The same of a program that torchspy launched: its status is not lost on the way.
#[test]
fn a_launched_target_that_is_killed_while_held_gives_its_status() {
    let Some(python) = any_python() else { return };
    if !faults_can_be_made() {
        return;
    }
    for point in ["seized", "interrupted", "held", "read"] {
        let fault = format!("{point}:200:1:signal-9");
        let how = How {
            options: FAST,
            fault: Some(&fault),
        };
        let script = program("fault_exit.py");
        let command = Recorder::launch_command(&[&python, &script, "--after", "60", "return"], how);
        let recorded = Recorder::spawn(command, tempfile::tempdir().unwrap()).finish();
        assert_eq!(
            recorded.status.code(),
            Some(137),
            "{point}: {}",
            recorded.messages
        );
        assert!(
            functions(&recorded.report()).contains_key("main"),
            "{point}"
        );
    }
}

#[test]
fn every_way_to_end_gives_its_status() {
    let Some(python) = any_python() else { return };
    let script = program("fault_exit.py");
    let ways = [
        ("return", 0),
        ("sys-exit-3", 3),
        ("os-exit-4", 4),
        ("sigsegv", 139),
        ("exception", 1),
    ];
    let recorders = ways.map(|(how, status)| {
        let words = [&*python, &*script, "--after", "1", how];
        let command = Recorder::launch_command(&words, How::default());
        let recorder = Recorder::spawn(command, tempfile::tempdir().unwrap());
        (how, status, recorder)
    });
    for (how, status, recorder) in recorders {
        let recorded = recorder.finish();
        assert_eq!(
            recorded.status.code(),
            Some(status),
            "{how}: {}",
            recorded.messages
        );
        assert!(functions(&recorded.report()).contains_key("main"), "{how}");
    }
}

/// Threads that live for 2 ms, and a tracer that at first hesitates for 3 before it seizes one.
#[test]
fn threads_end_between_listing_and_stopping() {
    let Some(python) = any_python() else { return };
    if !faults_can_be_made() {
        return;
    }
    let script = program("fault_churn.py");
    let mut target = Target::start(&[&python, &script, "--seconds", "2"]);
    let how = How {
        options: FAST,
        fault: Some("chosen:0:150:sleep-3000"),
    };
    let recorded = Recorder::attach(target.pid(), how)
        .finish()
        .expect_success();
    assert!(target.wait().success());
    let report = recorded.report();
    let dump = recorded.inspect();
    assert!(stacks_cut_by(&dump, "exited") > 0, "{}", report["quality"]);
    assert!(dump.contains("py live ("), "{dump}");
    assert_eq!(
        partial(&report, "permission_denied"),
        0,
        "{}",
        report["quality"]
    );
    assert_eq!(
        partial(&report, "already_traced"),
        0,
        "{}",
        report["quality"]
    );
}

/// The same pid, another program: frames of both, and nothing of the one in the other.
#[test]
fn exec_replaces_the_program() {
    let Some(python) = any_python() else { return };
    let Some(next) = compiled("fault_spin.c") else {
        return;
    };
    for from in ["main", "thread"] {
        let script = program("fault_exec.py");
        let words = [
            &*python, &*script, "--go", "--times", "1", "--work", "0.7", "--from", from, "--into",
            &*next,
        ];
        let mut target = Target::start(&words);
        let recorder = Recorder::attach(
            target.pid(),
            How {
                options: FAST,
                fault: None,
            },
        );
        recorder.wait_for_segment();
        target.tell("");
        target.expect("spinning");
        let recorded = recorder.finish().expect_success();
        assert!(target.wait().success());
        let dump = recorded.inspect();
        let report = recorded.report();
        assert_eq!(
            report["processes"].as_array().unwrap().len(),
            1,
            "{from}: {dump}"
        );
        let process = &report["processes"][0];
        assert_eq!(process["note"], "not a Python process", "{from}: {dump}");
        assert!(process["python"].is_null(), "{from}: {process}");
        assert!(
            dump.contains("py work (") && dump.contains("spin_in_c"),
            "{from}: {dump}"
        );
        let mixed = dump
            .split("\n  S")
            .any(|stack| stack.contains("spin_in_c") && stack.contains("py "));
        assert!(!mixed, "{from}: {dump}");
        assert!(
            report["quality"]["rooted_share"].as_f64().unwrap() > 0.9,
            "{}",
            report["quality"]
        );
    }
}

/// From one Python into another: the layouts differ, and both are read.
#[test]
fn exec_into_another_python() {
    let (Some(first), Some(second)) =
        (crate::faults::python("3.11"), crate::faults::python("3.12"))
    else {
        return;
    };
    let script = program("fault_exec.py");
    let words = [
        &*first,
        &*script,
        "--go",
        "--times",
        "1",
        "--work",
        "0.7",
        "--threads",
        "2",
        "--next-python",
        &*second,
    ];
    let mut target = Target::start(&words);
    let recorder = Recorder::attach(
        target.pid(),
        How {
            options: FAST,
            fault: None,
        },
    );
    recorder.wait_for_segment();
    target.tell("");
    target.expect("ready");
    target.expect("done");
    let recorded = recorder.finish().expect_success();
    let dump = recorded.inspect();
    assert_eq!(recorded.report()["processes"].as_array().unwrap().len(), 1);
    assert!(
        dump.contains("libpython3.11") && dump.contains("libpython3.12"),
        "{dump}"
    );
    assert!(
        dump.contains("py work_0 (") && dump.contains("py work_1 ("),
        "{dump}"
    );
    assert!(dump.contains("python 3.12"), "{dump}");
}

/// Dozens of children a second. Short-lived ones may be missed; none is an error, none is left
/// behind.
#[test]
fn a_fork_storm() {
    let Some(python) = any_python() else { return };
    let script = program("fault_churn.py");
    let words = [
        &*python,
        &*script,
        "--processes",
        "--seconds",
        "2",
        "--life-ms",
        "100",
    ];
    let command = Recorder::launch_command(&words, How::default());
    let recorded = Recorder::spawn(command, tempfile::tempdir().unwrap())
        .finish()
        .expect_success();
    let report = recorded.report();
    let processes = report["processes"].as_array().unwrap();
    assert!(processes.len() > 10, "{} processes", processes.len());
    assert!(
        !recorded.messages.contains("error"),
        "{}",
        recorded.messages
    );
    assert!(recorded.inspect().contains("py live ("), "a child was read");
}

/// The parent of a vfork is in state D until its child ends or execs. It is read and not
/// interrupted.
#[test]
fn a_thread_in_uninterruptible_sleep_and_its_vfork_child() {
    let Some(vfork) = compiled("fault_vfork.c") else {
        return;
    };
    let mut target = Target::spawn(std::process::Command::new(&vfork).args(["0.8", "2"]));
    target.ready = target.expect("ready");
    let recorder = Recorder::attach(
        target.pid(),
        How {
            options: FAST,
            fault: None,
        },
    );
    target.expect("ready");
    target.expect("done");
    let recorded = recorder.finish().expect_success();
    let (dump, report) = (recorded.inspect(), recorded.report());
    let asleep = dump
        .lines()
        .find_map(|line| counted(line, "uninterruptible/asleep"));
    let ticks = report["quality"]["ticks"].as_u64().unwrap();
    assert!(asleep.unwrap() * 2 > ticks, "{dump}");
    let child: i64 = target.ready[1].parse().unwrap();
    let processes = report["processes"].as_array().unwrap();
    assert!(
        processes.iter().any(|process| process["pid"] == child),
        "{report}"
    );
}

/// A thread that is asked to stop as it enters vfork stops only when its child has ended. Until
/// then it is read as the sleeper that it is, and other processes are stopped and read as ever.
#[test]
fn a_thread_that_enters_vfork_as_it_is_asked_to_stop() {
    let Some(vfork) = compiled("fault_vfork.c") else {
        return;
    };
    if !faults_can_be_made() {
        return;
    }
    let mut target = Target::spawn(std::process::Command::new(&vfork).args(["1", "6", "40"]));
    target.ready = target.expect("ready");
    // Each thread that is chosen has 30 ms to go on before it is seized: one that computes for 40,
    // and is looked at each 32 while the other runs, is in vfork by then, unless it gets no CPU; it
    // has five chances.
    let recorder = Recorder::attach(
        target.pid(),
        How {
            options: &["--rate", "500", "--max-stopped", "100", "--children", "all"],
            fault: Some("chosen:0:1000000:sleep-30000"),
        },
    );
    for _ in 0..5 {
        target.expect("ready");
    }
    target.expect("done");
    let recorded = recorder.finish().expect_success();
    let dump = recorded.inspect_samples();
    let threads: Vec<&str> = dump.split("\nthread ").skip(1).collect();
    let of = |process: &str| {
        let of_process = |thread: &&&str| thread.lines().next().unwrap().contains(process);
        *threads.iter().find(of_process).expect(process)
    };
    assert!(recorded.report()["quality"]["stop_timeouts"] != 0, "{dump}");
    let asleep = |line| counted(line, "uninterruptible/asleep");
    let asleep: u64 = of("of P0:").lines().filter_map(asleep).sum();
    assert!(asleep > 20, "{dump}");
    let times = |process: &str, how: &str| -> Vec<f64> {
        let samples = of(process).lines().filter(|line| line.starts_with("  at "));
        samples
            .filter(|line| line.contains(how))
            .map(|line| line.split(' ').nth(3).unwrap().parse().unwrap())
            .collect()
    };
    // While the one is in vfork, the other is stopped again and again: had its stop waited for the
    // vfork's end, readings of a sixth of the time, one vfork's, would stand in a row. On a busy
    // machine they do so for as long as the other gets no CPU.
    let vforks = times("of P0:", "uninterruptible/asleep");
    let all_s = vforks[vforks.len() - 1] - vforks[0];
    let mut events: Vec<(f64, bool)> = vforks.iter().map(|&at| (at, true)).collect();
    events.extend(
        times("of P1:", "running/stopped")
            .iter()
            .map(|&at| (at, false)),
    );
    events.sort_by(|a, b| a.0.total_cmp(&b.0));
    let rows = events.split(|(_, in_vfork)| !in_vfork);
    let seconds = |row: &[(f64, bool)]| row[row.len() - 1].0 - row[0].0;
    let longest_s = rows
        .filter(|row| !row.is_empty())
        .map(seconds)
        .fold(0.0, f64::max);
    assert!(longest_s < all_s / 10.0, "{longest_s} of {all_s}: {dump}");
}

/// `/proc/PID` of it has no memory, no root and no maps: those of a living thread serve.
#[test]
fn a_process_whose_first_thread_is_dead() {
    let Some(python) = any_python() else { return };
    let script = program("fault_dead_main.py");
    let mut target = Target::start(&[&python, &script, "--seconds", "1.5"]);
    let first = format!("/proc/{0}/task/{0}", target.pid());
    assert_eq!(crate::faults::state_of(first.as_ref()), Some(b'Z'));
    let recorder = Recorder::attach(
        target.pid(),
        How {
            options: FAST,
            fault: None,
        },
    );
    target.expect("done");
    let recorded = recorder.finish().expect_success();
    assert!(target.wait().success());
    let (report, dump) = (recorded.report(), recorded.inspect());
    let (read_s, all_s) = (seconds_with(&dump, "py survive ("), seconds_with(&dump, ""));
    assert!(read_s > 0.5 * all_s, "{read_s} of {all_s} s: {dump}");
    assert!(
        report["quality"]["rooted_share"].as_f64().unwrap() > 0.9,
        "{}",
        report["quality"]
    );
    assert!(report["processes"][0]["python"].is_string(), "{report}");
}

/// The first thread dies while its process is being sampled.
#[test]
fn the_first_thread_dies_during_the_recording() {
    let Some(python) = any_python() else { return };
    let script = program("fault_dead_main.py");
    let mut target = Target::spawn(std::process::Command::new(&python).args([
        &script,
        "--seconds",
        "1",
        "--go",
    ]));
    target.expect("waiting");
    let recorder = Recorder::attach(
        target.pid(),
        How {
            options: FAST,
            fault: None,
        },
    );
    recorder.wait_for_bytes(400);
    target.tell("go");
    target.expect("ready");
    target.expect("done");
    let recorded = recorder.finish().expect_success();
    assert!(target.wait().success());
    let dump = recorded.inspect();
    let unreadable = seconds_with(&dump, "?? stack_unreadable");
    let read = seconds_with(&dump, "py survive (");
    // A late sample stands for all of the time before it.
    let allowed = 0.1 * read + missed_s(&recorded.report());
    assert!(unreadable < allowed, "{unreadable} and {read} s: {dump}");
    wait_until("the target is gone", || {
        crate::faults::states(target.pid()).is_empty()
    });
}

/// A thread of torchspy that fails ends the recording: further stops would be useless.
#[test]
fn a_sampler_that_fails_is_no_reason_to_wait() {
    let Some(python) = any_python() else { return };
    if !faults_can_be_made() {
        return;
    }
    let target = Target::start(&[&python, &program("fault_exit.py"), "--go", "return"]);
    let how = How {
        options: FAST,
        fault: Some("ticked:400:1:panic"),
    };
    let recorder = Recorder::attach(target.pid(), how);
    let process = format!("/proc/{}", recorder.pid());
    wait_until("torchspy ends", || {
        state_of(Path::new(&process)).is_none_or(|state| state == b'Z')
    });
    let recorded = recorder.finish();
    assert_eq!(recorded.status.code(), Some(1));
    assert!(
        recorded.messages.contains("a part of the sampler failed"),
        "{}",
        recorded.messages
    );
    assert!(seconds_with(&recorded.inspect(), "py main (") > 0.5);
    assert!(target.states().iter().all(|&state| state != b't'));
}
