//! Signals that meet a stop: none is lost, none is added, and who was stopped stays stopped.

use crate::faults::{
    How, Recorder, Target, any_python, compiled, faults_can_be_made, program, run, seconds_with,
    state_of, states, wait_until,
};
use crate::so_far;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::path::Path;

const FAST: &[&str] = &["--rate", "1000", "--max-stopped", "100"];

/// torchspy itself sends the signals, right between the steps of a stop: what the target counts is
/// what was sent there.
#[test]
fn a_signal_at_every_step_of_a_stop_is_delivered_once() {
    let Some(counter) = compiled("fault_count_signals.c") else {
        return;
    };
    if !faults_can_be_made() {
        return;
    }
    let real_time = nix::libc::SIGRTMIN();
    for point in ["chosen", "seized", "interrupted", "held", "read"] {
        let fault = format!("{point}:10:200:signal-{real_time}");
        let mut target = Target::start(&[&counter]);
        let recorder = Recorder::attach(
            target.pid(),
            How {
                options: FAST,
                fault: Some(&fault),
            },
        );
        // All were sent by then: each stop is at every point once.
        so_far::wait_for_stops(&recorder.path(), 210);
        recorder.interrupt().expect_success();
        target.close_input();
        assert_eq!(target.expect("rt"), ["200", "usr1", "0"], "{point}");
    }
}

/// A signal that stops (SIGSTOP) between the steps of a stop: the target stays stopped until
/// SIGCONT, and then runs.
#[test]
fn sigstop_at_every_step_of_a_stop_stops() {
    let Some(counter) = compiled("fault_count_signals.c") else {
        return;
    };
    if !faults_can_be_made() {
        return;
    }
    for point in ["chosen", "seized", "interrupted", "held", "read"] {
        let fault = format!("{point}:10:1:signal-{}", Signal::SIGSTOP as i32);
        let mut target = Target::start(&[&counter]);
        let recorder = Recorder::attach(
            target.pid(),
            How {
                options: FAST,
                fault: Some(&fault),
            },
        );
        wait_until("the target is stopped", || is_stopped(target.pid()));
        recorder.wait_for_bytes(400);
        assert!(stays_stopped(target.pid()), "{point}");
        target.kill(Signal::SIGCONT);
        wait_until("the target runs", || target.states().contains(&b'R'));
        let recorded = recorder.interrupt().expect_success();
        assert!(
            target.states().contains(&b'R'),
            "{point}: it runs on: {}",
            recorded.messages
        );
        target.close_input();
        assert_eq!(target.expect("rt"), ["0", "usr1", "0"], "{point}");
    }
}

/// By its threads, each stopped by the signal or, for a moment, by torchspy.
fn is_stopped(pid: i32) -> bool {
    let states = states(pid);
    !states.is_empty() && states.iter().all(|state| matches!(state, b'T' | b't'))
}

/// Whether it does nothing over many looks: no thread gets CPU time. From a stop of torchspy's back
/// into that of the signal a thread is in state R until the kernel has run it.
fn stays_stopped(pid: i32) -> bool {
    let before = cpu_ticks(pid);
    for _ in 0..200 {
        std::thread::sleep(std::time::Duration::from_millis(1));
        wait_until("it is stopped again", || is_stopped(pid));
    }
    // Stops themselves take some.
    cpu_ticks(pid) <= before + 1
}

fn cpu_ticks(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(") ").unwrap().1.split(' ').collect();
    // utime, field 14 of the line; the first here is field 3.
    fields[11].parse().unwrap()
}

/// Thousands of signals at a thousand stops a second, each one waited for.
#[test]
fn no_signal_is_lost_at_full_rate() {
    let Some(counter) = compiled("fault_signals.c") else {
        return;
    };
    let mut target = Target::start(&[&counter, "3000", "200"]);
    let recorder = Recorder::attach(
        target.pid(),
        How {
            options: FAST,
            fault: None,
        },
    );
    recorder.wait_for_bytes(100);
    target.tell("go");
    assert_eq!(
        target.expect("usr1"),
        ["3000", "3000", "rt", "3000", "3000"]
    );
    let recorded = recorder.finish().expect_success();
    assert!(target.wait().success());
    assert!(recorded.report()["quality"]["stops"].as_u64().unwrap() > 100);
}

#[test]
fn python_handlers_run_once_per_signal() {
    let Some(python) = any_python() else { return };
    let mut target = Target::start(&[&python, &program("fault_handlers.py"), "500"]);
    let recorder = Recorder::attach(
        target.pid(),
        How {
            options: FAST,
            fault: None,
        },
    );
    recorder.wait_for_bytes(100);
    target.tell("go");
    assert_eq!(target.expect("handled"), ["500", "of", "500"]);
    let recorded = recorder.finish().expect_success();
    assert!(target.wait().success());
    assert!(recorded.report()["quality"]["stops"].as_u64().unwrap() > 20);
}

/// Stopped by SIGSTOP before torchspy comes: it stays so, its stack is read, and SIGCONT works
/// during and after.
#[test]
fn a_stopped_target_is_read_and_stays_stopped() {
    let Some(python) = any_python() else { return };
    for during in [true, false] {
        let script = program("fault_stopped.py");
        let mut target = Target::start(&[&python, &script, "--seconds", "0.3"]);
        wait_until("the target is stopped", || {
            target.states().iter().all(|&state| state == b'T')
        });
        let recorder = Recorder::attach(target.pid(), How::default());
        let is_read = |stack: &str| {
            let head = stack.lines().next().unwrap_or_default();
            stack.contains("py main (") && head.contains(" stopped/")
        };
        so_far::wait_for_dump(&recorder.path(), |dump| dump.split("\n  S").any(is_read));
        assert!(stays_stopped(target.pid()));
        let recorded = if during {
            target.kill(Signal::SIGCONT);
            target.expect("continued");
            target.expect("done");
            recorder.finish()
        } else {
            let recorded = recorder.interrupt();
            wait_until("it is stopped as before", || {
                target.states().iter().all(|&state| state == b'T')
            });
            target.kill(Signal::SIGCONT);
            target.expect("continued");
            target.expect("done");
            recorded
        };
        let recorded = recorded.expect_success();
        assert!(target.wait().success());
        let dump = recorded.inspect();
        // The other thread waits all the time, and so is sampled for all of it.
        let (main_s, all_s) = ("py main (", "_bootstrap (");
        let (main_s, all_s) = (seconds_with(&dump, main_s), seconds_with(&dump, all_s));
        assert!(
            all_s > 0.0 && main_s > 0.5 * all_s,
            "{main_s} of {all_s} s: {dump}"
        );
        assert!(dump.split("\n  S").any(is_read), "{dump}");
    }
}

/// Ctrl-Z while a thread is held: everything is let go before torchspy stops, and `fg` goes on
/// recording.
#[test]
fn ctrl_z_lets_go_of_an_attached_target() {
    let Some(python) = any_python() else { return };
    let target = Target::start(&[&python, &program("fault_exit.py"), "--go", "return"]);
    let recorder = Recorder::attach(
        target.pid(),
        How {
            options: FAST,
            fault: None,
        },
    );
    let torchspy = Pid::from_raw(recorder.pid());
    let process = format!("/proc/{torchspy}");
    for _ in 0..10 {
        recorder.wait_for_a_stop(target.pid());
        recorder.kill(Signal::SIGTSTP);
        let status = waitpid(torchspy, Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert_eq!(status, WaitStatus::Stopped(torchspy, Signal::SIGTSTP));
        assert_eq!(state_of(Path::new(&process)), Some(b'T'));
        assert_eq!(
            crate::faults::tracer_of(target.pid()),
            None,
            "nothing is held"
        );
        let before = cpu_ticks(target.pid());
        wait_until("the target runs on", || {
            cpu_ticks(target.pid()) > before + 5
        });
        recorder.kill(Signal::SIGCONT);
    }
    so_far::wait_for_part(&recorder.path(), "py main (");
    let recorded = recorder.interrupt().expect_success();
    assert!(
        target
            .states()
            .iter()
            .all(|state| !matches!(state, b't' | b'T'))
    );
    assert!(seconds_with(&recorded.inspect(), "py main (") > 0.0);
    assert!(
        run(&["report", &recorded.path().to_string_lossy()])
            .stderr
            .is_empty()
    );
}

/// Ctrl-Z while a thread that was asked to stop is in vfork: it would stop when its child ends, and
/// nothing would resume it.
#[test]
fn ctrl_z_waits_for_a_thread_that_has_not_stopped_yet() {
    let Some(vfork) = compiled("fault_vfork.c") else {
        return;
    };
    if !faults_can_be_made() {
        return;
    }
    let mut target = Target::spawn(std::process::Command::new(&vfork).args(["3", "5", "60"]));
    target.expect("ready");
    // It enters a later vfork after it was chosen and before it is seized, if it gets a CPU then.
    let how = How {
        options: FAST,
        fault: Some("chosen:0:1000000:sleep-100000"),
    };
    let mut recorder = Recorder::attach(target.pid(), how);
    wait_until("it is asked to stop in vfork", || {
        let task = format!("/proc/{0}/task/{0}", target.pid());
        state_of(Path::new(&task)) == Some(b'D') && crate::faults::tracer_of(target.pid()).is_some()
    });
    recorder.kill(Signal::SIGTSTP);
    recorder.wait_for_message("not stopped: ");
    let process = format!("/proc/{}", recorder.pid());
    assert_ne!(state_of(Path::new(&process)), Some(b'T'));
    for _ in 0..4 {
        target.expect("ready");
    }
    target.expect("done");
    recorder.finish().expect_success();
}
