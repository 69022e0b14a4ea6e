//! Every Python frame that `py-spy dump --native` and pystack show of a process that hangs is in
//! torchspy's dump of it, too.

use crate::faults::{TORCHSPY, Target, program, python, wait_until};
use crate::stack_peers::peer;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// Function (its plain name), file, line; leaf first, by tid.
type Stacks = BTreeMap<i64, Vec<(String, String, u64)>>;

fn plain(name: &str) -> String {
    name.rsplit('.').next().unwrap_or(name).to_owned()
}

fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn looked(pid: i32) -> Vec<Value> {
    let json =
        output_of(Command::new(TORCHSPY).args(["dump", "--json", "--pid", &pid.to_string()]));
    let value: Value = serde_json::from_str(&json).unwrap();
    let threads = &value["looks"][0]["processes"][0]["threads"];
    threads.as_array().unwrap().clone()
}

fn stacks_of(threads: &[Value]) -> Stacks {
    let mut stacks = Stacks::new();
    for thread in threads {
        let frames = thread["frames"].as_array().unwrap().iter();
        let frames = frames.filter(|frame| frame["python"] == true).map(|frame| {
            (
                plain(frame["function"].as_str().unwrap()),
                frame["file"].as_str().unwrap().to_owned(),
                frame["line"].as_u64().unwrap_or(0),
            )
        });
        stacks.insert(thread["tid"].as_i64().unwrap(), frames.collect());
    }
    stacks
}

fn py_spy(pid: i32) -> Option<Stacks> {
    let tool = peer("py-spy")?;
    let json = output_of(Command::new(tool).args([
        "dump",
        "--native",
        "--json",
        "--pid",
        &pid.to_string(),
    ]));
    let value: Value = serde_json::from_str(&json).unwrap();
    let mut stacks = Stacks::new();
    for thread in value.as_array().unwrap() {
        let frames = thread["frames"].as_array().unwrap().iter();
        let frames = frames
            .filter(|frame| {
                frame["filename"]
                    .as_str()
                    .is_some_and(|file| file.ends_with(".py"))
            })
            .map(|frame| {
                (
                    plain(frame["name"].as_str().unwrap()),
                    frame["filename"].as_str().unwrap().to_owned(),
                    frame["line"].as_u64().unwrap(),
                )
            });
        stacks.insert(thread["os_thread_id"].as_i64().unwrap(), frames.collect());
    }
    Some(stacks)
}

fn pystack(pid: i32) -> Option<Stacks> {
    let tool = peer("pystack")?;
    let text = output_of(Command::new(tool).args([
        "remote",
        "--no-color",
        "--no-block",
        &pid.to_string(),
    ]));
    let mut stacks = Stacks::new();
    let mut tid = 0;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Traceback for thread ") {
            tid = rest.split(' ').next().unwrap().parse().unwrap();
        } else if let Some(rest) = line.trim_start().strip_prefix("(Python) File \"") {
            let (file, rest) = rest.split_once("\", line ").unwrap();
            let (number, name) = rest.split_once(", in ").unwrap();
            let frame = (plain(name), file.to_owned(), number.parse().unwrap());
            // Root first.
            stacks.entry(tid).or_default().insert(0, frame);
        }
    }
    Some(stacks)
}

fn check(version: &str, mode: &str, still: &[&str]) {
    let Some(python) = python(version) else {
        return;
    };
    let target = Target::start(&[&python, &program("hangs.py"), mode]);
    // Not only those in question: each thread's line is compared.
    let is_still = |threads: &[Value]| {
        let stacks = stacks_of(threads);
        let leaf = |tid: i64| stacks[&tid].first().map_or("", |frame| frame.0.as_str());
        let stands = |thread: &Value| {
            let leaf = leaf(thread["tid"].as_i64().unwrap());
            let waits_for_gil = thread["waits_for"]["kind"] == "gil";
            match mode {
                // Wherever it waits for that lock, it does so for good.
                "gil" if leaf != "hold" => waits_for_gil,
                "gil" => thread["frames"][0]["python"] == false,
                _ => still.contains(&leaf) && thread["state"] == "sleeping" && !waits_for_gil,
            }
        };
        let is_there = |function: &&str| stacks.keys().any(|&tid| leaf(tid) == *function);
        still.iter().all(is_there) && threads.iter().all(stands)
    };
    let mut ours = Stacks::new();
    wait_until("it hangs", || {
        let threads = looked(target.pid());
        ours = stacks_of(&threads);
        is_still(&threads)
    });
    for (tool, theirs) in [
        ("py-spy", py_spy(target.pid())),
        ("pystack", pystack(target.pid())),
    ] {
        let Some(theirs) = theirs else { continue };
        let mut compared = 0;
        for (tid, frames) in theirs.iter().filter(|(_, frames)| !frames.is_empty()) {
            let own = ours.get(tid);
            let own = own.unwrap_or_else(|| panic!("{tool} {version} {mode}: no thread {tid}"));
            let own: Vec<_> = own
                .iter()
                .filter(|frame| frame.1.ends_with(".py"))
                .collect();
            assert_eq!(
                own,
                frames.iter().collect::<Vec<_>>(),
                "{tool} {version} {mode} {tid}"
            );
            compared += frames.len();
        }
        assert!(compared > 0, "{tool} {version} {mode} shows nothing");
    }
}

#[test]
fn of_a_deadlock() {
    for version in ["3.10", "3.11", "3.12", "3.13"] {
        let threads = ["forward", "backward", "main", "end_with_stdin"];
        check(version, "deadlock", &threads);
    }
}

#[test]
fn of_a_c_loop_that_holds_the_gil() {
    for version in ["3.10", "3.11", "3.12", "3.13"] {
        check(version, "gil", &["hold"]);
    }
}

#[test]
fn of_a_read() {
    for version in ["3.10", "3.11", "3.12", "3.13"] {
        check(version, "read", &["read", "end_with_stdin"]);
    }
}
