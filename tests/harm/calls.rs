//! What a recording must not do to the programs that it records: end their system calls early, or
//! take a setuid program's privileges.

use crate::faults::{
    How, Recorded, Recorder, TORCHSPY, Target, any_python, compiled, output_of, perf_events_work,
    program,
};
use crate::so_far;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// By kind.
type Counts = Vec<(String, [u64; 3])>;

/// Kinds of calls of `calls_cut_short.c`, with what became of them under a recorder: calls, EINTRs,
/// and less than was asked for.
fn count_calls(seconds: &str, kinds: &[&str], engine: &str) -> Option<(Counts, Recorded)> {
    let counter = compiled("calls_cut_short.c")?;
    let words = [&[&*counter, seconds, "1000000", "300"], kinds].concat();
    let mut target = Target::start(&words);
    let recorder = Recorder::attach(
        target.pid(),
        How {
            options: &["--rate", "1000", "--max-stopped", "off", "--engine", engine],
            fault: None,
        },
    );
    recorder.wait_for_bytes(400);
    target.tell("go");
    let counts = kinds
        .iter()
        .map(|kind| {
            let counts = target.expect(kind);
            let counts: Vec<u64> = counts.iter().map(|word| word.parse().unwrap()).collect();
            ((*kind).to_owned(), counts.try_into().unwrap())
        })
        .collect();
    target.expect("done");
    Some((counts, recorder.finish().expect_success()))
}

/// A thread that waits in calls which a stop would end with EINTR is not stopped between two of
/// them, at ten times the default rate.
#[test]
fn calls_that_end_with_eintr_are_left_running() {
    let kinds = [
        "recv_timeout",
        "accept_timeout",
        "connect_timeout",
        "epoll_wait",
        "io_getevents",
        "semtimedop",
        "sigtimedwait",
    ];
    let Some((counts, recorded)) = count_calls("1", &kinds, "ptrace") else {
        return;
    };
    let quality = &recorded.report()["quality"];
    let mut seen = 0;
    for (kind, [calls, interrupted, _]) in &counts {
        // The first of a kind may be met; without that one in twenty is.
        assert!(
            *interrupted <= 3 + calls / 500,
            "{kind}: {interrupted} of {calls}: {quality}"
        );
        seen += interrupted;
    }
    assert!(
        quality["calls_cut_short"].as_u64().unwrap() >= seen,
        "{seen}: {quality}"
    );
    assert!(
        quality["calls_left_running"].as_u64().unwrap() > 100,
        "{quality}"
    );
}

/// Those that the kernel begins anew never show a stop.
#[test]
fn calls_that_restart_show_nothing() {
    let Some((counts, _)) = count_calls("1", &["nanosleep", "poll", "futex"], "ptrace") else {
        return;
    };
    for (kind, [calls, interrupted, _]) in &counts {
        assert_eq!(*interrupted, 0, "{kind}: of {calls} calls");
    }
}

/// Calls that fill much memory come back with less where they are stopped: after the first of a row
/// the thread is left alone.
#[test]
fn calls_that_fill_memory_are_left_running() {
    let Some((counts, recorded)) = count_calls("1.5", &["getrandom", "dev_zero"], "ptrace") else {
        return;
    };
    let quality = &recorded.report()["quality"];
    for (kind, [calls, interrupted, partial]) in &counts {
        assert!(*calls > 0, "{kind}");
        assert!(
            interrupted + partial <= 8 + calls / 20,
            "{kind}: {interrupted} and {partial} of {calls} calls"
        );
    }
    assert!(
        quality["calls_left_running"].as_u64().unwrap() > 0,
        "{quality}"
    );
}

/// Transfers cannot be mended: who makes them is not stopped while it does, once that is known.
#[test]
fn transfers_are_left_running() {
    let kinds = ["pipe_write", "send", "recv_waitall"];
    let Some((counts, recorded)) = count_calls("2", &kinds, "ptrace") else {
        return;
    };
    let mut cut = 0;
    for (kind, [calls, interrupted, partial]) in &counts {
        assert_eq!(*interrupted, 0, "{kind}");
        // Until it is known a few are cut; without that one in fifty is at a tenth of this rate.
        assert!(
            *partial <= 8 + calls / 500,
            "{kind}: {partial} of {calls} calls"
        );
        cut += partial;
    }
    let quality = &recorded.report()["quality"];
    assert!(
        quality["calls_cut_short"].as_u64().unwrap() >= cut,
        "{cut}: {quality}"
    );
    assert!(
        quality["calls_left_running"].as_u64().unwrap() > 100,
        "{quality}"
    );
}

/// The kernel's own samples end no call, of whatever kind, and none is left out for it.
#[test]
fn samples_of_the_kernel_end_no_call() {
    if !perf_events_work() {
        return;
    }
    let kinds = [
        "recv_timeout",
        "connect_timeout",
        "epoll_wait",
        "io_getevents",
        "semtimedop",
        "nanosleep",
        "futex",
        "getrandom",
        "dev_zero",
        "pipe_write",
        "recv_waitall",
    ];
    let Some((counts, recorded)) = count_calls("1", &kinds, "perf") else {
        return;
    };
    for (kind, [calls, interrupted, partial]) in &counts {
        assert!(*calls > 0, "{kind}");
        assert_eq!([*interrupted, *partial], [0, 0], "{kind}: of {calls}");
    }
    let quality = &recorded.report()["quality"];
    assert_eq!(quality["stops"], 0, "{quality}");
    assert!(
        quality["captures"]["sampled"].as_u64().unwrap() > 1000,
        "{quality}"
    );
}

/// A thread that only computes is stopped as ever.
#[test]
fn who_computes_is_stopped() {
    let Some(python) = any_python() else { return };
    let target = Target::start(&[&python, &program("fault_exit.py"), "--go", "return"]);
    let recorder = Recorder::attach(target.pid(), How::default());
    so_far::wait_for_stops(&recorder.path(), 50);
    let report = recorder.interrupt().expect_success().report();
    let quality = &report["quality"];
    assert_eq!(quality["calls_left_running"].as_u64(), Some(0), "{quality}");
}

/// A folder of nobody's with a setuid program of root's in it; `None`, with the reason printed,
/// where setuid programs get nothing.
fn setuid_program() -> Option<(TempDir, String)> {
    let built = compiled("setuid_spawner.c")?;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    copy_program(&built, &path);
    copy_program(TORCHSPY, &folder.path().join("torchspy"));
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4755)).unwrap();
    let path = path.to_string_lossy().into_owned();
    if !output_of(as_nobody(&path).arg("check")).status.success() {
        eprintln!(
            "skipped: no setuid program of root's can be made here (not root, or a file system mounted nosuid)"
        );
        return None;
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if scope.trim().parse().unwrap_or(0) > 0 {
        eprintln!("skipped: users may not trace their processes here (yama/ptrace_scope)");
        return None;
    }
    Some((folder, path))
}

/// Copies a program by cp(1): a descriptor of this process that it is written through may be
/// inherited by what another test starts at that moment, and what is open for writing cannot be run
/// (ETXTBSY).
pub(crate) fn copy_program(from: &str, to: &Path) {
    let mut copy = Command::new("cp");
    copy.args(["--preserve=mode", "--", from]).arg(to);
    assert!(copy.status().unwrap().success(), "{copy:?}");
}

fn as_nobody(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]);
    command
}

/// Programs that began without their privileges, of `count`, under a recorder that has none itself.
fn lost(how: &str, count: &str, pause_us: &str, options: &[&str]) -> Option<u64> {
    let (folder, path) = setuid_program()?;
    let torchspy = folder
        .path()
        .join("torchspy")
        .to_string_lossy()
        .into_owned();
    // The spawner itself is a copy that is not setuid.
    let spawner = folder.path().join("spawner");
    copy_program(&path, &spawner);
    std::fs::set_permissions(&spawner, PermissionsExt::from_mode(0o755)).unwrap();
    let mut target =
        Target::spawn(as_nobody(&spawner.to_string_lossy()).args([&*path, count, how, pause_us]));
    target.ready = target.expect("ready");
    let mut command = as_nobody(&torchspy);
    command.args([
        "record",
        "-o",
        "run.tspy",
        "--rate",
        "1000",
        "--max-stopped",
        "off",
    ]);
    command
        .args(options)
        .args(["--pid", &target.pid().to_string()]);
    let recorder = Recorder::spawn(command, folder);
    recorder.wait_for_bytes(400);
    target.tell("go");
    let lost = target.expect("lost")[0].parse().unwrap();
    let quality = recorder.finish().expect_success().report()["quality"].clone();
    assert!(quality["ticks"].as_u64().unwrap() > 100, "{quality}");
    assert!(
        quality["privileges_lost"].as_u64().unwrap() <= lost,
        "{lost}: {quality}"
    );
    Some(lost)
}

/// Forked children that work for a few milliseconds before they exec a setuid program are not
/// stopped until then.
#[test]
fn a_setuid_program_keeps_its_privileges() {
    for options in [&[][..], &["--children", "all"]] {
        for (how, pause_us) in [("fork", "3000"), ("spawn", "0")] {
            if let Some(lost) = lost(how, "300", pause_us, options) {
                assert_eq!(lost, 0, "{how} {options:?}");
            }
        }
    }
}

/// What `--children` lets in: Python, all, or nothing.
#[test]
fn children_that_run_no_python_are_not_stopped() {
    let Some(spinner) = compiled("fault_spin.c") else {
        return;
    };
    for (children, stops) in [("python", false), ("all", true)] {
        let mut target = Target::spawn(Command::new("sh").args([
            "-c",
            &format!("echo ready; read line; {spinner} 300 & wait; :"),
        ]));
        target.ready = target.expect("ready");
        let recorder = Recorder::attach(
            target.pid(),
            How {
                options: &["--children", children],
                fault: None,
            },
        );
        recorder.wait_for_bytes(300);
        target.tell("go");
        let spinning: i32 = target.expect("spinning")[0].parse().unwrap();
        match stops {
            true => so_far::wait_for_stops(&recorder.path(), 20),
            false => recorder.wait_for_segment(),
        }
        let report = recorder.interrupt().expect_success().report();
        kill(Pid::from_raw(spinning), Signal::SIGKILL).unwrap();
        let number = report["quality"]["stops"].as_u64().unwrap();
        assert_eq!(number > 20, stops, "{children}: {number} stops");
    }
}
