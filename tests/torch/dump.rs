//! `torchspy dump --tree` on Gloo ranks under torchrun of which the last hangs, in four ways: that
//! rank is named, with its line, and what the others wait for.

use crate::faults::{self, Target, program, wait_until};
use crate::marked;
use crate::native_live::torch_python;
use serde_json::Value;
use std::process::Command;

const RANKS: usize = 2;

fn dump(pid: i32, options: &[&str]) -> String {
    faults::dump(pid, &[&["--tree"], options].concat())
}

fn look(pid: i32) -> Value {
    let value: Value = serde_json::from_str(&dump(pid, &["--json"])).unwrap();
    value["looks"][0].clone()
}

fn rank(look: &Value, rank: usize) -> &Value {
    let processes = look["processes"].as_array().unwrap();
    let found = processes.iter().find(|each| each["rank"] == rank);
    found.unwrap_or_else(|| panic!("no rank {rank}: {look:#}"))
}

/// Ranks of which the last hangs in this way, and what a dump of them says once the others wait and
/// all of the last `is_there` where it hangs.
fn hanging(how: &str, line: &str, is_there: impl Fn(&Value) -> bool) -> Option<(Target, Value)> {
    let python = torch_python()?;
    let mut command = Command::new(python);
    command
        .args([
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
        ])
        .args([&RANKS.to_string(), &program("hang_ranks.py"), how])
        .env("OMP_NUM_THREADS", "1");
    let mut target = Target::spawn(&mut command);
    for _ in 0..RANKS {
        target.expect("ready");
    }
    let mut seen = Value::Null;
    wait_until("the last rank hangs, and the others wait for it", || {
        seen = look(target.pid());
        let awaited = seen["awaited"].as_array().unwrap();
        let last = rank(&seen, RANKS - 1);
        awaited.len() == 1
            && awaited[0] == last["pid"]
            && last["threads"][0]["at"]["line"] == marked("hang_ranks.py", line)
            && is_there(&seen)
    });
    Some((target, seen))
}

fn check_others(look: &Value) {
    let groups = look["ranks"].as_array().unwrap();
    let waiting = groups.last().unwrap();
    assert_eq!(waiting["waits_for_ranks"], true, "{groups:#?}");
    let doing = waiting["doing"].as_str().unwrap();
    assert!(doing.contains("all_reduce"), "{doing}");
    assert_eq!(
        waiting["at"]["line"],
        marked("hang_ranks.py", "backward"),
        "{waiting:#}"
    );
}

#[test]
fn a_rank_that_loops_in_python() {
    let Some((target, seen)) = hanging("python", "python", |_| true) else {
        return;
    };
    check_others(&seen);
    let last = rank(&seen, RANKS - 1);
    assert_eq!(last["threads"][0]["state"], "running", "{last:#}");
    let progress = last["progress"].as_array().unwrap();
    let value = |what: &str| {
        let found = progress.iter().find(|each| each["what"] == what);
        found.unwrap_or_else(|| panic!("no {what}: {progress:#?}"))["value"].clone()
    };
    assert_eq!(value("step"), 20);
    // It hangs in a function of its own, below none of torch's: the objects that count live on.
    assert_eq!(value("batch"), 21);
    assert!(value("parameter version").as_u64() > Some(20));
    let shown = dump(target.pid(), &[]);
    assert!(
        shown.contains("rank 1 differs: runs at hang_ranks.py"),
        "{shown}"
    );
    assert!(
        shown.contains("rank 0 waits in a collective that rank 1 is not in"),
        "{shown}"
    );
}

#[test]
fn a_rank_that_waits_for_a_lock() {
    // The holder has the lock before it sleeps.
    let sleeps = |seen: &Value| {
        let threads = rank(seen, RANKS - 1)["threads"].as_array().unwrap();
        let line = marked("hang_ranks.py", "holder");
        threads.iter().any(|thread| thread["at"]["line"] == line)
    };
    let Some((_target, seen)) = hanging("lock", "lock", sleeps) else {
        return;
    };
    check_others(&seen);
    let last = rank(&seen, RANKS - 1);
    let wait = &last["threads"][0]["waits_for"];
    assert_eq!(wait["kind"], "lock", "{last:#}");
    assert_eq!(wait["lock"]["name"], "lock", "{wait:#}");
    let owner = &wait["owner"]["tid"];
    let threads = last["threads"].as_array().unwrap();
    let holder = threads
        .iter()
        .find(|thread| thread["tid"] == *owner)
        .unwrap();
    assert_eq!(holder["python_name"], "holder");
    assert_eq!(holder["at"]["line"], marked("hang_ranks.py", "holder"));
}

/// The worker of the last rank that is at its endless read.
fn stuck_worker(look: &Value) -> Option<&Value> {
    let last = rank(look, RANKS - 1);
    let processes = look["processes"].as_array().unwrap();
    processes.iter().find(|process| {
        process["role"] == "dataloader_worker"
            && process["trainer_pid"] == last["pid"]
            && process["threads"][0]["at"]["line"] == marked("hang_ranks.py", "worker")
            && process["threads"][0]["syscall"] == "read"
    })
}

#[test]
fn a_rank_whose_worker_is_stuck_in_a_read() {
    // The last rank waits for slow batches at the same line, before.
    let Some((target, seen)) = hanging("worker", "loop", |seen| stuck_worker(seen).is_some())
    else {
        return;
    };
    check_others(&seen);
    let last = rank(&seen, RANKS - 1);
    assert_eq!(
        last["threads"][0]["waits_for"]["kind"], "input_queue",
        "{last:#}"
    );
    let stuck = stuck_worker(&seen).unwrap();
    let shown = dump(target.pid(), &[]);
    let pid = stuck["pid"].as_i64().unwrap();
    assert!(
        shown.contains(&format!("its DataLoader worker: thread {pid} ")),
        "{shown}"
    );
}

#[test]
fn a_rank_that_holds_the_gil_in_c() {
    let Some((_target, seen)) = hanging("gil", "gil", |_| true) else {
        return;
    };
    check_others(&seen);
    let last = rank(&seen, RANKS - 1);
    assert_eq!(last["gil_holder"], last["pid"], "{last:#}");
    assert_eq!(last["threads"][0]["gil"], true);
}

#[test]
fn tensors_are_read_from_outside() {
    let Some((target, _)) = hanging("python", "python", |_| true) else {
        return;
    };
    let value: Value = serde_json::from_str(&dump(target.pid(), &["--json", "--locals"])).unwrap();
    let waiting = rank(&value["looks"][0], 0);
    let frames = waiting["threads"][0]["frames"].as_array().unwrap();
    let main = frames
        .iter()
        .find(|frame| frame["function"] == "main")
        .unwrap();
    let locals = main["locals"].as_array().unwrap();
    let value = |name: &str| {
        let found = locals.iter().find(|local| local["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {locals:#?}"))["value"].clone()
    };
    assert_eq!(value("inputs"), "Tensor (4, 8) float32 cpu");
    assert_eq!(value("labels"), "Tensor (4) int64 cpu");
    assert_eq!(value("loss"), "Tensor () float32 cpu");
    assert_eq!(value("rank"), "0");
}
