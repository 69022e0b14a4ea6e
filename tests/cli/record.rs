//! The options of `record`, each proven by the recording that it makes. (Launching, signals and
//! names are in cli_launch.rs and cli_signals.rs.)

use crate::faults::{
    How, PATIENCE, Recorded, Recorder, TORCHSPY, Target, any_python, assert_error, compiled,
    faults_can_be_made, output_of, perf_events_work, program, python, run, seconds_with, tracer_of,
    wait_until,
};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// tests/programs/options.py, ready; `None`, with a word on stderr, without a Python.
fn target(arguments: &[&str]) -> Option<Target> {
    let python = any_python()?;
    let script = program("options.py");
    Some(Target::start(&[&[&*python, &*script], arguments].concat()))
}

/// The report of what is recorded by now; null where nothing can be read yet.
fn so_far(recorder: &Recorder) -> Value {
    let pid = recorder.pid().to_string();
    let made = run(&["snapshot", &pid, "-o", "-", "-f", "json"]);
    serde_json::from_str(&made.stdout).unwrap_or_default()
}

/// Waits until what is recorded is enough: how much a second holds is the machine's affair.
fn wait_until_recorded(recorder: &mut Recorder, is_enough: impl Fn(&Value) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let report = so_far(recorder);
        if is_enough(&report["quality"]) {
            return;
        }
        let has_ended = recorder.child.try_wait().unwrap().is_some();
        assert!(!has_ended && Instant::now() < deadline, "in vain: {report}");
    }
}

/// As many polls as half a second has at the default rate.
fn has_polls(quality: &Value) -> bool {
    quality["ticks"].as_f64() >= Some(50.0)
}

/// Attaches for some polls.
fn record(target: &Target, options: &[&str]) -> Recorded {
    let how = How {
        options,
        fault: None,
    };
    let mut recorder = Recorder::attach(target.pid(), how);
    wait_until_recorded(&mut recorder, has_polls);
    recorder.interrupt().expect_success()
}

/// Threads of a dump that have samples: the kernel's name, and the text of their stacks.
fn sampled_threads(dump: &str) -> Vec<(String, String)> {
    dump.split("\nthread T")
        .skip(1)
        .filter(|text| text.contains("\n  S") || text.contains("\n  no stack"))
        .map(|text| {
            let name = text.split('"').nth(1).unwrap_or_default();
            (name.to_owned(), text.to_owned())
        })
        .collect()
}

fn sampled_names(dump: &str) -> Vec<String> {
    let mut names: Vec<String> = sampled_threads(dump)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    names.sort();
    names
}

fn pids(report: &Value) -> Vec<i64> {
    let processes = report["processes"].as_array().unwrap();
    processes
        .iter()
        .map(|process| process["pid"].as_i64().unwrap())
        .collect()
}

fn quality(report: &Value, key: &str) -> f64 {
    report["quality"][key].as_f64().unwrap()
}

/// Who sleeps does not hold the GIL, nor does who hashes without it (but for the moments in
/// between).
#[test]
fn gil_takes_only_its_holders() {
    let Some(target) = target(&[]) else { return };
    let all = record(&target, &[]);
    let everybody = all.inspect();
    for part in [
        "py compute (",
        "py hash_without_gil (",
        "py wait_for_good (",
        "py main (",
    ] {
        assert!(everybody.contains(part), "{part}: {everybody}");
    }
    let recorded = record(&target, &["--gil"]);
    let dump = recorded.inspect();
    assert!(dump.contains("GIL holders only"), "{dump}");
    assert!(dump.contains("py compute ("), "{dump}");
    for part in ["py wait_for_good (", "py main ("] {
        assert!(!dump.contains(part), "{part}: {dump}");
    }
    // Who gives it up for most of the time is seen for that much less, whoever holds it in between.
    let seen = |recorded: &Recorded, dump: &str| {
        let length = recorded.report()["duration_s"].as_f64().unwrap();
        seconds_with(dump, "py hash_without_gil (") / length
    };
    assert!(
        seen(&recorded, &dump) < 0.5 * seen(&all, &everybody),
        "{dump}"
    );
    assert!(seconds_with(&dump, "py compute (") > 0.0, "{dump}");
}

#[test]
fn threads_takes_those_whose_name_matches() {
    let Some(target) = target(&[]) else { return };
    let all = sampled_names(&record(&target, &[]).inspect());
    assert_eq!(all.len(), 4, "{all:?}");
    let dump = record(&target, &["--thread-name", "^(hold|sleep)er$"]).inspect();
    assert_eq!(sampled_names(&dump), ["holder", "sleeper"], "{dump}");
}

/// The kernel calls them all by the program's name (up to 3.13).
#[test]
fn threads_takes_those_whose_python_name_matches() {
    for version in ["3.10", "3.11", "3.12", "3.13"] {
        let Some(python) = python(version) else {
            continue;
        };
        let script = "import os, sys, threading\n\
            def compute():\n    while True: sum(range(1000))\n\
            def wait(): threading.Event().wait()\n\
            for name, function in [('loader-7', compute), ('other', wait)]:\n\
            \x20   threading.Thread(target=function, name=name, daemon=True).start()\n\
            print('ready', os.getpid(), flush=True)\nsys.stdin.readline()\n";
        let target = Target::start(&[&python, "-c", script]);
        let dump = record(&target, &["--thread-name", "^MainThread$"]).inspect();
        assert_eq!(sampled_threads(&dump).len(), 1, "{version}: {dump}");
        if version == "3.10" {
            // It knows its threads by their stacks, and that of who is left out and always runs is
            // not known.
            continue;
        }
        assert!(dump.contains("py <module> ("), "{version}: {dump}");
        let dump = record(&target, &["--thread-name", "^loader-"]).inspect();
        assert_eq!(sampled_threads(&dump).len(), 1, "{version}: {dump}");
        assert!(dump.contains("py compute ("), "{version}: {dump}");
    }
}

#[test]
fn threads_that_matches_nobody_says_so_and_names_those_that_are_there() {
    let Some(target) = target(&[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let pid = target.pid().to_string();
    let output = output_of(
        Command::new(crate::faults::TORCHSPY)
            // Python's own name is listed where the interpreter was found by then.
            .args(["record", "--duration", "5s", "--thread-name", "nobody"])
            .args(["--pid", &pid])
            .current_dir(folder.path()),
    );
    assert_eq!(output.status.code(), Some(1), "{}", output.stderr);
    let said = "no thread's name matches --thread-name nobody";
    assert!(output.stderr.contains(said), "{}", output.stderr);
    for name in ["MainThread", "holder", "releaser", "sleeper"] {
        assert!(output.stderr.contains(name), "{}", output.stderr);
    }
}

/// As py-spy's users type it.
#[test]
fn py_spys_formats_and_names() {
    let Some(target) = target(&[]) else { return };
    let pid = target.pid().to_string();
    let run = |options: &[&str]| {
        let mut command = Command::new(crate::faults::TORCHSPY);
        command
            .args(["record", "-s", "-t", "-r", "100", "-d", "600", "-p", &pid])
            .args(options);
        let mut recorder = Recorder::spawn(command, tempfile::tempdir().unwrap());
        wait_until_recorded(&mut recorder, has_polls);
        recorder.interrupt().expect_success().folder
    };
    let read = |folder: &tempfile::TempDir, name: &str| {
        fs::read_to_string(folder.path().join(name)).unwrap()
    };
    let raw = read(&run(&["-f", "raw", "-o", "profile.txt"]), "profile.txt");
    assert!(raw.starts_with("process "), "{raw}");
    assert!(
        raw.contains("compute (") && raw.contains("options.py:"),
        "{raw}"
    );
    let flame = read(&run(&["-f", "flamegraph", "-o", "x"]), "x");
    assert!(flame.contains("<svg"), "{flame}");
    let native = read(&run(&["-n", "-f", "raw", "-o", "profile"]), "profile");
    assert!(!native.starts_with("process "), "{native}");
    let plain = read(&run(&["--nolineno", "-o", "a.folded"]), "a.folded");
    assert!(
        plain.contains("compute (") && !plain.contains("options.py:"),
        "{plain}"
    );
    let full = read(&run(&["--full-filenames", "-o", "a.folded"]), "a.folded");
    assert!(
        full.contains(&format!("({}:", program("options.py"))),
        "{full}"
    );
    let first = read(&run(&["-F", "-o", "a.folded"]), "a.folded");
    let lines: std::collections::BTreeSet<&str> = first
        .split(';')
        .filter(|frame| frame.starts_with("compute ("))
        .map(|frame| frame.split(')').next().unwrap())
        .collect();
    assert_eq!(lines.len(), 1, "{first}");
    let folder = run(&["-f", "speedscope"]);
    let names = names(folder.path());
    let ends = |end: &str| names.iter().any(|name| name.ends_with(end));
    assert!(ends(".speedscope.json") && ends(".tspy"), "{names:?}");
}

/// A thread that takes its name after it was first seen.
#[test]
fn threads_goes_by_the_name_that_a_thread_takes_later() {
    let Some(python) = any_python() else { return };
    let script = "import ctypes, os, sys\n\
        def named_now():\n    ctypes.CDLL(None).prctl(15, b'pt_main_thread')\n\
        \x20   print('named', flush=True)\n    while True: sum(range(1000))\n\
        print('ready', os.getpid(), flush=True)\nsys.stdin.readline()\nnamed_now()\n";
    let mut target = Target::start(&[&python, "-c", script]);
    let how = How {
        options: &["--thread-name", "^pt_main"],
        fault: None,
    };
    let recorder = Recorder::attach(target.pid(), how);
    recorder.wait_for_segment();
    target.tell("go");
    target.expect("named");
    wait_until("samples by the new name", || {
        let dump = run(&["inspect", &recorder.path().to_string_lossy()]).stdout;
        dump.contains("py named_now (")
    });
    let dump = recorder.interrupt().expect_success().inspect();
    assert_eq!(sampled_names(&dump), ["pt_main_thread"], "{dump}");
    assert!(dump.contains("py named_now ("), "{dump}");
}

#[test]
fn no_subprocesses_leaves_children_alone() {
    let Some(target) = target(&["--child"]) else {
        return;
    };
    let (parent, child) = (
        i64::from(target.pid()),
        target.ready[1].parse::<i64>().unwrap(),
    );
    let with = record(&target, &[]);
    let (report, dump) = (with.report(), with.inspect());
    assert!(pids(&report).contains(&child), "{report}");
    assert!(dump.contains("py compute_far_away ("), "{dump}");
    let without = record(&target, &["--no-subprocesses"]);
    let (report, dump) = (without.report(), without.inspect());
    assert_eq!(pids(&report), [parent], "{report}");
    assert!(!dump.contains("py compute_far_away ("), "{dump}");
    assert!(dump.contains("py compute ("), "{dump}");
}

/// Records until there are 20 captures of this kind, and checks at thousands of polls that nothing
/// traces the target. Returns the report, and each thread's name and samples.
fn record_untraced(
    target: &Target,
    options: &[&str],
    kind: &str,
) -> (Value, Vec<(String, String)>) {
    let how = How {
        options,
        fault: None,
    };
    let mut recorder = Recorder::attach(target.pid(), how);
    let poll = || assert_eq!(tracer_of(target.pid()), None);
    (0..1000).for_each(|_| poll());
    wait_until_recorded(&mut recorder, |quality| {
        (0..1000).for_each(|_| poll());
        has_polls(quality) && quality["captures"][kind].as_u64() > Some(20)
    });
    let recorded = recorder.interrupt().expect_success();
    let report = recorded.report();
    assert_eq!(quality(&report, "stops"), 0.0, "{report}");
    let captures = &report["quality"]["captures"];
    assert_eq!(captures["stopped"], 0, "{report}");
    assert!(captures[kind].as_u64().unwrap() > 20, "{report}");
    (report, sampled_threads(&recorded.inspect()))
}

/// The kernel samples what runs, with its native frames, and nothing is stopped.
#[test]
fn engine_perf_stops_nothing() {
    if !perf_events_work() {
        return;
    }
    let Some(target) = target(&[]) else { return };
    let (_, threads) = record_untraced(&target, &["--engine", "perf"], "sampled");
    let hashes = &threads
        .iter()
        .find(|thread| thread.0 == "releaser")
        .unwrap()
        .1;
    assert!(hashes.contains("running/sampled"), "{hashes}");
    assert!(
        hashes.contains("py hash_without_gil (") && hashes.contains("\n    na "),
        "{hashes}"
    );
}

/// Two threads compute; the second one, which was there from the start, once it is told to.
const LATE_THREAD: &str = r#"
import ctypes, hashlib, sys, threading

told = threading.Event()

def hash_on():
    data = bytes(1 << 20)
    while True:
        hashlib.sha256(data).digest()

def hash_late():
    ctypes.CDLL(None).prctl(15, b"late")
    told.wait()
    hash_on()

ctypes.CDLL(None).prctl(15, b"first")
threading.Thread(target=hash_late, daemon=True).start()
threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
print("ready", flush=True)
hash_on()
"#;

/// torchspy has no descriptor left for the kernel's sampler of another thread.
#[test]
fn engine_auto_goes_over_to_stops_where_the_kernel_has_nothing_left() {
    let Some(python) = any_python() else { return };
    let doctor = run(&["doctor"]).stdout;
    if !doctor.contains("available: --engine perf stops no thread") {
        println!("skipped: --engine auto: {doctor}");
        return;
    }
    let mut target = Target::spawn(Command::new(python).args(["-c", LATE_THREAD]));
    target.expect("ready");
    let how = How {
        options: &["--engine", "auto"],
        fault: None,
    };
    let mut recorder = Recorder::attach(target.pid(), how);
    wait_until_recorded(&mut recorder, has_polls);
    wait_until_recorded(&mut recorder, |quality| {
        quality["captures"]["sampled"].as_u64() > Some(20)
    });
    let pid = recorder.pid();
    let limit = |descriptors: usize| {
        let limit = format!("--nofile={descriptors}:");
        let mut command = Command::new("prlimit");
        let done = command.args(["--pid", &pid.to_string(), &limit]).status();
        assert!(done.unwrap().success());
    };
    // Nothing can be opened: no descriptor has a lower number.
    limit(3);
    target.tell("compute");
    recorder.wait_for_a_stop(target.pid());
    limit(1024);
    wait_until_recorded(&mut recorder, |quality| {
        quality["captures"]["stopped"].as_u64() > Some(20)
    });
    let recorded = recorder.interrupt().expect_success();
    let quality = recorded.report()["quality"].clone();
    assert!(quality["samples_refused"].as_u64() > Some(0), "{quality}");
    let dump = recorded.inspect();
    let threads = sampled_threads(&dump);
    for name in ["first", "late"] {
        let thread = threads.iter().find(|thread| thread.0 == name);
        let text = &thread.unwrap_or_else(|| panic!("no {name}: {dump}")).1;
        assert!(text.contains("running/stopped"), "{name}: {text}");
        assert!(
            text.contains("py hash_on (") && text.contains("\n    na "),
            "{name}: {text}"
        );
    }
    let report = run(&["report", &recorded.path().to_string_lossy(), "--full"]).stdout;
    assert!(
        report.contains("refused by it: threads were stopped from then on"),
        "{report}"
    );
}

/// No stop, and no tracer at any of thousands of polls; Python frames of what runs, native ones of
/// what sleeps.
#[test]
fn nonblocking_never_stops_anything() {
    let Some(target) = target(&[]) else { return };
    let (_, threads) = record_untraced(&target, &["--nonblocking"], "unstopped");
    let text_of = |name: &str| &threads.iter().find(|thread| thread.0 == name).unwrap().1;
    let holder = text_of("holder");
    assert!(holder.contains("py compute ("), "{holder}");
    assert!(!holder.contains("running/stopped"), "{holder}");
    let sleeper = text_of("sleeper");
    assert!(
        sleeper.contains("py wait_for_good (") && sleeper.contains("\n    na "),
        "{sleeper}"
    );
    // The same poll finds a tracer where there is one.
    let recorder = Recorder::attach(target.pid(), How::default());
    recorder.wait_for_a_stop(target.pid());
    recorder.wait_for_segment();
    assert!(quality(&recorder.interrupt().expect_success().report(), "stops") > 0.0);
}

#[test]
fn no_native_reads_python_frames_alone() {
    let Some(target) = target(&[]) else { return };
    for options in [&["--no-native"][..], &["--no-native", "--nonblocking"]] {
        let recorded = record(&target, options);
        let (report, dump) = (recorded.report(), recorded.inspect());
        assert_eq!(report["native"], false);
        assert!(!dump.contains("\n    na "), "{options:?}: {dump}");
        for part in [
            "py compute (",
            "py hash_without_gil (",
            "py wait_for_good (",
        ] {
            assert!(dump.contains(part), "{options:?} {part}: {dump}");
        }
        assert_eq!(report["native_functions"], Value::Array(Vec::new()));
    }
    // The later of two that exclude each other counts.
    let dump = record(&target, &["--no-native", "--native"]).inspect();
    assert!(dump.contains("\n    na "), "{dump}");
}

/// Every moment has its tick, or one that stands for it as well: together they make the rate,
/// however loaded the machine is.
#[test]
fn rate_is_ticks_per_second() {
    let Some(target) = target(&[]) else { return };
    for rate in [20.0, 400.0] {
        let report = record(&target, &["--rate", &rate.to_string()]).report();
        assert_eq!(quality(&report, "asked_hz"), rate);
        let ticks = quality(&report, "ticks") + quality(&report, "missed_ticks");
        let wanted = rate * report["duration_s"].as_f64().unwrap();
        assert!((ticks / wanted - 1.0).abs() < 0.1, "{ticks} of {wanted}");
    }
}

/// Dear stops and a small budget: fewer stops, said in the summary, and the time of the rest is
/// kept.
#[test]
fn max_stopped_makes_the_sampler_back_off() {
    let Some(spin) = compiled("fault_spin.c") else {
        return;
    };
    let spun = |limit: &str, is_enough: fn(f64, f64) -> bool| {
        let options = ["--rate", "1000", "--max-stopped", limit];
        let how = How {
            options: &options,
            fault: None,
        };
        let target = Target::spawn(Command::new(&spin).arg("600"));
        let mut recorder = Recorder::attach(target.pid(), how);
        wait_until_recorded(&mut recorder, |quality| {
            let [stops, skipped] = ["stops", "skipped_for_budget"]
                .map(|key| quality[key].as_f64().unwrap_or_default());
            is_enough(stops, skipped)
        });
        let recorded = recorder.interrupt().expect_success();
        // Where stops are dear the last may be long ago when the recording ends: what ran since was
        // never read, and is said.
        let dump = recorded.inspect();
        let spun_s = seconds_with(&dump, "spin_in_c") + seconds_with(&dump, "stop_timeout");
        assert!(seconds_with(&dump, "spin_in_c") > 0.0, "{dump}");
        let text = run(&["report", "--full", &recorded.path().to_string_lossy()]).stdout;
        (recorded.report(), spun_s, recorded.messages + &text)
    };
    // Of what it would read, it leaves out most.
    let (bounded, spun_s, said) = spun("0.1", |stops, skipped| skipped > 100.0 && stops < skipped);
    let skipped = quality(&bounded, "skipped_for_budget");
    assert!(
        said.contains(&format!(
            "{} captures left out to stay within --max-stopped 0.1",
            with_commas(skipped as u64)
        )),
        "{said}"
    );
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("more stops would take over 0.1 %"), "{said}");
    let duration = bounded["duration_s"].as_f64().unwrap();
    // The rest waited for a CPU, where other programs ran. (A few percent of the ticks have a
    // stop.)
    assert!(spun_s > 0.5 * duration, "{spun_s} of {duration}");
    let (free, _, said) = spun("off", |stops, _| stops > 100.0);
    assert_eq!(quality(&free, "skipped_for_budget"), 0.0, "{free}");
    assert!(!said.contains("--max-stopped"), "{said}");
}

/// torchspy got no CPU for longer than the recording was to last, between two polls: the last one
/// stands for that time.
#[test]
fn time_without_a_cpu_at_the_end_is_recorded() {
    let Some(spin) = compiled("fault_spin.c") else {
        return;
    };
    if !faults_can_be_made() {
        return;
    }
    let target = Target::spawn(Command::new(&spin).arg("60"));
    let how = How {
        // Long enough for a few polls, whatever else the machine does.
        options: &["--rate", "1000", "--duration", "5s"],
        fault: Some("ticked:20:1:sleep-6000000"),
    };
    let recorded = Recorder::attach(target.pid(), how)
        .finish()
        .expect_success();
    let (report, dump) = (recorded.report(), recorded.inspect());
    let duration = report["duration_s"].as_f64().unwrap();
    assert!(duration > 5.9, "{report}");
    let spun_s = seconds_with(&dump, "spin_in_c") + seconds_with(&dump, "stop_timeout");
    assert!(spun_s > 0.9 * duration, "{spun_s} of {duration}: {dump}");
    assert!(quality(&report, "missed_ticks") > 5_800.0, "{report}");
}

fn with_commas(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", with_commas(number / 1000), number % 1000),
    }
}

/// Each extension once, in one run; all are of the same samples.
#[test]
fn outputs_of_every_kind_in_one_run() {
    let Some(target) = target(&[]) else { return };
    let options = [
        "-o",
        "run.svg",
        "-o",
        "run.speedscope.json",
        "-o",
        "run.folded",
        "-o",
        "run.json",
        "-o",
        "run.txt",
    ];
    let recorded = record(&target, &options);
    let read = |name: &str| fs::read_to_string(recorded.folder.path().join(name)).unwrap();
    assert!(fs::read(recorded.path()).unwrap().starts_with(b"TORCHSPY"));
    let svg = read("run.svg");
    assert!(svg.contains("<svg") && svg.trim_end().ends_with("</svg>") && svg.contains("compute"));
    let speedscope: Value = serde_json::from_str(&read("run.speedscope.json")).unwrap();
    assert!(!speedscope["profiles"].as_array().unwrap().is_empty());
    let folded = read("run.folded");
    let is_folded = |line: &str| {
        line.rsplit_once(' ')
            .is_some_and(|(stack, count)| stack.contains(';') && count.parse::<u64>().is_ok())
    };
    assert!(
        folded.lines().count() > 3 && folded.lines().all(is_folded),
        "{folded}"
    );
    assert_eq!(
        serde_json::from_str::<Value>(&read("run.json")).unwrap(),
        recorded.report()
    );
    assert!(read("run.txt").contains("\nSAMPLER\n"));
    for name in [
        "run.tspy",
        "run.svg",
        "run.speedscope.json",
        "run.folded",
        "run.json",
        "run.txt",
    ] {
        assert!(
            recorded.messages.contains(&format!("wrote {name}")),
            "{}",
            recorded.messages
        );
    }
    // What is converted later is what was written then.
    for name in [
        "run.folded",
        "run.speedscope.json",
        "run.svg",
        "run.json",
        "run.txt",
    ] {
        let again = recorded.folder.path().join(format!("again.{name}"));
        let words = [
            "convert",
            &recorded.path().to_string_lossy(),
            "-o",
            &again.to_string_lossy(),
        ]
        .map(str::to_owned);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert!(crate::faults::run(&words).status.success());
        assert!(
            read(name) == fs::read_to_string(&again).unwrap(),
            "{name} differs"
        );
    }
}

/// Without a recording among the outputs there is none, and the others are made all the same.
#[test]
fn an_output_alone_leaves_no_recording() {
    let Some(target) = target(&[]) else { return };
    let pid = target.pid().to_string();
    let mut command = Command::new(crate::faults::TORCHSPY);
    command.args(["record", "--pid", &pid, "-o", "only.json"]);
    let mut recorder = Recorder::spawn(command, tempfile::tempdir().unwrap());
    wait_until_recorded(&mut recorder, |quality| {
        quality["samples"].as_f64() > Some(0.0)
    });
    let folder = recorder.interrupt().expect_success().folder;
    assert_eq!(names(folder.path()), ["only.json"]);
    let text = fs::read_to_string(folder.path().join("only.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert!(quality(&report, "samples") > 0.0, "{report}");
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Attached, the names tell the target's script, rank and pid, not torchspy's; and the host.
#[test]
fn default_names_of_an_attached_recording() {
    let Some(python) = any_python() else { return };
    let mut command = Command::new(&python);
    command.arg(program("options.py")).env("RANK", "5");
    let mut target = Target::spawn(&mut command);
    target.expect("ready");
    let folder = tempfile::tempdir().unwrap();
    let pid = target.pid().to_string();
    let output = output_of(
        Command::new(crate::faults::TORCHSPY)
            .args(["record", "--duration", "200ms", "--pid", &pid])
            .env("RANK", "9")
            .current_dir(folder.path()),
    );
    assert!(output.status.success(), "{}", output.stderr);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host: String = host
        .trim()
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() || "._-".contains(letter) {
                letter
            } else {
                '_'
            }
        })
        .collect();
    let time = r"\d{8}T\d{6}Z";
    let base = format!(
        "torchspy-options-{}-rank5-{pid}-{time}",
        regex::escape(&host)
    );
    let names = names(folder.path());
    assert_eq!(names.len(), 2, "{names:?}");
    for (name, extension) in names.iter().zip(["html", "tspy"]) {
        let pattern = regex::Regex::new(&format!("^{base}\\.{extension}$")).unwrap();
        assert!(pattern.is_match(name), "{name} against {pattern}");
    }
}

/// What is wrong from the start empties no file.
#[test]
fn an_output_that_exists_is_kept_where_nothing_can_be_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.tspy");
    fs::write(&path, "something older").unwrap();
    for arguments in [
        &["--pid", "2147483647"][..],
        &["--rate", "0", "--", "true"],
        &["-o", "run.tspy", "--", "true"],
        &["-o", "other.tspy", "--", "true"],
        &["-o", "picture.png", "--", "true"],
        &["-o", "missing/run.svg", "--", "true"],
        &["--", "no-such-program"],
        &["--", "./no-such-program"],
    ] {
        let words = [&["record", "-o", "run.tspy"], arguments].concat();
        let output = output_of(
            Command::new(crate::faults::TORCHSPY)
                .args(words)
                .current_dir(folder.path()),
        );
        crate::faults::assert_error(&output, "", &[]);
        assert_eq!(names(folder.path()), ["run.tspy"], "{arguments:?}");
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "something older",
            "{arguments:?}"
        );
    }
}

/// A recording is read back at its end: what cannot be is refused at once.
#[test]
fn a_recording_into_a_pipe_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    nix::unistd::mkfifo(
        &folder.path().join("run.tspy"),
        nix::sys::stat::Mode::S_IRWXU,
    )
    .unwrap();
    let output = output_of(
        Command::new(crate::faults::TORCHSPY)
            .args(["record", "-o", "run.tspy", "--", "touch", "ran"])
            .current_dir(folder.path()),
    );
    crate::faults::assert_error(&output, "no regular file", &["give a file"]);
    assert_eq!(
        names(folder.path()),
        ["run.tspy"],
        "the program did not run"
    );
}

/// Nothing is lost for a run that never began: neither the older recording nor its page.
#[test]
fn a_program_that_cannot_run_replaces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let [program, recording, page] = ["bad", "run.tspy", "run.html"].map(path);
    fs::write(&program, "#!/no/such/interpreter\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&program, mode).unwrap();
    fs::write(&recording, "older recording").unwrap();
    fs::write(&page, "older page").unwrap();
    let outputs = ["-o", &recording, "-o", &page];
    let ran = run(&[&["record", "--force"], &outputs[..], &["--", &program]].concat());
    assert!(!ran.status.success());
    assert_eq!(fs::read_to_string(&recording).unwrap(), "older recording");
    assert_eq!(fs::read_to_string(&page).unwrap(), "older page");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

/// A page's name may be as long as the file system allows.
#[test]
fn a_long_name_of_a_page_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join(format!("{}.html", "n".repeat(245)));
    let name = page.to_string_lossy();
    let ran = run(&["record", "-o", &name, "--", "sleep", "0.2"]);
    assert!(ran.status.success(), "{}", ran.stderr);
    assert!(fs::read_to_string(&page).unwrap().contains("torchspy"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn missing_folders_of_outputs_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let record = |output: &str| {
        let mut command = Command::new(TORCHSPY);
        command.args(["record", "-o", output, "--", "true"]);
        output_of(command.current_dir(folder.path()))
    };
    let recorded = record("new/folder/x.tspy");
    assert!(recorded.status.success(), "{}", recorded.stderr);
    assert!(folder.path().join("new/folder/x.tspy").exists());
    let refused = record("new/folder/x.tspy/y.tspy");
    let error = "cannot make the folder new/folder/x.tspy: ";
    assert_error(&refused, error, &["-o FOLDER/run.tspy"]);
}
