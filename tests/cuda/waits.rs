//! Waits for a device: each is named as what it is, at its line, for as long as the truth log says.

use crate::faults::marked;
use crate::installed::torch_python;
use crate::node::{Node, Ran, waited_ns};
use gpu_node::scenario::{Cost, Gpu, Scenario, Wait};
use gpu_node::truth::Kind;
use serde_json::Value;

const PROGRAM: &str = "gpu_waits.py";
/// Of the thread's wall time; or the truth lies in the interval that is stated.
const ALLOWED: f64 = 0.01;
/// The same where it is inferred by the second.
const FULL: f64 = 0.05;
/// What has another name may have this part of a line's waits: the copy of a tensor also copies.
const OTHERS: f64 = 0.15;

/// Mark, kind, and what the wait is called.
const PLANTED: &[(&str, &str, &str)] = &[
    ("item", "gpu_sync", ".item()"),
    ("cpu", "gpu_copy", ".cpu() (pageable memory)"),
    ("to_device", "gpu_copy", ".to() (not non_blocking)"),
    ("to_device_pinned", "gpu_copy", ".to() (not non_blocking)"),
    ("to_host", "gpu_copy", ".to() (pageable memory)"),
    ("copy_pinned", "gpu_copy", ".copy_() (not non_blocking)"),
    ("tolist", "gpu_copy", ".tolist() (pageable memory)"),
    ("numpy", "gpu_copy", ".cpu() (pageable memory)"),
    ("shown", "gpu_sync", "print() or repr() of a tensor"),
    ("condition", "gpu_sync", "bool() of a tensor"),
    ("nonzero", "gpu_sync", ".nonzero()"),
    ("indexed", "gpu_sync", "indexing, tensor[...]"),
    ("synchronize", "gpu_sync", "torch.cuda.synchronize()"),
    ("stream_synchronize", "gpu_sync", "Stream.synchronize()"),
    ("event_synchronize", "gpu_sync", "Event.synchronize()"),
    ("empty_cache", "gpu_sync", "torch.cuda.empty_cache()"),
    (
        "pressure",
        "gpu_sync",
        "allocation that frees cached memory",
    ),
    ("between", "gpu_sync", "torch.cuda.synchronize()"),
];

fn scenario(wait: Wait) -> Scenario {
    Scenario {
        // Less than two of the blocks that the program asks for.
        gpus: vec![Gpu {
            memory_total: 6 << 30,
            ..Gpu::default()
        }],
        kernels: vec![Cost {
            name: "vectorized_elementwise".to_owned(),
            us: 500.0,
        }],
        wait,
        ..Scenario::default()
    }
}

fn spans(said: &Value, mark: &str) -> Vec<(u64, u64)> {
    let spans = said[mark].as_array().unwrap().iter();
    spans
        .map(|span| (span[0].as_u64().unwrap(), span[1].as_u64().unwrap()))
        .collect()
}

/// The waits for a device at a line.
struct Found<'r> {
    kind: &'r str,
    what: &'r str,
    seconds: f64,
    share: f64,
    /// How far the share may be off, by the report's own interval.
    margin: f64,
}

fn found<'r>(ran: &'r Ran, line: u64) -> Vec<Found<'r>> {
    let rows = ran.report["waits"].as_array().unwrap().iter();
    rows.filter(|row| row["at"]["line"] == line && row["kind"].as_str().unwrap().starts_with("gpu"))
        .map(|row| {
            let number = |value: &Value| value.as_f64().unwrap();
            let interval = &row["interval"];
            Found {
                kind: row["kind"].as_str().unwrap(),
                what: row["what"].as_str().unwrap(),
                seconds: number(&row["seconds"]),
                share: number(&row["share"]),
                margin: (number(&interval["high"]) - number(&interval["low"])) / 2.0,
            }
        })
        .collect()
}

/// Checks all kinds; `wait` is what a thread does meanwhile.
fn check(wait: Wait) {
    let Some(python) = torch_python() else { return };
    let node = Node::new(&scenario(wait));
    let ran = node.record(&python, &[PROGRAM, "12"], &["--gpu", "none"]);
    let [truth] = &ran.truths[..] else {
        panic!("{} processes", ran.truths.len())
    };
    let all: Vec<(&str, Vec<(u64, u64)>)> = (PLANTED.iter())
        .filter(|(mark, ..)| *mark != "between")
        .map(|&(mark, ..)| (mark, spans(&ran.said, mark)))
        .collect();
    let mut wrong = Vec::new();
    for &(mark, kind, what) in PLANTED {
        let waited = match all.iter().find(|(name, _)| *name == mark) {
            Some((_, spans)) => waited_ns(truth, truth.pid, spans),
            // From the end of each mark's to the begin of the next: what fills the queue launches.
            None => between_ns(truth, &ran.said),
        } as f64
            / 1e9;
        let rows = found(&ran, marked(PROGRAM, mark));
        let seconds: f64 = rows.iter().map(|row| row.seconds).sum();
        let share: f64 = rows.iter().map(|row| row.share).sum();
        // The thread's wall time, by the row that says both.
        let wall = seconds / share.max(f64::MIN_POSITIVE);
        let shown = format!("{mark}: {seconds:.3} of {waited:.3} s in {wall:.1} s");
        println!("{shown}");
        let margin = rows.iter().map(|row| row.margin).fold(ALLOWED, f64::max);
        if !((seconds - waited).abs() <= margin * wall && waited > 0.0) {
            wrong.push(shown.clone());
        }
        let named = rows
            .iter()
            .filter(|row| row.kind == kind && row.what == what);
        if named.map(|row| row.seconds).sum::<f64>() < (1.0 - OTHERS) * seconds {
            let rows = rows.iter().map(|row| (row.kind, row.what, row.seconds));
            wrong.push(format!("{shown} is {what}: {:?}", rows.collect::<Vec<_>>()));
        }
    }
    assert!(wrong.is_empty(), "{wait:?}: {wrong:#?}");
}

/// Waits between the marks: for all that the marks' own lines left in the queue.
fn between_ns(truth: &gpu_node::truth::Truth, said: &Value) -> u64 {
    let mut inside: Vec<(u64, u64)> = said
        .as_object()
        .unwrap()
        .keys()
        .flat_map(|mark| spans(said, mark))
        .collect();
    inside.sort_unstable();
    let gaps: Vec<(u64, u64)> = inside
        .windows(2)
        .map(|pair| (pair[0].1, pair[1].0))
        .chain(inside.last().map(|last| (last.1, u64::MAX)))
        .collect();
    waited_ns(truth, truth.pid, &gaps)
}

#[test]
fn a_thread_that_spins_for_the_device_waits_at_its_line() {
    check(Wait::Spin);
}

#[test]
fn a_thread_that_sleeps_for_the_device_waits_at_its_line() {
    check(Wait::Block);
}

/// Threads that spin in a launch, in forward and in the engine's.
#[test]
fn a_full_queue_is_a_wait_for_the_device() {
    let Some(python) = torch_python() else { return };
    let node = Node::new(&Scenario {
        slow: 10.0,
        queue: 64,
        wait: Wait::Spin,
        ..Scenario::default()
    });
    let words = ["gpu_train.py", "--model", "gpt", "--steps", "200"];
    let ran = node.record(&python, &words, &[]);
    let [truth] = &ran.truths[..] else {
        panic!("{} processes", ran.truths.len())
    };
    let waits = truth.of_kind(Kind::Wait).map(|(wait, _)| wait);
    let waited: u64 = waits.map(|wait| wait.end.saturating_sub(wait.start)).sum();
    let rows = ran.report["waits"].as_array().unwrap();
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap();
    let of = |kind: &str| {
        let rows = rows.iter();
        let rows = rows.filter(|row| row["kind"].as_str().unwrap().starts_with(kind));
        rows.map(|row| number(row, "seconds")).sum::<f64>()
    };
    let wall = rows
        .first()
        .map(|row| number(row, "seconds") / number(row, "share"));
    let (said, without_cpu, waited) = (of("gpu"), of("cpu"), waited as f64 / 1e9);
    println!("{said:.2} of {waited:.2} s in {wall:.1?} s, without a CPU {without_cpu:.2} s");
    // A thread that spins and has no CPU meanwhile waits for a CPU.
    let allowed = FULL * wall.unwrap() + without_cpu;
    if waited < 0.3 * wall.unwrap() {
        println!("skipped: the machine is too busy to fill the queue of launches");
        return;
    }
    assert!((said - waited).abs() <= allowed, "{said} of {waited}");
}
