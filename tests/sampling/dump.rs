//! `torchspy dump` on real interpreters that hang: who waits for what, which thread holds it, and
//! that no Python frame is missing which pystack or py-spy shows.

use crate::faults::{TORCHSPY, Target, any_python, compiled, program, python, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

const VERSIONS: [&str; 4] = ["3.10", "3.11", "3.12", "3.13"];

fn dump(options: &[&str], pid: i32) -> Output {
    Command::new(TORCHSPY)
        .args(["dump", "--pid", &pid.to_string()])
        .args(options)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The first look, as JSON.
fn look(options: &[&str], pid: i32) -> Value {
    let output = dump(&[options, &["--json"]].concat(), pid);
    let value: Value = serde_json::from_str(&text(&output)).unwrap();
    assert_eq!(value["schema"], 1);
    value["looks"][0].clone()
}

fn threads(look: &Value) -> &Vec<Value> {
    look["processes"][0]["threads"].as_array().unwrap()
}

/// The line of hangs.py that carries a mark.
fn marked(mark: &str) -> u64 {
    let text = std::fs::read_to_string(program("hangs.py")).unwrap();
    let wanted = format!("# mark: {mark}");
    let line = text.lines().position(|line| line.ends_with(&wanted));
    line.unwrap() as u64 + 1
}

/// The thread that is at a marked line in hangs.py.
fn at<'l>(look: &'l Value, mark: &str) -> &'l Value {
    let line = marked(mark);
    let found = threads(look).iter().find(|thread| {
        let frames = thread["frames"].as_array().unwrap();
        frames.iter().any(|frame| {
            frame["line"] == line && frame["file"].as_str().unwrap().ends_with("/hangs.py")
        })
    });
    found.unwrap_or_else(|| panic!("no thread at {mark}: {look:#}"))
}

fn hanging(version: &str, mode: &str) -> Option<Target> {
    let python = python(version)?;
    Some(Target::start(&[&python, &program("hangs.py"), mode]))
}

#[test]
fn a_deadlock_names_both_locks_and_who_holds_them() {
    for version in VERSIONS {
        let Some(target) = hanging(version, "deadlock") else {
            continue;
        };
        // Before, they wait for each other in the same functions.
        let lines = [marked("forward"), marked("backward")];
        wait_until("both threads wait", || {
            let look = look(&[], target.pid());
            let waits = threads(&look).iter().filter(|thread| {
                thread["waits_for"]["kind"] == "lock"
                    && lines.iter().any(|line| thread["at"]["line"] == *line)
            });
            waits.count() == 2
        });
        let look = look(&[], target.pid());
        let (forward, backward) = (at(&look, "forward"), at(&look, "backward"));
        for thread in [forward, backward] {
            assert_eq!(thread["state"], "sleeping", "{thread:#}");
            assert_eq!(thread["syscall"], "futex");
            assert_eq!(thread["gil"], false);
        }
        assert_eq!(forward["python_name"], "forward", "{version}");
        // Without an exception table it cannot be told what a `with` block holds.
        if version == "3.10" {
            continue;
        }
        let wait = &forward["waits_for"];
        assert_eq!(
            wait["lock"]["kind"], "threading.RLock",
            "{version} {wait:#}"
        );
        assert_eq!(wait["owner"]["tid"], backward["tid"], "{version}");
        let wait = &backward["waits_for"];
        assert_eq!(wait["lock"]["kind"], "threading.Lock", "{version} {wait:#}");
        assert_eq!(wait["owner"]["tid"], forward["tid"], "{version}");
        assert_eq!(look["deadlocks"].as_array().unwrap().len(), 1, "{version}");
        let shown = text(&dump(&[], target.pid()));
        assert!(shown.contains("DEADLOCK of 2 threads"), "{shown}");
    }
}

#[test]
fn who_holds_the_gil_in_c_is_named() {
    for version in VERSIONS {
        let Some(target) = hanging(version, "gil") else {
            continue;
        };
        let mut seen = Value::Null;
        wait_until("the main thread waits for the GIL", || {
            seen = look(&[], target.pid());
            let holder = &seen["processes"][0]["gil_holder"];
            let holds = holder.is_i64() && *holder != target.pid();
            // It may have looked up before the other took the GIL, too.
            let waits = threads(&seen).iter().any(|thread| {
                let wait = &thread["waits_for"];
                thread["tid"] == target.pid()
                    && wait["kind"] == "gil"
                    && wait["owner"]["tid"].is_i64()
            });
            // It has the GIL before it is in C, too, and while it begins.
            let line = marked("hold");
            let in_c = threads(&seen).iter().any(|thread| {
                let mut frames = thread["frames"].as_array().unwrap().iter();
                thread["tid"] == *holder
                    && thread["frames"][0]["python"] == false
                    && frames.any(|frame| frame["line"] == line)
            });
            holds && waits && in_c
        });
        let holder = at(&seen, "hold");
        assert_eq!(
            seen["processes"][0]["gil_holder"], holder["tid"],
            "{version}"
        );
        assert_eq!(holder["gil"], true, "{version}");
        assert_eq!(holder["capture"], "stopped", "{version}");
        let main = threads(&seen)
            .iter()
            .find(|each| each["tid"] == target.pid());
        let owner = &main.unwrap()["waits_for"]["owner"]["tid"];
        assert_eq!(owner, &holder["tid"], "{version}");
    }
}

#[test]
fn variables_are_shown_and_a_hang_does_not_move() {
    for version in VERSIONS {
        let Some(target) = hanging(version, "read") else {
            continue;
        };
        // The thread that reads stdin, too: it may be late.
        wait_until("all read", || {
            let look = look(&[], target.pid());
            let mut threads = threads(&look).iter();
            threads.all(|thread| thread["syscall"] == "read")
        });
        let look = look(&["--locals"], target.pid());
        let main = at(&look, "read");
        assert_eq!(main["waits_for"]["kind"], "io", "{version}");
        assert_eq!(main["python_name"], "MainThread", "{version}");
        let frames = main["frames"].as_array().unwrap();
        let frame = frames.iter().find(|frame| frame["python"] == true).unwrap();
        let shown: Vec<String> = frame["locals"]
            .as_array()
            .unwrap()
            .iter()
            .map(|local| format!("{} = {}", local["name"], local["value"]).replace('"', ""))
            .collect();
        for wanted in [
            "counted = 1040",
            "name = \\train\\",
            "rate = 0.5",
            "missing = None",
            "numbers = list of 3",
            "inner = <function>",
        ] {
            assert!(
                shown.iter().any(|line| line == wanted),
                "{version} {wanted}: {shown:#?}"
            );
        }
        let output = dump(
            &["--json", "--repeat", "2", "--every", "600ms"],
            target.pid(),
        );
        let value: Value = serde_json::from_str(&text(&output)).unwrap();
        assert_eq!(value["looks"].as_array().unwrap().len(), 2);
        assert_eq!(value["moved"]["hang"], true, "{version}");
        let threads = value["moved"]["threads"].as_array().unwrap();
        assert!(
            threads.iter().all(|thread| thread["moves"] == 0),
            "{version}"
        );
        assert!(
            threads.iter().any(|thread| thread["ran"] == false),
            "{version}"
        );
    }
}

#[test]
fn secrets_among_variables_are_shown_only_where_that_is_asked_for() {
    let Some(python) = any_python() else { return };
    // Backwards: the command line shows this source.
    let script = "import os, sys\n\
        def work(token, key, epoch, limit):\n\
        \x20   print('ready', os.getpid(), flush=True)\n    sys.stdin.readline()\n\
        work('2retnuh2retnuh'[::-1], 'ELPMAXE7NNDOFSOIAIKA'[::-1], 'first', 7)\n";
    let target = Target::start(&[&python, "-c", script, "--password", "opensesame"]);
    let of = |options: &[&str]| text(&dump(options, target.pid()));
    // What moves while it is read shows no variables.
    wait_until("it reads", || {
        threads(&look(&[], target.pid()))[0]["syscall"] == "read"
    });
    for options in [&["--locals"][..], &["--locals", "--json"]] {
        let (hidden, shown) = (of(options), of(&[options, &["--no-redact"]].concat()));
        for secret in ["hunter2hunter2", "IAIOSFODNN7EXAMPLE", "opensesame"] {
            assert!(!hidden.contains(secret), "{hidden}");
            assert!(shown.contains(secret), "{shown}");
        }
        assert!(
            hidden.contains("<redacted>") && hidden.contains("first"),
            "{hidden}"
        );
        assert!(!shown.contains("<redacted>"), "{shown}");
    }
}

/// The one frame at a mark that a thread has.
fn frame<'l>(thread: &'l Value, mark: &str) -> &'l Value {
    let line = marked(mark);
    let mut frames = thread["frames"].as_array().unwrap().iter();
    frames.find(|frame| frame["line"] == line).unwrap()
}

#[test]
fn who_waits_for_a_signal_does_not_hold_its_lock() {
    for version in VERSIONS {
        let Some(target) = hanging(version, "condition") else {
            continue;
        };
        let mut seen = Value::Null;
        wait_until("it waits for the lock", || {
            seen = look(&[], target.pid());
            let line = marked("take");
            // Who waits for the GIL is in a futex, too.
            threads(&seen).iter().any(|thread| {
                thread["at"]["line"] == line
                    && thread["syscall"] == "futex"
                    && thread["waits_for"]["kind"] == "lock"
            })
        });
        let wait = &at(&seen, "take")["waits_for"];
        assert_eq!(wait["owner"], Value::Null, "{version}: {wait:#}");
        assert_eq!(
            wait["lock"]["kind"], "threading.Lock",
            "{version}: {wait:#}"
        );
        assert_eq!(wait["lock"]["name"], "mutex", "{version}: {wait:#}");
        let listener = at(&seen, "listen");
        let of_signal = &listener["waits_for"]["lock"];
        assert_eq!(*of_signal, Value::Null, "{version}: {listener:#}");
        assert_eq!(seen["deadlocks"].as_array().unwrap().len(), 0);
    }
}

#[test]
fn threads_that_wait_for_each_others_end_are_a_deadlock() {
    for version in VERSIONS {
        let Some(target) = hanging(version, "join") else {
            continue;
        };
        let mut seen = Value::Null;
        wait_until("both wait", || {
            seen = look(&[], target.pid());
            seen["deadlocks"].as_array().unwrap().len() == 1
        });
        let process = &seen["processes"][0];
        let (first, second) = (threads_of(process, "first"), threads_of(process, "second"));
        for (thread, other) in [(first, second), (second, first)] {
            let wait = &thread["waits_for"];
            assert_eq!(
                wait["lock"]["name"], other["python_name"],
                "{version}: {wait:#}"
            );
            assert_eq!(wait["owner"]["tid"], other["tid"], "{version}: {wait:#}");
        }
        let shown = text(&dump(&[], target.pid()));
        assert!(
            shown.contains("waits for the end of thread \"second\""),
            "{shown}"
        );
    }
}

/// The thread that waits for a mutex of C, and the one that has it, by their tids out here.
fn check_mutex(look: &Value, process: &Value) {
    let holder = threads_of(process, "hold");
    let waiter = threads_of(process, "wait");
    assert_eq!(
        waiter["waits_for"]["lock"]["kind"], "pthread mutex",
        "{look:#}"
    );
    assert_eq!(
        waiter["waits_for"]["owner"]["tid"], holder["tid"],
        "{look:#}"
    );
}

fn threads_of<'l>(process: &'l Value, name: &str) -> &'l Value {
    let mut threads = process["threads"].as_array().unwrap().iter();
    threads
        .find(|thread| thread["python_name"] == name)
        .unwrap()
}

fn wait_for_mutex(pid: i32) -> Value {
    let mut seen = Value::Null;
    wait_until("it waits for the mutex", || {
        seen = look(&["--tree"], pid);
        let processes = seen["processes"].as_array().unwrap().iter();
        let mut threads = processes.flat_map(|each| each["threads"].as_array().unwrap());
        // Of the interpreter's own mutexes the holder is known, too.
        threads.any(|thread| {
            thread["waits_for"]["owner"]["known_by"] == "the mutex"
                && thread["at"]["line"] == marked("mutex waiter")
        })
    });
    seen
}

#[test]
fn the_holder_of_a_mutex_of_c_is_named() {
    let Some(target) = hanging("3.11", "mutex") else {
        return;
    };
    let seen = wait_for_mutex(target.pid());
    check_mutex(&seen, &seen["processes"][0]);
}

/// There the mutex names its holder by another tid than the one it has out here.
#[test]
fn the_holder_of_a_mutex_in_a_container_is_named() {
    let Some(python) = any_python() else { return };
    let words = ["unshare", "--pid", "--fork", "--kill-child"];
    let allowed = Command::new(words[0])
        .args(&words[1..])
        .arg("true")
        .output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        println!("skipped: no pid namespace may be made here");
        return;
    }
    let program = program("hangs.py");
    let target = Target::start(&[&words[..], &[&python, &program, "mutex"]].concat());
    assert_eq!(target.ready, ["1"], "it is the first of its namespace");
    let seen = wait_for_mutex(target.pid());
    let processes = seen["processes"].as_array().unwrap();
    let inner = processes.iter().find(|each| each["python"] != Value::Null);
    check_mutex(&seen, inner.unwrap());
}

#[test]
fn variables_of_functions_that_stand_still_are_shown_while_others_run() {
    for version in VERSIONS {
        let Some(target) = hanging(version, "busy") else {
            continue;
        };
        let mut moved = Value::Null;
        wait_until("the innermost function moves between two reads", || {
            let look = look(&["--locals"], target.pid());
            // It says that it is ready a line before.
            let line = marked("busy");
            let found = threads(&look).iter().find(|thread| {
                let mut frames = thread["frames"].as_array().unwrap().iter();
                thread["moved_frames"] == 1 && frames.any(|frame| frame["line"] == line)
            });
            moved = found.cloned().unwrap_or_default();
            let frames = moved["frames"].as_array();
            frames.is_some_and(|frames| frames.iter().any(|frame| frame["function"] == "spin"))
        });
        assert_eq!(moved["frames"][0]["locals"], Value::Null, "{moved:#}");
        let shown = frame(&moved, "busy")["locals"].to_string();
        assert!(shown.contains("1040"), "{version}: {moved:#}");
        assert_eq!(
            look(&[], target.pid())["processes"][0]["threads"][0]["frames"][0]["locals"],
            Value::Null
        );
    }
}

#[test]
fn nothing_of_the_target_acts_on_the_terminal() {
    let Some(target) = hanging("3.11", "strange") else {
        return;
    };
    wait_until("its thread runs that code", || {
        text(&dump(&[], target.pid())).contains("strange.py")
    });
    for options in [
        &["--locals"][..],
        &["--locals", "--json"],
        &["--repeat", "2", "--every", "10ms"],
    ] {
        let shown = text(&dump(options, target.pid()));
        assert!(shown.contains("strange.py"), "{shown}");
        let acts = |each: char| each != '\n' && (each.is_control() || each == '\u{202e}');
        assert!(!shown.contains(acts), "{options:?}: {shown:?}");
    }
}

#[test]
fn a_thread_in_uninterruptible_sleep_is_shown_with_where_it_is_in_the_kernel() {
    let Some(vfork) = compiled("fault_vfork.c") else {
        return;
    };
    let mut target = Target::spawn(Command::new(&vfork).args(["100", "1"]));
    target.expect("ready");
    wait_until("it is in state D", || target.states().contains(&b'D'));
    let look = look(&[], target.pid());
    let main = &threads(&look)[0];
    assert_eq!(main["state"], "uninterruptible", "{main:#}");
    let stack = main["kernel_stack"].to_string();
    assert!(stack.contains("vfork"), "{main:#}");
    let shown = text(&dump(&[], target.pid()));
    assert!(shown.contains("in uninterruptible sleep (D)"), "{shown}");
}

/// Their locks are no semaphores any more, and are not followed.
#[test]
fn the_newest_interpreters_show_frames_and_variables() {
    for version in ["3.14", "3.15"] {
        let Some(python) = crate::python_target::Python::find(version) else {
            continue;
        };
        let mut target = python.start(Path::new(&program("hangs.py")), &["read"]);
        target.ready();
        let line = marked("read");
        let mut frame = Value::Null;
        wait_until("it reads", || {
            let look = look(&["--locals"], target.pid());
            let mut threads = threads(&look).iter();
            let reader =
                threads.find(|each| each["syscall"] == "read" && each["at"]["line"] == line);
            let Some(reader) = reader else { return false };
            let mut frames = reader["frames"].as_array().unwrap().iter();
            frame = frames
                .find(|frame| frame["python"] == true)
                .unwrap()
                .clone();
            true
        });
        let shown = frame["locals"].to_string();
        assert!(
            shown.contains("1040") && shown.contains("list of 3"),
            "{version}: {frame:#}"
        );
    }
}

#[test]
fn a_loop_that_computes_moves() {
    let Some(python) = any_python() else { return };
    // It ends by itself, whatever becomes of the test.
    let code = "import signal\nsignal.alarm(300)\nprint('ready', flush=True)\nn = 0\nwhile True:\n    n += 1\n    n -= 1\n    n += 2\n    n -= 2\n    n += 3\n    n -= 3\n";
    let target = Target::start(&[&python, "-c", code]);
    // One that gets no CPU in between does not move.
    wait_until("it moves", || {
        let output = dump(
            &["--tree", "--json", "--repeat", "20", "--every", "5ms"],
            target.pid(),
        );
        let value: Value = serde_json::from_str(&text(&output)).unwrap();
        let threads = value["moved"]["threads"].as_array().unwrap();
        let moves = threads.iter().filter_map(|thread| thread["moves"].as_u64());
        let moved = moves.max() > Some(0);
        assert!(
            !moved || value["moved"]["hang"] == false,
            "{:#}",
            value["moved"]
        );
        moved
    });
}

#[test]
fn a_stopped_process_is_read_and_says_so() {
    let Some(target) = hanging("3.11", "read") else {
        return;
    };
    wait_until("it reads", || {
        let look = look(&[], target.pid());
        threads(&look)[0]["syscall"] == "read"
    });
    target.kill(Signal::SIGSTOP);
    wait_until("it stands", || {
        target.states().iter().all(|state| *state == b'T')
    });
    let look = look(&[], target.pid());
    let main = at(&look, "read");
    assert_eq!(main["state"], "stopped", "{main:#}");
    assert!(text(&dump(&[], target.pid())).contains("stopped (SIGSTOP"));
    target.kill(Signal::SIGCONT);
}

/// A program that sleeps, and is no shell any more.
fn sleeper() -> Target {
    let target = Target::start(&["sh", "-c", "echo ready; exec sleep 300"]);
    let name = format!("/proc/{}/comm", target.pid());
    wait_until("it sleeps", || {
        std::fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n")
            && target.states() == [b'S']
    });
    target
}

/// A dump that goes on, when its first look is shown, with the first line of that.
fn looking_again(every: &str, pid: i32) -> (Child, BufReader<ChildStdout>, String) {
    let mut looking = Command::new(TORCHSPY)
        .args(["dump", "--repeat", "100", "--every", every, "--pid"])
        .arg(pid.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut shown = BufReader::new(looking.stdout.take().unwrap());
    let mut line = String::new();
    shown.read_line(&mut line).unwrap();
    (looking, shown, line)
}

#[test]
fn a_target_that_ends_between_looks_loses_nothing_that_was_seen() {
    let target = sleeper();
    // All looks together take longer than anybody waits for a CPU.
    let (looking, mut shown, line) = looking_again("500ms", target.pid());
    assert!(line.starts_with("1 thread"), "{line}");
    drop(target);
    let mut rest = String::new();
    shown.read_to_string(&mut rest).unwrap();
    let output = looking.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("no more snapshots"),
        "{said}"
    );
    assert!(!rest.contains("hang"), "{rest}");
}

#[test]
fn waits_that_end_by_themselves_are_no_deadlock() {
    // In 3.10 no holder is known.
    for version in ["3.11", "3.12", "3.13"] {
        let Some(python) = python(version) else {
            continue;
        };
        let code = "import signal, threading\nsignal.alarm(300)\na, b = threading.Lock(), threading.Lock()\n\
                    both = threading.Barrier(2)\n\
                    def take(first, second):\n    with first:\n        both.wait()\n        second.acquire(timeout=250)\n\
                    for pair in ((a, b), (b, a)):\n    threading.Thread(target=take, args=pair).start()\n\
                    print('ready', flush=True)\n";
        let target = Target::start(&[&python, "-c", code]);
        let waiting = |look: &Value| {
            let waits = threads(look).iter().filter(|thread| {
                thread["waits_for"]["lock"]["timed"] == true
                    && thread["waits_for"]["owner"]["tid"].is_number()
            });
            waits.count()
        };
        wait_until("both threads wait for what the other has", || {
            waiting(&look(&[], target.pid())) == 2
        });
        let look = look(&[], target.pid());
        assert_eq!(waiting(&look), 2, "{version}: {look:#}");
        assert_eq!(
            look["deadlocks"],
            serde_json::json!([]),
            "{version}: {look:#}"
        );
        let shown = text(&dump(&[], target.pid()));
        assert!(!shown.contains("DEADLOCK"), "{shown}");
        assert!(shown.contains("for a time at most"), "{shown}");
    }
}

/// Main goes from computing to sleeping a thousand times a second while other threads are read.
#[test]
fn who_holds_the_gil_holds_it_where_it_is_shown() {
    for version in VERSIONS {
        let Some(python) = python(version) else {
            continue;
        };
        let code = "import signal, threading, time\nsignal.alarm(300)\n\
                    for _ in range(40):\n    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()\n\
                    print('ready', flush=True)\nwhile True:\n    sum(range(20000))\n    time.sleep(0.001)\n";
        let target = Target::start(&[&python, "-c", code]);
        let mut held = 0;
        for _ in 0..15 {
            let look = look(&[], target.pid());
            let holder = &look["processes"][0]["gil_holder"];
            let Some(holder) = holder.as_i64() else {
                continue;
            };
            held += 1;
            let thread = threads(&look).iter().find(|thread| thread["tid"] == holder);
            let thread = thread.unwrap();
            assert_eq!(thread["gil"], true, "{version}: {thread:#}");
            assert_ne!(
                thread["syscall"], "clock_nanosleep",
                "{version}: {thread:#}"
            );
        }
        println!("{version}: the GIL was held at {held} of 15 looks");
    }
}

#[test]
fn what_is_often_at_one_line_does_not_hang() {
    let Some(python) = any_python() else { return };
    let code = "import signal, time\nsignal.alarm(300)\nprint('ready', flush=True)\nwhile True: time.sleep(0.02)\n";
    let target = Target::start(&[&python, "-c", code]);
    // For longer than it waits for a CPU.
    let options = ["--repeat", "2", "--every", "5s"];
    let output = dump(&[&options[..], &["--json"]].concat(), target.pid());
    let value: Value = serde_json::from_str(&text(&output)).unwrap();
    assert_eq!(value["moved"]["threads"][0]["ran"], true);
    assert_ne!(value["moved"]["hang"], true, "{:#}", value["moved"]);
    let shown = text(&dump(&options, target.pid()));
    assert!(!shown.contains("moved or ran: a hang"), "{shown}");
}

#[test]
fn a_child_that_nobody_waited_for_is_named() {
    let Some(python) = any_python() else { return };
    let code = "import os, signal, time\nsignal.alarm(300)\nchild = os.fork()\n\
                if child == 0: os._exit(1)\n\
                os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\n\
                print('ready', flush=True)\ntime.sleep(300)\n";
    let target = Target::start(&[&python, "-c", code]);
    let shown = text(&dump(&["--tree"], target.pid()));
    assert!(shown.contains("is a zombie"), "{shown}");
}

#[test]
fn an_interrupt_between_looks_loses_none() {
    let target = sleeper();
    let (looking, mut shown, _) = looking_again("1h", target.pid());
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(looking.id() as i32),
        Signal::SIGINT,
    )
    .unwrap();
    let mut rest = String::new();
    shown.read_to_string(&mut rest).unwrap();
    let output = looking.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("interrupted after 1 snapshot"),
        "{said}"
    );
}

#[test]
fn rules_of_the_users_own_say_what_is_waited_for() {
    let Some(target) =
        any_python().map(|python| Target::start(&[&python, &program("hangs.py"), "condition"]))
    else {
        return;
    };
    let rules = tempfile::NamedTempFile::new().unwrap();
    let row = "[[python]]\nfile = \"hangs.py\"\nfunction = \"take\"\nwait = \"loader\"\n";
    std::fs::write(rules.path(), row).unwrap();
    let given = ["--rules", rules.path().to_str().unwrap()];
    for (options, kind) in [(&[][..], "lock"), (&given, "input_queue")] {
        wait_until("the taker waits", || {
            let look = look(options, target.pid());
            let taker = threads(&look)
                .iter()
                .find(|thread| thread["at"]["line"] == marked("take"));
            taker.is_some_and(|thread| thread["waits_for"]["kind"] == kind)
        });
    }
}

#[test]
fn errors_say_what_to_do() {
    // No pid is as large (PID_MAX_LIMIT).
    let gone = dump(&[], 1 << 22);
    let said = String::from_utf8_lossy(&gone.stderr).into_owned();
    assert!(!gone.status.success() && gone.stdout.is_empty());
    assert!(
        said.contains("error: there is no process") && said.contains("hint:"),
        "{said}"
    );
    for arguments in [
        &["dump"][..],
        &["dump", "--pid", "1", "--every", "soon", "--repeat", "2"],
        &["dump", "--pid", "1", "--every", "1s"],
        &["dump", "--pid", "1", "--repeat", "0"],
        &["dump", "--pid", "1", "--repeat", "101"],
    ] {
        let output = Command::new(TORCHSPY).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("error:") && said.contains("hint:"), "{said}");
    }
}
