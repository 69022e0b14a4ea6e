//! What the binary records of programs that stand at known places, against gdb and pystack.

use crate::on_each_engine;
use crate::python_target::Python;
use crate::stack_peers::{Compared, Inspected, Peers, wait_until_still};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/stack_cases.py");
const PLACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/places.py");

fn places_of(name: &str, engine: &str) {
    let Some(python) = Python::find(name) else {
        return;
    };
    let mut target = python.start(Path::new(PLACES), &["threads"]);
    target.ready();
    wait_until_still(target.pid());
    // The main thread, the six places, and the two threads that `lock` starts.
    let recorded = Inspected::record(target.pid(), 9, engine);
    let peers = Peers::ask(target.pid(), target.root());
    let compared = peers.compare(target.pid(), &recorded);
    println!("{name}, {engine}: {compared:?}");
    // In Debian's 3.15 a sleeper's register is missing: perf, which stops none, has to guess.
    let guessed = usize::from(name == "3.15" && engine == "perf");
    check_scope(&peers, compared, [9, 0, guessed], 250);
}

/// The threads of every case of stack_cases.py: some 160.
fn cases_of(name: &str, engine: &str) {
    let Some(python) = Python::find(name) else {
        return;
    };
    let mut target = python.start(Path::new(CASES), &[]);
    let threads = target.ready().len() + 1;
    wait_until_still(target.pid());
    let recorded = Inspected::record(target.pid(), threads, engine);
    // pystack leaves out names that are not ASCII.
    let peers = Peers::ask_gdb(target.pid(), target.root());
    let compared = peers.compare(target.pid(), &recorded);
    println!("cases of {name}, {engine}: {compared:?}");
    check_scope(&peers, compared, [threads, 0, 0], 1000);
}

/// A comparison that compared nothing, or too little, has not been made: of the threads,
/// `generated` at most stand in code that has no unwind information, and `guessed` stacks are not
/// compared.
fn check_scope(
    peers: &Peers,
    compared: Compared,
    [threads, generated, guessed]: [usize; 3],
    python_frames: usize,
) {
    if peers.has_gdb() {
        assert!(compared.beyond_gdb <= generated, "{compared:?}");
        let threads = threads - compared.beyond_gdb - guessed;
        assert!(compared.native_stacks >= threads, "{compared:?}");
        assert!(compared.native_frames >= 5 * threads, "{compared:?}");
        assert!(compared.native_names >= threads, "{compared:?}");
    }
    if peers.has_pystack() {
        assert_eq!(peers.python_threads(), threads);
        assert!(compared.python_stacks >= threads, "{compared:?}");
        assert!(compared.python_frames >= python_frames, "{compared:?}");
    }
}

on_each_engine!(cases_of:
    cases_of_3_10 "3.10",
    cases_of_3_11 "3.11",
    cases_of_3_12 "3.12",
    cases_of_3_13 "3.13",
    cases_of_3_14 "3.14",
    cases_of_3_15 "3.15",
    cases_of_3_13t "3.13t",
    cases_of_3_14t "3.14t",
);

on_each_engine!(places_of:
    places_of_3_10 "3.10",
    places_of_3_11 "3.11",
    places_of_3_12 "3.12",
    places_of_3_13 "3.13",
    places_of_3_14 "3.14",
    places_of_3_15 "3.15",
    places_of_3_13t "3.13t",
    places_of_3_14t "3.14t",
    places_of_debians_static_python "debian",
);

#[test]
fn places_of_torch() {
    let Some(path) = crate::native_live::torch_python() else {
        return;
    };
    let python = Python {
        path: path.to_string_lossy().into_owned(),
        root: None,
    };
    let mut target = python.start(Path::new(PLACES), &["torch"]);
    target.ready();
    // Its main thread, which may be the one that says so, waits for a batch then: in poll(2).
    target.wait_in_call(target.pid() as u64, &["7 "]);
    let worker = child_of(target.pid());
    wait_until_still(worker);
    // The threads compute: SIGSTOP lets all tools see them at the same instruction. Registers of a
    // stopped thread are there only for ptrace: with perf some of these stacks rest on a guess.
    kill(Pid::from_raw(target.pid()), Signal::SIGSTOP).unwrap();
    wait_until_still(target.pid());
    let recorded = Inspected::record(target.pid(), 7, "ptrace");
    for place in [
        "place_aten",
        "place_conv",
        "backward",
        "place_numpy",
        "place_torch",
    ] {
        assert!(
            recorded.text.contains(&format!("py {place} ("))
                || recorded.text.contains(&format!(".{place} (")),
            "{place}:\n{}",
            recorded.text
        );
    }
    let peers = Peers::ask(target.pid(), target.root());
    let compared = peers.compare(target.pid(), &recorded);
    println!("torch: {compared:?}");
    // The main thread, the four places, and the thread that feeds the worker its indices. What
    // oneDNN and MKL generate depends on the CPU: products, convolutions and their backward.
    check_scope(&peers, compared, [6, 3, 0], 35);
    let peers = Peers::ask(worker, target.root());
    let compared = peers.compare(worker, &recorded);
    println!("DataLoader worker: {compared:?}");
    check_scope(&peers, compared, [1, 0, 0], 5);
}

fn child_of(pid: i32) -> i32 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let children: Vec<i32> = tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| {
            let pids = text.split_whitespace().map(|pid| pid.parse().unwrap());
            pids.collect::<Vec<i32>>()
        })
        .collect();
    assert_eq!(children.len(), 1, "{children:?}");
    children[0]
}
