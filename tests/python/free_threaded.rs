//! Pythons without the GIL: what threads wait for instead.

use crate::faults::{How, Recorder, wait_until};
use crate::on_each_engine;
use crate::python_target::Python;
use crate::stack_case::{dump, python_frames, samples};
use serde_json::Value;
use torchspy::python::threads::{GilState, read_gil_holder, read_threads};
use torchspy::recording::reader::Recording;

const VERSIONS: [&str; 2] = ["3.13t", "3.14t"];

/// Threads that stop each other: the collector stops all others; writers of one dictionary lock it.
const WAITS: &str = "
import gc, sys, threading

def spin():
    while True:
        for i in range(1000): pass

def collect():
    junk = [[i] for i in range(300000)]
    while True: gc.collect()

source = {str(i): i for i in range(300000)}
shared = {}

def write():
    while True: shared['x'] = 1

def update():
    while True: shared.update(source)

for function in {'pause': (spin, spin, collect), 'object': (write, write, update)}[sys.argv[1]]:
    threading.Thread(target=function, daemon=True, name=function.__name__).start()
print('ready', flush=True)
sys.stdin.readline()
";

/// What of `threads` waits like this.
fn waits<'t>(threads: &'t [Value], what: &str) -> Vec<&'t Value> {
    let is_it = |thread: &&Value| thread["waits_for"]["what"].as_str() == Some(what);
    threads.iter().filter(is_it).collect()
}

fn a_wait_is_found(mode: &str, what: &str, functions: &[&str]) {
    for version in VERSIONS {
        let Some(python) = Python::find(version) else {
            continue;
        };
        let mut target = python.start_source(WAITS, &[mode]);
        target.ready();
        wait_until(what, || {
            let threads = dump(target.pid(), &[]);
            for thread in &threads {
                assert!(thread["gil"].is_null(), "{version}: {thread:#}");
                assert_ne!(thread["waits_for"]["kind"], "gil", "{version}: {thread:#}");
            }
            let waiting = waits(&threads, what);
            // Others may still be on their way to their functions.
            waiting.iter().any(|thread| {
                assert_eq!(thread["waits_for"]["kind"], "lock", "{thread:#}");
                let frames = python_frames(thread);
                frames
                    .first()
                    .is_some_and(|frame| functions.contains(&frame.0.as_str()))
            })
        });
    }
}

#[test]
fn a_pause_of_all_threads_is_named() {
    let functions = ["spin", "collect"];
    a_wait_is_found("pause", "the end of a stop-the-world pause", &functions);
}

#[test]
fn the_lock_of_an_object_is_named() {
    let what = "a shared object, locked while another thread uses it";
    a_wait_is_found("object", what, &["write", "update"]);
}

/// A thread that computes alone.
const SPIN: &str = "
import os, sys
if len(sys.argv) > 1 and '-X' not in sys.orig_argv:
    os.execv(sys.executable, [sys.executable, '-X', 'gil=' + sys.argv[1], *sys.argv])
print('ready', flush=True)
while True: pass
";

on_each_engine!(the_gil_is_there_only_where_it_is_asked_for);

fn the_gil_is_there_only_where_it_is_asked_for(engine: &str) {
    for version in VERSIONS {
        for (argument, has_gil) in [(&[][..], false), (&["0"], false), (&["1"], true)] {
            let Some(python) = Python::find(version) else {
                continue;
            };
            let mut target = python.start_source(SPIN, argument);
            target.ready();
            let interpreter = target.discover().unwrap();
            assert!(interpreter.free_threaded, "{version}");
            let threads = read_threads(&interpreter, &target.memory()).unwrap();
            let expected = match has_gil {
                true => GilState::HeldBy(threads[0].state_address),
                false => GilState::Disabled,
            };
            // It gives the GIL up to write "ready", and may still be in that call.
            wait_until("it has the GIL, or there is none", || {
                let memory = target.memory();
                read_gil_holder(&interpreter, threads[0].interpreter, &memory) == expected
            });
            let gil = dump(target.pid(), &[])[0]["gil"].take();
            assert_eq!(gil.as_bool(), has_gil.then_some(true), "{version}");
            // Without a GIL each thread may run Python code at any time.
            let how = How {
                options: &["--gil", "--engine", engine],
                fault: None,
            };
            let recorder = Recorder::attach(target.pid(), how);
            recorder.wait_for_segment();
            let recorded = recorder.interrupt().expect_success();
            let recording = Recording::read(&recorded.path()).unwrap();
            let stacks = samples(&recording);
            assert!(stacks.iter().any(|stack| !stack.frames.is_empty()));
        }
    }
}
