//! What the kernel refuses, and targets that are not what they seem: each is said in words, with
//! what to do.

use crate::faults::{
    How, Output, Recorder, TORCHSPY, Target, any_python, assert_error, compiled, output_of,
    program, run, samples_with, seconds_with,
};
use crate::so_far;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

const NOBODY: &str = "65534";

/// A Python that works until it is told to stop.
fn worker(python: &str) -> Target {
    Target::start(&[python, &program("fault_exit.py"), "--go", "return"])
}

/// torchspy as a user without rights, in a folder that is theirs; `None`, with the reason printed,
/// where that is refused.
fn as_nobody(arguments: &[&str]) -> Option<(Output, Vec<String>)> {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("torchspy");
    crate::calls::copy_program(TORCHSPY, &own);
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let user = format!("--reuid={NOBODY}");
    let mut command = Command::new("setpriv");
    command.args([
        &*user,
        "--clear-groups",
        "--no-new-privs",
        &*own.to_string_lossy(),
    ]);
    command.args(arguments).current_dir(folder.path());
    let allowed = Command::new("setpriv")
        .args([&*user, "--clear-groups", "true"])
        .stderr(Stdio::null())
        .status();
    if !allowed.is_ok_and(|status| status.success()) {
        eprintln!("skipped: setpriv may not become another user here");
        return None;
    }
    let output = output_of(&mut command);
    let left = std::fs::read_dir(folder.path()).unwrap();
    let left = left
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "torchspy")
        .collect();
    Some((output, left))
}

#[test]
fn another_users_process() {
    let Some(python) = any_python() else { return };
    let target = worker(&python);
    let pid = target.pid().to_string();
    for options in [&[][..], &["--nonblocking"]] {
        let arguments = [&["record", "-o", "run.tspy", "--pid", &pid], options].concat();
        let Some((output, left)) = as_nobody(&arguments) else {
            return;
        };
        assert_error(
            &output,
            "may not be sampled",
            &["sudo", "Slurm", "srun --overlap"],
        );
        assert_eq!(left, Vec::<String>::new());
    }
    let (output, _) = as_nobody(&["doctor", "--pid", &pid]).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let user = output
        .stdout
        .lines()
        .find(|line| line[8..].starts_with("user "))
        .unwrap();
    assert!(
        user.starts_with("no ") && user.contains(NOBODY),
        "{}",
        output.stdout
    );
    assert!(
        output.stdout.contains("hint: run torchspy as the user"),
        "{}",
        output.stdout
    );
}

/// As in a container with the usual filter: what may still be done is not refused.
#[test]
fn seccomp_denies_ptrace() {
    let (Some(python), Some(launcher)) = (any_python(), compiled("fault_seccomp.c")) else {
        return;
    };
    let filtered = |what: &str, arguments: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(&launcher);
        command
            .args([what, TORCHSPY])
            .args(arguments)
            .current_dir(folder.path());
        let output = output_of(&mut command);
        let names = std::fs::read_dir(folder.path()).unwrap().count();
        (output, names)
    };
    let target = worker(&python);
    let pid = target.pid().to_string();
    for what in ["ptrace", "all"] {
        for words in [&["--pid", &*pid][..], &["--", "sleep", "100"]] {
            let arguments = [&["record", "-o", "run.tspy"], words].concat();
            let (output, left) = filtered(what, &arguments);
            let hints = ["Docker", "--cap-add SYS_PTRACE", "Kubernetes"];
            assert_error(&output, "may not be sampled", &hints);
            assert_eq!(left, 0, "{what} {words:?}");
        }
        let (output, _) = filtered(what, &["doctor"]);
        assert_eq!(output.status.code(), Some(1), "{}", output.stdout);
        assert!(
            output.stdout.contains("no      ptrace"),
            "{}",
            output.stdout
        );
        assert!(
            output.stdout.contains("hint: Docker: docker run --cap-add"),
            "{}",
            output.stdout
        );
    }
    // Reading memory without a stop is what is left, and the hint says so.
    let (output, _) = filtered("ptrace", &["record", "-o", "run.tspy", "--pid", &pid]);
    assert!(output.stderr.contains("--nonblocking"), "{}", output.stderr);
    let mut command = Command::new(&launcher);
    command.args(["ptrace", TORCHSPY, "record", "-o", "run.tspy"]);
    command.args(["--nonblocking", "--pid", &pid]);
    let recorder = Recorder::spawn(command, tempfile::tempdir().unwrap());
    so_far::wait_for_part(&recorder.path(), "py main (");
    let recorded = recorder.interrupt().expect_success();
    let left = std::fs::read_dir(recorded.folder.path()).unwrap().count();
    assert_eq!(left, 1, "{}", recorded.messages);
    assert!(
        recorded.messages.contains("main"),
        "Python frames are read: {}",
        recorded.messages
    );
}

#[test]
fn no_such_process() {
    let folder = tempfile::tempdir().unwrap();
    let output = output_of(
        Command::new(TORCHSPY)
            .args(["record", "--pid", "4194304"])
            .current_dir(folder.path()),
    );
    assert_error(&output, "there is no process 4194304", &["ps -e"]);
    let output = run(&["doctor", "--pid", "4194304"]);
    assert_error(&output, "there is no process 4194304", &["ps -e"]);
}

/// A thread of the kernel has no memory. That is no fault of permissions.
#[test]
fn a_kernel_thread() {
    let kernel_thread = std::fs::read_to_string("/proc/2/comm");
    if !kernel_thread.is_ok_and(|name| name.trim() == "kthreadd") {
        eprintln!("skipped: no thread of the kernel is to be seen in this pid namespace");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = output_of(
        Command::new(TORCHSPY)
            .args(["record", "--pid", "2"])
            .current_dir(folder.path()),
    );
    assert_error(&output, "kernel thread", &[]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Native stacks, a word in the report, and no error.
#[test]
fn a_process_that_is_no_python() {
    let Some(spin) = compiled("fault_spin.c") else {
        return;
    };
    let mut target = Target::spawn(Command::new(&spin).arg("600"));
    target.expect("spinning");
    let recorder = Recorder::attach(target.pid(), How::default());
    so_far::wait_for_seconds(&recorder.path(), "spin_in_c", 0.4);
    // A program that has only begun may become one.
    so_far::wait_for_report(&recorder.path(), |report| {
        report["processes"][0]["note"] == "not a Python process"
    });
    let recorded = recorder.interrupt().expect_success();
    let (dump, report) = (recorded.inspect(), recorded.report());
    assert!(dump.contains("na main"), "{dump}");
    let process = &report["processes"][0];
    assert!(process["python"].is_null(), "{process}");
    assert_eq!(process["note"], "not a Python process");
    assert!(
        !recorded.messages.contains("error"),
        "{}",
        recorded.messages
    );
    let launched = run_launched(&spin);
    assert!(
        launched.messages.contains("not a Python process"),
        "{}",
        launched.messages
    );
}

fn run_launched(program: &str) -> crate::faults::Recorded {
    let command = Recorder::launch_command(&[program], How::default());
    Recorder::spawn(command, tempfile::tempdir().unwrap())
        .finish()
        .expect_success()
}

/// Another tracer that lets the threads run, as gdb does after `continue`: it keeps them, and costs
/// those samples alone.
#[test]
fn a_process_that_another_tracer_holds() {
    let (Some(python), Some(tracer)) = (any_python(), compiled("fault_tracer.c")) else {
        return;
    };
    let target = worker(&python);
    let mut tracer = Target::spawn(Command::new(&tracer).arg(target.pid().to_string()));
    tracer.expect("traced");
    let recorder = Recorder::attach(target.pid(), How::default());
    so_far::wait_for_seconds(&recorder.path(), "?? already_traced", 0.5);
    tracer.close_input();
    assert!(tracer.wait().success());
    so_far::wait_for_seconds(&recorder.path(), "py main (", 0.5);
    let recorded = recorder.interrupt().expect_success();
    let dump = recorded.inspect();
    assert!(!dump.contains("permission_denied"), "{dump}");
}

/// gdb has stopped it: it stays so, its stack is read as it is, and goes on being sampled when gdb
/// lets go.
#[test]
fn a_process_that_gdb_holds() {
    let Some(python) = any_python() else { return };
    if Command::new("gdb").arg("--version").output().is_err() {
        eprintln!("skipped: no gdb here");
        return;
    }
    let target = worker(&python);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hold.py");
    std::fs::write(&path, GDB_SCRIPT.replace("PID", &target.pid().to_string())).unwrap();
    let mut gdb = Command::new("gdb");
    gdb.args(["-q", "-nx", "-batch", "-x"])
        .arg(&path)
        .stderr(Stdio::null());
    let mut gdb = Target::spawn(&mut gdb);
    gdb.skip_to("stopped");
    let recorder = Recorder::attach(target.pid(), How::default());
    so_far::wait_for_seconds(&recorder.path(), "py main (", 0.5);
    assert!(
        target.states().iter().all(|&state| state == b't'),
        "{:?}",
        target.states()
    );
    gdb.tell("detach");
    gdb.skip_to("detached");
    assert!(gdb.wait().success());
    so_far::wait_for_dump(&recorder.path(), |dump| {
        samples_with(dump, "", "running/stopped") > 0
    });
    let recorded = recorder.interrupt().expect_success();
    assert!(
        !target
            .states()
            .iter()
            .any(|state| matches!(state, b't' | b'T'))
    );
    let dump = recorded.inspect();
    assert!(
        dump.contains("stopped/asleep") && dump.contains("running/stopped"),
        "{dump}"
    );
}

const GDB_SCRIPT: &str = r#"
import gdb
gdb.execute("attach PID")
print("stopped", flush=True)
input()
gdb.execute("detach")
print("detached", flush=True)
"#;

/// Few descriptors, of which each thread takes two or more: all threads are sampled until they end,
/// and also those that start later.
#[test]
fn few_descriptors() {
    const SCRIPT: &str = r#"
import subprocess, sys, threading
for _ in range(150):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
subprocess.run([sys.executable, "-c", """
import os, sys
go = sys.argv[1]
def spin():
    while os.path.isdir(os.path.dirname(go)) and not os.path.exists(go): sum(range(1000))
spin()
""", sys.argv[1]])
"#;
    let Some(python) = any_python() else { return };
    for limit in ["ulimit -S -n 200", "ulimit -n 200"] {
        let script = format!("{limit} && exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, TORCHSPY, "record", "-o", "run.tspy", "--"]);
        // It computes until there is a file. Where the test fails, the folder goes first.
        let folder = tempfile::tempdir().unwrap();
        let go = folder.path().join("go");
        command.args([&*python, "-c", SCRIPT]).arg(&go);
        let recorder = Recorder::spawn(command, tempfile::tempdir().unwrap());
        so_far::wait_for_dump(&recorder.path(), |dump| {
            seconds_with(dump, "py spin (") > 0.5 && seconds_with(dump, "wait (") > 150.0 * 2.0
        });
        std::fs::write(&go, "").unwrap();
        recorder.finish().expect_success();
    }
}
