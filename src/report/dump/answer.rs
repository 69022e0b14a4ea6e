//! Reads what [`json`](super::json) writes: the answers of a job's machines.
//!
//! They come from other machines and other versions of torchspy. Keys that are not known are
//! skipped, keys that are missing are empty, and words that are not known have general meanings.

use crate::analysis::dump::job::HostAnswer;
use crate::model::category::FrameKind;
use crate::model::dump::{
    Dump, DumpedFrame, DumpedProcess, DumpedThread, DumpedWait, JobKey, Local, Lock, Owner, Place,
    Progress, THREAD_END,
};
use crate::model::frame::Partial;
use crate::model::nccl_ras::{
    Communicator, JobSize, Member, MissingRank, Ras, RasAnswer, RasRank, UnnamedRanks,
};
use crate::model::profile::Role;
use crate::model::sample::{Capture, Gil, ThreadState};
use crate::model::tasks::{AsyncTask, TaskState};
use crate::model::wait::WaitKind;
use serde::Deserialize;

/// Kinds of locks and kinds of evidence that a dump names.
const LOCKS: &[&str] = &[
    "threading.Lock",
    "threading.RLock",
    "pthread mutex",
    THREAD_END,
];
const EVIDENCE: &[&str] = &[
    "its `with` block",
    "the interpreter",
    "the mutex",
    "the RLock",
];
/// The newest version of the schema that is read.
const SCHEMA: u32 = 1;

#[derive(Deserialize)]
struct File {
    schema: u32,
    #[serde(default)]
    host: String,
    looks: Option<Vec<Look>>,
    hosts: Option<Vec<Machine>>,
}

/// A machine in the answer of a whole job.
#[derive(Deserialize)]
struct Machine {
    host: String,
    looks: Option<Vec<Look>>,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Look {
    wall_s: f64,
    skew_ms: Option<f64>,
    stopped: u64,
    stops_us: Vec<f64>,
    longest_stop_us: f64,
    processes: Vec<Process>,
    missing: Vec<String>,
    nccl_ras: Vec<RasEntry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RasEntry {
    address: String,
    error: Option<String>,
    nccl_version: Option<String>,
    job: Option<JobSize>,
    may_be_others: Option<bool>,
    communicators: Option<Vec<RasCommunicator>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RasCommunicator {
    hash: String,
    size: u32,
    ranks: Vec<RasRankEntry>,
    unnamed: Vec<RasUnnamedEntry>,
    missing: Vec<RasMissingEntry>,
    unnamed_missing: u32,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RasUnnamedEntry {
    kind: String,
    count: u64,
    ranks: u32,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RasRankEntry {
    of: RasMember,
    async_error: i32,
    counts: Vec<RasCount>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RasMissingEntry {
    of: RasMember,
    unresponsive: bool,
    dead: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RasMember {
    rank: u32,
    host: String,
    pid: i32,
    here: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RasCount {
    kind: String,
    count: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Process {
    pid: i32,
    role: String,
    rank: Option<u32>,
    world_size: Option<u32>,
    worker: Option<u32>,
    trainer_pid: Option<i32>,
    job: Option<Job>,
    groups: Option<String>,
    command: Vec<String>,
    python: Option<String>,
    torch: Option<String>,
    note: Option<String>,
    gil_holder: Option<i32>,
    progress: Vec<Counter>,
    threads: Vec<Thread>,
    tasks: Vec<Task>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Task {
    name: String,
    tid: Option<i32>,
    state: String,
    awaits: Vec<String>,
    frames: Vec<At>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Job {
    ids: Vec<String>,
    address: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Counter {
    what: String,
    value: u64,
    source: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Thread {
    tid: i32,
    name: String,
    python_name: Option<String>,
    trains: bool,
    state: String,
    capture: String,
    syscall: Option<String>,
    gil: Option<bool>,
    waits_for: Option<Wait>,
    module: Option<String>,
    at: Option<At>,
    frames: Vec<Frame>,
    partial: Option<String>,
    moved_frames: usize,
    slices: Option<u64>,
    wchan: Option<String>,
    kernel_stack: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Wait {
    kind: String,
    what: String,
    lock: Option<WaitLock>,
    owner: Option<WaitOwner>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WaitLock {
    kind: String,
    address: u64,
    name: Option<String>,
    timed: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WaitOwner {
    tid: i32,
    known_by: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct At {
    function: String,
    file: String,
    line: u32,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Frame {
    function: String,
    file: String,
    line: Option<u32>,
    python: bool,
    kind: String,
    guess: bool,
    module: Option<String>,
    locals: Option<Vec<Variable>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Variable {
    name: String,
    value: String,
}

/// The answers in an output of `dump --json`: that of one machine, or those of a job's. Of several
/// snapshots the last. The host is empty where the answer does not name it.
///
/// # Errors
/// A few words on what is wrong with it.
pub fn parse_answers(bytes: &[u8]) -> Result<Vec<HostAnswer>, String> {
    let file: File = serde_json::from_slice(bytes)
        .map_err(|error| format!("it is no answer of torchspy dump --json: {error}"))?;
    if file.schema > SCHEMA {
        return Err(format!(
            "it is of version {} of the schema, and this torchspy reads {SCHEMA}: a newer torchspy wrote it",
            file.schema
        ));
    }
    let last = |host: String, looks: Vec<Look>| {
        looks.into_iter().next_back().map(|look| HostAnswer {
            host,
            dump: dump(look),
        })
    };
    let answers: Vec<HostAnswer> = match (file.hosts, file.looks) {
        (Some(hosts), _) => hosts
            .into_iter()
            .filter_map(|machine| last(machine.host, machine.looks?))
            .collect(),
        (None, looks) => last(file.host, looks.unwrap_or_default())
            .into_iter()
            .collect(),
    };
    match answers.is_empty() {
        true => Err("it holds no snapshot".to_owned()),
        false => Ok(answers),
    }
}

/// A number of nanoseconds; 0 for what is no time.
fn ns(value: f64, unit: f64) -> u64 {
    (value * unit).round().max(0.0) as u64
}

fn dump(look: Look) -> Dump {
    Dump {
        wall_ns: ns(look.wall_s, 1e9),
        skew_ns: look.skew_ms.map(|skew| ns(skew, 1e6)),
        stopped: look.stopped,
        longest_stop_ns: ns(look.longest_stop_us, 1e3),
        stops_ns: look.stops_us.iter().map(|&us| ns(us, 1e3)).collect(),
        processes: look.processes.into_iter().map(process).collect(),
        missing: look.missing,
        nccl_ras: look.nccl_ras.into_iter().map(ras).collect(),
        memory: None,
    }
}

fn ras(entry: RasEntry) -> RasAnswer {
    let member = |of: RasMember| Member {
        rank: of.rank,
        host: of.host,
        pid: of.pid,
        is_here: of.here,
    };
    let communicator = |each: RasCommunicator| Communicator {
        hash: each.hash,
        size: each.size,
        ranks: each
            .ranks
            .into_iter()
            .map(|rank| RasRank {
                member: member(rank.of),
                async_error: rank.async_error,
                counts: rank
                    .counts
                    .into_iter()
                    .map(|each| (each.kind, each.count))
                    .collect(),
            })
            .collect(),
        unnamed: each
            .unnamed
            .into_iter()
            .map(|ranks| UnnamedRanks {
                collective: ranks.kind,
                launched: ranks.count,
                ranks: ranks.ranks,
            })
            .collect(),
        missing: each
            .missing
            .into_iter()
            .map(|rank| MissingRank {
                member: member(rank.of),
                unresponsive: rank.unresponsive,
                dead: rank.dead,
            })
            .collect(),
        unnamed_missing: each.unnamed_missing,
    };
    RasAnswer {
        address: entry.address,
        ras: match (entry.communicators, entry.error) {
            (Some(communicators), None) => Ok(Ras {
                nccl_version: entry.nccl_version.unwrap_or_default(),
                job: entry.job,
                may_be_others: entry.may_be_others.unwrap_or_default(),
                communicators: communicators.into_iter().map(communicator).collect(),
            }),
            (_, error) => Err(error.unwrap_or_default()),
        },
    }
}

fn process(process: Process) -> DumpedProcess {
    DumpedProcess {
        pid: process.pid,
        role: match process.role.as_str() {
            "launcher" => Role::Launcher,
            "trainer" => Role::Trainer {
                rank: process.rank,
                local_rank: None,
                world_size: process.world_size,
            },
            "dataloader_worker" => Role::DataLoaderWorker {
                number: process.worker.unwrap_or(0),
                trainer: None,
            },
            _ => Role::Other,
        },
        trainer_pid: process.trainer_pid,
        job: process.job.map(|job| JobKey {
            ids: job.ids,
            address: job.address,
            world_size: process.world_size,
        }),
        groups: process.groups.unwrap_or_default(),
        command: process.command,
        python: process.python.unwrap_or_default(),
        torch: process.torch.unwrap_or_default(),
        note: process.note.unwrap_or_default(),
        progress: process
            .progress
            .into_iter()
            .map(|counter| Progress {
                what: counter.what,
                value: counter.value,
                source: counter.source,
            })
            .collect(),
        gil_holder: process.gil_holder,
        threads: process.threads.into_iter().map(thread).collect(),
        tasks: process.tasks.into_iter().map(task).collect(),
    }
}

fn task(task: Task) -> AsyncTask {
    let state = TaskState::ALL
        .iter()
        .find(|state| state.name() == task.state);
    AsyncTask {
        name: task.name,
        tid: task.tid,
        state: state.copied().unwrap_or(TaskState::Waiting),
        awaits: task.awaits,
        frames: task.frames.into_iter().map(place).collect(),
    }
}

fn place(at: At) -> Place {
    Place {
        function: at.function,
        file: at.file,
        line: at.line,
    }
}

fn thread(thread: Thread) -> DumpedThread {
    let state = ThreadState::ALL
        .iter()
        .find(|state| state.name() == thread.state);
    DumpedThread {
        tid: thread.tid,
        name: thread.name,
        python_name: thread.python_name,
        trains: thread.trains,
        state: state.copied().unwrap_or_default(),
        capture: match thread.capture.as_str() {
            "stopped" => Capture::Stopped,
            "asleep" => Capture::Asleep,
            "unstopped" => Capture::Unstopped,
            "sampled" => Capture::Sampled,
            _ => Capture::NotCaptured,
        },
        syscall: thread.syscall,
        gil: match thread.gil {
            Some(true) => Gil::Held,
            Some(false) => Gil::NotHeld,
            None => Gil::Unknown,
        },
        wait: thread.waits_for.and_then(wait),
        module: thread.module,
        at: thread.at.map(place),
        frames: thread.frames.into_iter().map(frame).collect(),
        partial: thread.partial.map(|why| {
            let known = Partial::ALL.iter().find(|partial| partial.name() == why);
            known.map_or("not known", |partial| partial.name())
        }),
        moved_frames: thread.moved_frames,
        slices: thread.slices,
        wchan: thread.wchan,
        kernel_stack: thread.kernel_stack,
    }
}

/// A wait; `None` for a kind that is not known.
fn wait(wait: Wait) -> Option<DumpedWait> {
    let kind = WaitKind::ALL.iter().find(|kind| kind.name() == wait.kind)?;
    Some(DumpedWait {
        kind: *kind,
        what: wait.what,
        owner: wait.owner.map(|owner| Owner {
            tid: owner.tid,
            by: of(EVIDENCE, &owner.known_by).unwrap_or("its own evidence"),
        }),
        lock: wait.lock.map(|lock| Lock {
            kind: of(LOCKS, &lock.kind).unwrap_or("lock"),
            address: lock.address,
            name: lock.name,
            is_timed: lock.timed,
        }),
    })
}

fn of(known: &[&'static str], word: &str) -> Option<&'static str> {
    known.iter().find(|each| **each == word).copied()
}

fn frame(frame: Frame) -> DumpedFrame {
    let kind = FrameKind::ALL.iter().find(|kind| kind.name() == frame.kind);
    let kind = kind.copied().unwrap_or(match frame.python {
        true => FrameKind::PythonLibrary,
        false => FrameKind::Native,
    });
    DumpedFrame {
        short_name: frame.function.clone(),
        name: frame.function,
        file: frame.file,
        line: frame.line.unwrap_or(0),
        is_python: frame.python,
        // It was paired with the frames around it where it was made.
        is_region: false,
        kind,
        is_guess: frame.guess,
        is_plumbing: matches!(kind, FrameKind::Interpreter | FrameKind::Plumbing),
        module: frame.module,
        locals: frame.locals.map(|locals| {
            let local = |each: Variable| Local {
                name: each.name,
                value: each.value,
            };
            locals.into_iter().map(local).collect()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::dump::moved::Comparison;
    use crate::report::dump::json::{render_snapshot, render_snapshots};
    use serde_json::{Value, json};

    /// An answer with every key.
    fn answer() -> Value {
        let at = json!({"function": "main", "file": "/job/train.py", "line": 7});
        let thread = json!({
            "tid": 12, "name": "python", "python_name": "MainThread", "trains": true,
            "state": "sleeping", "capture": "asleep", "syscall": "futex", "gil": false,
            "waits_for": {
                "kind": "lock", "what": "lock",
                "lock": {"kind": "threading.Lock", "address": 4096, "name": "self.lock", "timed": true},
                "owner": {"tid": 13, "known_by": "its `with` block"},
            },
            "module": "Net", "at": at,
            "frames": [{
                "function": "main", "file": "/job/train.py", "line": 7, "python": true,
                "kind": FrameKind::PythonUser.name(), "guess": false, "module": null,
                "locals": [{"name": "step", "value": "7"}],
            }],
            "partial": "no_unwind_info", "moved_frames": 1, "slices": 7, "wchan": "futex_wait", "kernel_stack": ["a"],
        });
        json!({
            "wall_s": 1.5, "skew_ms": 2.0, "stopped": 1, "stops_us": [80.0], "longest_stop_us": 80.0,
            "processes": [{
                "pid": 12, "role": "trainer", "rank": 3, "world_size": 4, "worker": null,
                "trainer_pid": null, "job": {"ids": ["run7"], "address": "node1:29500"}, "groups": "pp=1,3;dp=2,3", "command": ["python", "train.py"], "python": "3.11", "torch": "2.15",
                "note": "a note", "gil_holder": 12,
                "progress": [{"what": "step", "value": 20, "source": "main"}],
                "threads": [thread],
                "tasks": [{"name": "w-1", "tid": 12, "state": "ready", "awaits": ["w-2"], "frames": [at]}],
            }],
            "ranks": [], "deadlocks": [], "awaited": [], "equal": [], "missing": ["something"],
            "memory": null,
            "nccl_ras": [
                {
                    "address": "localhost:1", "error": "off", "nccl_version": null, "job": null,
                    "may_be_others": null, "communicators": null,
                },
                {"address": "localhost:2", "error": null, "nccl_version": "2.30.7", "job": null,
                "may_be_others": false, "communicators": [{
                    "hash": "0x1", "size": 2, "unnamed": [], "unnamed_missing": 0,
                    "ranks": [{
                        "of": {"rank": 0, "host": "10.0.0.1", "pid": 12, "here": true}, "async_error": 0,
                        "counts": [{"kind": "AllReduce", "count": 7}],
                    }],
                    "missing": [{
                        "of": {"rank": 1, "host": "10.0.0.2", "pid": 13, "here": false},
                        "unresponsive": true, "dead": false,
                    }],
                }]},
            ],
        })
    }

    #[test]
    fn what_is_written_is_read_back() {
        let look = answer();
        let text =
            render_snapshots("node1", std::slice::from_ref(&look), &Comparison::default()).unwrap();
        let answers = parse_answers(text.as_bytes()).unwrap();
        assert_eq!((answers.len(), answers[0].host.as_str()), (1, "node1"));
        assert_eq!(render_snapshot(&answers[0].dump), look);
    }

    #[test]
    fn what_is_missing_or_not_known_is_left_out() {
        let text = r#"{"schema": 1, "looks": [{"processes": [{"pid": 1, "role": "trainer", "new": 1, "threads": [
            {"tid": 1, "trains": true, "state": "new", "waits_for": {"kind": "new"}, "frames": [{}]}]}]}]}"#;
        let answers = parse_answers(text.as_bytes()).unwrap();
        let thread = &answers[0].dump.processes[0].threads[0];
        assert_eq!(thread.state, ThreadState::Unknown);
        assert!(thread.wait.is_none() && thread.frames.len() == 1);
    }

    #[test]
    fn what_is_no_answer_says_why() {
        let deep = "[".repeat(100_000);
        for (text, why) in [
            ("", "no answer"),
            ("[]", "no answer"),
            ("{\"schema\": 1, \"looks\": 3}", "no answer"),
            (deep.as_str(), "no answer"),
            ("{\"schema\": 1}", "no snapshot"),
            ("{\"schema\": 1, \"looks\": []}", "no snapshot"),
            ("{\"schema\": 2, \"looks\": []}", "newer torchspy"),
        ] {
            let found = parse_answers(text.as_bytes()).err().unwrap_or_default();
            assert!(found.contains(why), "{found}");
        }
    }
}
