//! Tasks of asyncio, against what the program says of them.

use crate::faults::{self, wait_until};
use crate::python_target::{Python, Target};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

const VERSIONS: [&str; 9] = [
    "3.10", "3.11", "3.12", "3.13", "3.14", "3.15", "3.13t", "3.14t", "3.15t",
];
const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/programs/asyncio_tasks.py"
);

/// A task as the program describes it: function and line of each frame, innermost first.
#[derive(Debug, Deserialize)]
struct Described {
    name: String,
    thread: i64,
    frames: Vec<(String, u64)>,
}

fn dump(target: &Target, options: &[&str]) -> String {
    faults::dump(target.pid(), options)
}

/// The tasks of a dump, and what it says is missing.
fn tasks(target: &Target) -> (Vec<Value>, Value) {
    let value: Value = serde_json::from_str(&dump(target, &["--json"])).unwrap();
    let look = &value["looks"][0];
    let tasks = look["processes"][0]["tasks"].as_array().unwrap();
    (tasks.clone(), look["missing"].clone())
}

fn frames(task: &Value) -> Vec<(String, u64)> {
    let frames = task["frames"].as_array().unwrap().iter();
    frames
        .map(|frame| {
            let function = frame["function"].as_str().unwrap();
            (function.to_owned(), frame["line"].as_u64().unwrap())
        })
        .collect()
}

/// Of each version that is here, the program in this mode.
fn targets(arguments: &[&str]) -> impl Iterator<Item = (&'static str, Target, Vec<String>)> {
    let started = |version: &'static str| {
        let mut target = Python::find(version)?.start(PROGRAM.as_ref(), arguments);
        let lines = target.ready();
        Some((version, target, lines))
    };
    VERSIONS.into_iter().filter_map(started)
}

#[test]
fn every_task_is_where_the_program_says() {
    for (version, target, lines) in targets(&["waiting"]) {
        let described: Vec<Described> = serde_json::from_str(&lines[0]).unwrap();
        let wanted: BTreeMap<(String, i64), &Described> = described
            .iter()
            .map(|task| ((task.name.clone(), task.thread), task))
            .collect();
        assert_eq!(wanted.len(), described.len(), "{version}");
        let (tasks, missing) = tasks(&target);
        assert_eq!(missing.as_array().map(Vec::len), Some(0), "{missing}");
        assert_eq!(tasks.len(), described.len(), "{version}: {tasks:#?}");
        for task in &tasks {
            let name = task["name"].as_str().unwrap();
            let key = (name.to_owned(), task["tid"].as_i64().unwrap_or(0));
            let wanted = wanted.get(&key);
            let wanted = wanted.unwrap_or_else(|| panic!("{version}: no task {key:?}"));
            assert_eq!(frames(task), wanted.frames, "{name} on {version}");
            assert_eq!(task["state"], "waiting", "{name} on {version}");
            let awaits: &[&str] = match name {
                "gathers" => &["child-0", "child-1", "child-2"],
                "of another" => &["deep"],
                _ => &[],
            };
            assert_eq!(
                task["awaits"],
                serde_json::json!(awaits),
                "{name} on {version}"
            );
        }
    }
}

#[test]
fn tasks_that_run_or_will_are_told_from_those_that_wait() {
    for (version, target, _) in targets(&["busy"]) {
        wait_until("the task computes", || {
            let (tasks, _) = tasks(&target);
            let of = |name: &str| {
                let task = tasks.iter().find(|task| task["name"] == name);
                let task = task.unwrap_or_else(|| panic!("{version}: {tasks:#?}"));
                (task["state"].as_str().unwrap().to_owned(), frames(task))
            };
            assert_eq!(tasks.len(), 6, "{version}");
            assert_eq!(of("woken").0, "ready", "{version}");
            for number in 0..3 {
                let (state, frames) = of(&format!("ready-{number}"));
                assert_eq!(state, "ready", "{version}");
                assert_eq!(frames.last().map(|frame| &*frame.0), Some("yields"));
            }
            assert_eq!(of("new").0, "not_started", "{version}");
            of("Task-1") == ("running".to_owned(), Vec::new())
        });
    }
}

#[test]
fn many_tasks_at_one_place_are_shown_as_one() {
    for (version, target, _) in targets(&["many", "3000"]) {
        let text = dump(&target, &[]);
        let (_, tasks) = text.split_once("ASYNCIO TASKS").unwrap();
        let lines: Vec<&str> = tasks.lines().collect();
        let thread = format!(
            ": 3,001, event loop in thread {} \"MainThread\"",
            target.pid()
        );
        assert_eq!(lines[0], thread, "{version}: {text}");
        assert_eq!(
            lines[1], "  task Task-1: waits for 3,000 tasks, worker-[0-2999]",
            "{version}: {text}"
        );
        let workers = lines
            .iter()
            .position(|line| *line == "  3,000 tasks, worker-[0-2999]: wait");
        let workers = workers.unwrap_or_else(|| panic!("{version}: {text}"));
        let get = lines[workers + 1];
        assert!(get.contains("asyncio/queues.py:"), "{version}: {text}");
        assert!(
            lines[workers + 2].starts_with("    queued ("),
            "{version}: {text}"
        );
        assert_eq!(lines.len(), workers + 3, "{version}: {text}");
    }
}

#[test]
fn a_process_without_tasks_says_nothing_of_them() {
    let Some(python) = Python::find("3.12") else {
        return;
    };
    let source = "import asyncio, sys\nprint('ready', flush=True)\nsys.stdin.readline()";
    let mut target = python.start_source(source, &[]);
    target.ready();
    assert!(!dump(&target, &[]).contains("TASKS"));
    let (tasks, missing) = tasks(&target);
    assert_eq!((tasks.len(), missing), (0, serde_json::json!([])));
}
