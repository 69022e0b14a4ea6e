//! One segment with names, classes and sums.

use super::sums::{CodeKey, ModuleKey, ThreadSums};
use crate::analysis::functions::hot;
use crate::analysis::modules::modules;
use crate::analysis::operators::operators;
use crate::analysis::summary::parts;
use crate::analysis::threads::{ThreadSummary, threads};
use crate::model::category::Activity;
use crate::model::ids::{FunctionId, ProcessId, ThreadId};
use crate::model::process::ProcessInfo;
use crate::model::profile::{Profile, ProfileSample, Role};
use crate::model::sample::{Gil, ThreadState};
use crate::model::wait::WaitKind;

/// A thread over a segment, with its state at the end.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkThread {
    pub tid: i32,
    pub name: String,
    /// Its role: `training thread`, `OpenMP worker`, …
    pub role: &'static str,
    pub wall_ns: u64,
    pub cpu_ns: u64,
    /// Its state at its last sample.
    pub state: ThreadState,
    /// Its activity at its last sample.
    pub activity: Activity,
    /// What it waited for then: kind and label.
    pub wait: Option<(WaitKind, String)>,
    /// Its Python function, file and line at its last sample.
    pub at: Option<CodeKey>,
    /// Whether it held the GIL at its last sample.
    pub has_gil: bool,
}

/// A process over a segment.
#[derive(Clone, Debug)]
pub struct ChunkProcess {
    pub info: ProcessInfo,
    /// Its role, as far as this segment shows.
    pub role: Role,
    /// The thread that trains, by its tid, as far as this segment shows.
    pub training_tid: Option<i32>,
    pub sums: ThreadSums,
    pub threads: Vec<ChunkThread>,
}

/// The processes of a segment's profile. `training` returns the tid of a pid's training thread if
/// it is known better than from one segment.
pub fn chunk(profile: &Profile, training: impl Fn(i32) -> Option<i32>) -> Vec<ChunkProcess> {
    let mut found = Vec::new();
    for (at, process) in profile.processes.iter().enumerate() {
        let id = ProcessId::from_index(at);
        let samples: Vec<&ProfileSample> = profile
            .samples
            .iter()
            .filter(|sample| {
                let thread = profile.thread(sample.thread);
                thread.is_some_and(|thread| thread.process == id)
            })
            .collect();
        let thread = training(process.info.pid)
            .and_then(|tid| thread_of(profile, id, tid))
            .or(process.training_thread);
        let own: Vec<&ProfileSample> = samples
            .iter()
            .copied()
            .filter(|sample| Some(sample.thread) == thread)
            .collect();
        found.push(ChunkProcess {
            info: process.info.clone(),
            role: process.role,
            training_tid: thread.and_then(|thread| Some(profile.thread(thread)?.tid)),
            sums: sums(profile, &own),
            threads: chunk_threads(profile, &samples, thread),
        });
    }
    found
}

fn thread_of(profile: &Profile, process: ProcessId, tid: i32) -> Option<ThreadId> {
    let mut threads = profile.threads.iter();
    let at = threads.position(|thread| thread.process == process && thread.tid == tid)?;
    Some(ThreadId::from_index(at))
}

/// The key of a line of a function; without a line, of its first.
fn code_key(profile: &Profile, function: FunctionId, line: Option<u32>) -> Option<CodeKey> {
    let function = profile.function(function)?;
    Some(CodeKey {
        name: function.short_name.clone(),
        file: function.file.clone(),
        line: line.unwrap_or(function.first_line),
    })
}

fn sums(profile: &Profile, samples: &[&ProfileSample]) -> ThreadSums {
    let mut sums = ThreadSums {
        wall_ns: samples.iter().map(|sample| sample.weight_ns).sum(),
        ticks: samples.iter().map(|sample| u64::from(sample.ticks)).sum(),
        ..ThreadSums::default()
    };
    let hot = hot(profile, samples.iter().copied());
    for row in &hot.python {
        if let Some(key) = code_key(profile, row.function, None) {
            sums.functions.put(key, row.self_ns, row.total_ns);
        }
    }
    for row in &hot.lines {
        if let Some(key) = code_key(profile, row.function, Some(row.line)) {
            sums.lines.put(key, row.self_ns, row.total_ns);
        }
    }
    for row in &hot.native {
        if let Some(key) = code_key(profile, row.function, Some(0)) {
            sums.native.put(key, row.self_ns, row.total_ns);
        }
    }
    for row in operators(profile, samples, sums.wall_ns, sums.ticks).operators {
        sums.operators.put(row.name, row.self_ns, row.total_ns);
    }
    for row in modules(profile, samples, sums.wall_ns, sums.ticks).modules {
        let path = row.path.split('.').filter(|part| !part.is_empty());
        let key = ModuleKey {
            path: path.map(str::to_owned).collect(),
            root: (row.root, row.number),
        };
        if !row.class.is_empty() {
            sums.classes.insert(key.clone(), row.class);
        }
        sums.modules.put(key, row.self_ns, row.total_ns);
    }
    for sample in samples {
        for (phase, activity, _, ns) in parts(sample) {
            if ns > 0 {
                *sums.matrix.entry((phase, activity)).or_default() += ns;
            }
        }
    }
    sums
}

fn chunk_threads(
    profile: &Profile,
    samples: &[&ProfileSample],
    training: Option<ThreadId>,
) -> Vec<ChunkThread> {
    let summed = threads(profile, samples, training);
    let of = |summary: ThreadSummary| {
        let info = profile.thread(summary.thread)?;
        // Samples are sorted by thread and start: the last of a thread is its latest.
        let last = samples
            .iter()
            .rfind(|sample| sample.thread == summary.thread)?;
        let line = profile.facts.line(last.stack);
        Some(ChunkThread {
            tid: info.tid,
            name: info.name.clone(),
            role: summary.role,
            wall_ns: summary.wall_ns,
            cpu_ns: summary.cpu_ns,
            state: last.state,
            activity: last.activity,
            wait: last
                .wait
                .map(|wait| (wait.kind, profile.facts.names.get(wait.label).to_owned())),
            at: line.and_then(|(function, line)| code_key(profile, function, Some(line))),
            has_gil: last.gil == Gil::Held,
        })
    };
    summed.into_iter().filter_map(of).collect()
}
