//! Ranks whose devices wait for each other: the rank that arrives last, its line, and how long the
//! others' devices spin for it.

use crate::faults::marked;
use crate::installed::torch_python;
use crate::node::Node;
use gpu_node::scenario::Scenario;
use gpu_node::truth::{Kind, Truth};
use serde_json::Value;

const PROGRAM: &str = "gpu_ranks.py";
/// Of the time in which all ranks step.
const ALLOWED: f64 = 0.05;

/// Time of all-reduces on the device of a process, within a span, ns.
fn reducing_ns(truth: &Truth, span: (u64, u64)) -> u64 {
    let work = truth.of_kind(Kind::Work);
    work.filter(|(_, name)| *name == "nccl:allreduce")
        .map(|(record, _)| {
            record
                .end
                .min(span.1)
                .saturating_sub(record.start.max(span.0))
        })
        .sum()
}

#[test]
fn the_rank_that_devices_wait_for_is_named_with_its_line_and_the_time() {
    let Some(python) = torch_python() else { return };
    let node = Node::new(&Scenario::of_gpus(2));
    let words = "--wrapper ddp --slow-rank 1 --slow-by sleep --slow-ms 60 --steps 80";
    let ran = node.record_ranks(&python, 2, PROGRAM, &words.split(' ').collect::<Vec<_>>());
    let slow = &ran.report["slow_rank"];
    let told = format!("{slow:#}\n{:#}\n{}", ran.report["verdict"], ran.messages);
    assert_eq!(slow["rank"], 1, "{told}");
    assert_eq!(
        slow["lines"][0]["at"]["line"],
        marked(PROGRAM, "slow sleep"),
        "{told}"
    );
    let verdict = &ran.report["verdict"];
    assert_eq!(
        (&verdict["rank"], &verdict["cause"]),
        (&Value::from(1), &Value::from("communication-bound")),
        "{told}"
    );
    assert_eq!(
        verdict["at"]["line"],
        marked(PROGRAM, "slow sleep"),
        "{told}"
    );
    let words = ran
        .messages
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(words.contains("rank 1/2, which arrives last"), "{told}");

    // The first step, which warms up, is no part of it.
    let of = |rank: u64| {
        let objects = ran.printed.lines().filter(|line| line.starts_with('{'));
        let mut said = objects.map(|line| serde_json::from_str::<Value>(line).unwrap());
        let said = said.find(|said| said["rank"] == rank).unwrap();
        let spans = said["spans"].as_array().unwrap();
        let at = |span: &Value, end: usize| span[end].as_u64().unwrap();
        let span = (at(&spans[1], 0), at(spans.last().unwrap(), 1));
        let pid = said["pid"].as_u64().unwrap();
        let truth = ran
            .truths
            .iter()
            .find(|truth| u64::from(truth.pid) == pid)
            .unwrap();
        (reducing_ns(truth, span) as f64, (span.1 - span.0) as f64)
    };
    let ((first, wall), (last, _)) = (of(0), of(1));
    // The last one's kernels take what the data takes.
    let truth = (first - last) / wall;
    let share = slow["late"]["share"].as_f64().unwrap();
    println!("late {share:.3}, in truth {truth:.3}: {slow}");
    assert!((share - truth).abs() <= ALLOWED, "{truth:.3}: {told}");
}
