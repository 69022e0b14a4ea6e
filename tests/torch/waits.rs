//! Real torch: what a starving loop's workers do, and which rank the others wait for.

use crate::faults::{Recorded, program};
use crate::native_live::torch_python;
use crate::{marked, on_each_engine, record};
use serde_json::Value;
use std::path::Path;

fn loader(python: &Path, workers: &str, steps: &str, engine: &str) -> Recorded {
    let python = python.to_string_lossy();
    let script = program("loader.py");
    let words = [&*python, &*script, "--workers", workers, "--steps", steps];
    record(&words, engine)
}

/// Seconds of a task, and its lines.
fn task(tasks: &Value, name: &str) -> (f64, Vec<u64>) {
    let rows = tasks.as_array().unwrap();
    let row = rows
        .iter()
        .find(|row| row["task"] == name)
        .unwrap_or_else(|| panic!("no {name}: {tasks}"));
    let lines = row["lines"].as_array().unwrap();
    let lines = lines.iter().filter_map(|line| line["at"]["line"].as_u64());
    (row["seconds"].as_f64().unwrap(), lines.collect())
}

#[test]
fn a_starving_loop_is_told_what_its_workers_do() {
    let Some(python) = torch_python() else { return };
    let recorded = loader(&python, "2", "120", "ptrace");
    let report = recorded.report();
    let rows = report["waits"].as_array().unwrap();
    let wait = rows.iter().find(|row| row["kind"] == "input_queue");
    let wait = wait.unwrap_or_else(|| panic!("{rows:?}"));
    assert_eq!(wait["at"]["line"], marked("loader.py", "loop"), "{wait}");
    let workers = &report["input"]["workers"];
    let alive = workers["workers"].as_f64().unwrap();
    assert!((1.0..=2.05).contains(&alive), "{workers}");
    assert!(
        workers["busy"]["share"].as_f64().unwrap() > 0.6,
        "{workers}"
    );
    let (decode_s, lines) = task(&workers["tasks"], "decode");
    assert!(lines.contains(&marked("loader.py", "decode")), "{workers}");
    let (transform_s, lines) = task(&workers["tasks"], "transform");
    let line = marked("loader.py", "transform");
    assert!(
        lines.iter().any(|&at| at == line || at == line - 1),
        "{workers}"
    );
    assert!(decode_s > 0.0 && transform_s > 0.0);
    let said = recorded.full_report();
    assert!(said.contains("input: DataLoader queue"), "{said}");
    assert!(said.contains("workers were busy"), "{said}");
}

on_each_engine!(without_workers_the_thread_s_own_stacks_tell);

fn without_workers_the_thread_s_own_stacks_tell(engine: &str) {
    let Some(python) = torch_python() else { return };
    let recorded = loader(&python, "0", "60", engine);
    let report = recorded.report();
    assert!(report["input"]["workers"].is_null(), "{}", report["input"]);
    let own = &report["input"]["own"];
    let (decode_s, lines) = task(&own["tasks"], "decode");
    assert!(lines.contains(&marked("loader.py", "decode")), "{own}");
    let (transform_s, _) = task(&own["tasks"], "transform");
    let seconds = own["seconds"].as_f64().unwrap();
    let cpu_wait = own["tasks"].as_array().unwrap().iter();
    let cpu_wait: f64 = cpu_wait
        .filter(|row| row["task"] == "cpu_wait")
        .map(|row| row["seconds"].as_f64().unwrap())
        .sum();
    assert!(decode_s + transform_s > 0.7 * (seconds - cpu_wait), "{own}");
    let said = recorded.full_report();
    assert!(
        said.contains("INPUT of the training thread itself"),
        "{said}"
    );
}

/// Two Gloo ranks under torchrun: the fast one's wait is found, and the slow one is named with its
/// line.
fn check_ranks(slow: u64, ddp: bool) {
    let Some(python) = torch_python() else { return };
    let python = python.to_string_lossy();
    let script = program("slow_rank.py");
    let slow_rank = slow.to_string();
    let mut words = vec![
        &*python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        &*script,
        "--slow-rank",
        &slow_rank,
    ];
    if ddp {
        words.push("--ddp");
    }
    let recorded = record(&words, "ptrace");
    let report = recorded.report();
    let said = &recorded.messages;
    let rows = report["collectives"].as_array().unwrap();
    let fast = 1 - slow;
    let issuer = match ddp {
        true => Value::from("DDP bucket"),
        false => Value::Null,
    };
    let called = if ddp { "backward" } else { "all_reduce" };
    let line = marked("slow_rank.py", called);
    // The ranks' start, before the loop, may differ by more than all of its steps.
    let row = rows
        .iter()
        .filter(|row| row["rank"] == fast && row["at"]["line"] == line)
        .max_by(|a, b| {
            let waits = |row: &Value| row["wait_s"].as_f64().unwrap();
            waits(a).total_cmp(&waits(b))
        })
        .unwrap_or_else(|| panic!("{rows:#?}\n{said}"));
    assert_eq!(row["name"], "all_reduce", "{row}\n{said}");
    assert_eq!(row["backend"], "gloo", "{row}");
    assert_eq!(row["issuer"], issuer, "{row}");
    let named = row["late"].as_array().unwrap();
    let late: Vec<&Value> = named
        .iter()
        .filter(|late| late["rank"] == slow && late["at"]["function"] == "slow_transform")
        .collect();
    let seconds = |late: &Value| late["seconds"].as_f64().unwrap();
    let late_s: f64 = late.iter().copied().map(seconds).sum();
    let named_s: f64 = named.iter().map(seconds).sum();
    let wait_s = row["wait_s"].as_f64().unwrap();
    // A rank without a CPU is not captured: what it did then is not known.
    let shown = format!("{late_s} of {named_s} of {wait_s}: {row}\n{said}");
    assert!(late_s > 0.8 * named_s && named_s > 0.3 * wait_s, "{shown}");
    let line = marked("slow_rank.py", "transform");
    let at = late[0]["at"]["line"].as_u64().unwrap();
    assert!((line - 1..=line).contains(&at), "{row}");

    // On a busy machine the short report may have no room for it.
    let said = recorded.full_report();
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence = format!("rank {slow} arrives last");
    let from = words
        .find(&sentence)
        .unwrap_or_else(|| panic!("no {sentence}: {said}"));
    assert!(words[from..].contains("slow_transform"), "{said}");
    assert!(
        words[..from].contains(&format!("rank {fast} waits")),
        "{said}"
    );
}

#[test]
fn the_slow_rank_of_a_ddp_job_is_named() {
    check_ranks(1, true);
}

#[test]
fn the_slow_rank_of_a_job_with_its_own_all_reduce_is_named() {
    check_ranks(0, false);
}
