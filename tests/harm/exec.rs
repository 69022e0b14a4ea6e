//! A process that replaces itself with exec while other threads of it run, sampled: neither it nor
//! torchspy may hang. The kernel holds the process's cred_guard_mutex until the other threads,
//! traced ones too, have been waited for (ptrace(2), "execve(2) under ptrace").

use crate::faults::{How, Recorder, Target, compiled, run, samples_with, wait_until};
use crate::so_far;
use crate::terminal::Terminal;
use nix::sys::signal::Signal;
use std::io::Read;

/// Lives of each storm: without the rule that one stop is collected before the next is asked for,
/// the first hang came within 128.
const LIVES: &str = "200";
/// Snapshots of each storm that does not end by itself.
const SNAPSHOTS: usize = 3;
/// What a snapshot says of a process that execs meanwhile.
const WHY: &str = "replaced its program (exec)";
const ORIGINS: [&str; 2] = ["leader", "thread"];

fn storm(origin: &str) -> Option<Target> {
    let program = compiled("exec_storm.c")?;
    Some(Target::start(&[&program, LIVES, origin]))
}

/// Lets it go on to its end, which it reaches.
fn finish(mut target: Target) {
    assert_eq!(target.expect("done"), [LIVES]);
    assert!(target.wait().success());
}

#[test]
fn under_record() {
    for origin in ORIGINS {
        for rate in ["100", "1000"] {
            let Some(mut target) = endless_storm(origin) else {
                return;
            };
            let options = ["--rate", rate, "--max-stopped", "100"];
            let how = How {
                options: &options,
                fault: None,
            };
            let recorder = Recorder::attach(target.pid(), how);
            recorder.wait_for_bytes(200);
            target.tell("");
            let lives: u64 = LIVES.parse().unwrap();
            wait_until("so many lives", || life_of(target.pid()) >= lives);
            so_far::wait_for_stops(&recorder.path(), 0);
            target.tell("");
            assert!(target.expect("done")[0].parse::<u64>().unwrap() >= lives);
            assert!(target.wait().success());
            recorder.finish().expect_success();
        }
    }
}

/// One that goes on until it is told to end.
fn endless_storm(origin: &str) -> Option<Target> {
    let program = compiled("exec_storm.c")?;
    Some(Target::start(&[&program, "0", origin]))
}

/// Which life a storm is in: its third argument, which the first life lacks.
fn life_of(pid: i32) -> u64 {
    let mut line = [0; 4096];
    loop {
        // In one read: an exec between two would leave a line without its end.
        let mut file = std::fs::File::open(format!("/proc/{pid}/cmdline")).unwrap();
        let length = file.read(&mut line).unwrap();
        let command = std::str::from_utf8(&line[..length]).unwrap();
        // Empty while the exec replaces the memory that it is read from.
        let mut words = command.split_terminator('\0').skip(1);
        if words.next().is_some() {
            return words.nth(1).map_or(0, |life| life.parse().unwrap());
        }
    }
}

/// Each is made amid execs, ends before they do, and shows a stack or says why it may lack them.
#[test]
fn under_dump() {
    for origin in ORIGINS {
        let Some(mut target) = endless_storm(origin) else {
            return;
        };
        let pid = target.pid();
        target.tell("");
        for number in 0..SNAPSHOTS {
            let before = life_of(pid);
            let snapshot = run(&["dump", "--pid", &pid.to_string()]);
            let lives = life_of(pid) - before;
            let what = format!("{origin} {number}: {}{}", snapshot.stdout, snapshot.stderr);
            assert!(snapshot.status.success(), "{what}");
            assert!(lives > 0, "no exec meanwhile: {what}");
            let has_stack = ["spin (", "main ("]
                .iter()
                .any(|frame| snapshot.stdout.contains(frame));
            println!("{origin} {number}: {lives} lives, stacks of them: {has_stack}");
            assert!(has_stack || snapshot.stdout.contains(WHY), "{what}");
        }
        target.tell("");
        assert!(target.expect("done")[0].parse::<u64>().unwrap() > 0);
        assert!(target.wait().success());
    }
}

#[test]
fn under_top() {
    for origin in ORIGINS {
        let Some(mut target) = storm(origin) else {
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let options = format!("top --pid {} --rate 1000 --gpu none", target.pid());
        let Some(mut top) = Terminal::start(folder.path(), &options) else {
            return;
        };
        top.wait_for("Functions");
        target.tell("");
        finish(target);
        top.wait_for("ENDED");
        top.press(b"q");
    }
}

/// A thread that was killed while it was stopped stays a zombie until its tracer has waited for it;
/// an exec waits for that.
#[test]
fn a_thread_that_is_killed_while_it_is_stopped_holds_up_no_exec() {
    if !crate::faults::faults_can_be_made() {
        return;
    }
    let Some(mut target) = storm("leader") else {
        return;
    };
    // Each stop lasts longer than a life: the exec comes while a thread is stopped.
    let how = How {
        options: &["--rate", "1000", "--max-stopped", "100"],
        fault: Some("held:0:40:sleep-20000"),
    };
    let recorder = Recorder::attach(target.pid(), how);
    recorder.wait_for_bytes(200);
    target.tell("");
    finish(target);
    recorder.finish().expect_success();
}

/// An interrupt while the storm goes on ends the recording alone.
#[test]
fn an_interrupt_ends_the_recording_amid_execs() {
    let Some(mut target) = endless_storm("thread") else {
        return;
    };
    let how = How {
        options: &["--rate", "1000", "--max-stopped", "100"],
        fault: None,
    };
    let recorder = Recorder::attach(target.pid(), how);
    recorder.wait_for_bytes(200);
    target.tell("");
    recorder.wait_for_bytes(1000);
    recorder.kill(Signal::SIGINT);
    recorder.finish().expect_success();
    target.tell("");
    assert!(target.expect("done")[0].parse::<u64>().unwrap() > 0);
    assert!(target.wait().success());
}

/// Until it execs, what vfork made has its parent's memory, which lives on: what was opened of it
/// then is not the child's.
#[test]
fn what_was_found_between_vfork_and_exec_is_read_after_it() {
    let Some(program) = compiled("vfork_waits.c") else {
        return;
    };
    let mut target = Target::start(&[&program]);
    let child = target.ready[0].parse().unwrap();
    let recorder = Recorder::attach(child, How::default());
    recorder.wait_for_segment();
    target.tell("");
    // It reads before the exec, and computes after it.
    so_far::wait_for_dump(&recorder.path(), |dump| {
        let running = samples_with(dump, "", "running/stopped");
        let found = samples_with(dump, "compute_after_exec", "running/stopped");
        found > 20 && found > running / 2
    });
    target.close_input();
    recorder.finish().expect_success();
    assert!(target.wait().success());
}
