//! Role and activity of every thread.

use crate::model::as_json::name;
use crate::model::category::Activity;
use crate::model::facts::StackFacts;
use crate::model::ids::ThreadId;
use crate::model::profile::{Profile, ProfileSample};
use crate::model::sample::ThreadState;
use crate::model::seconds;
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Serialize;

/// Role of the OpenMP threads that do not call parallel regions themselves.
pub(super) const OPENMP_WORKER: &str = "OpenMP worker";

/// A thread.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
#[schemars(rename = "Thread")]
pub struct ThreadSummary {
    /// Its id in the profile.
    #[serde(skip)]
    pub thread: ThreadId,
    /// Its tid.
    pub tid: i32,
    /// Its name.
    pub name: String,
    /// Its role, for people.
    pub role: &'static str,
    /// Time sampled.
    #[serde(rename = "wall_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub wall_ns: u64,
    /// CPU time.
    #[serde(rename = "cpu_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub cpu_ns: u64,
    /// Time in which it ran or was runnable.
    #[serde(skip)]
    pub running_ns: u64,
    /// The activity with the most time.
    #[serde(serialize_with = "name")]
    #[schemars(with = "String")]
    pub main_activity: Activity,
    /// That activity's share of its time.
    pub main_share: f64,
}

/// Roles by the prefix of the name. Source: strings of the torch 2.15.0 binaries; CUDA driver 570;
/// CPython Lib/multiprocessing/queues.py (3.14 and later set names).
const BY_NAME: &[(&str, &str)] = &[
    ("pt_autograd_", "autograd engine"),
    ("pt_nccl_watchdg", "NCCL watchdog"),
    ("pt_nccl_heartbt", "NCCL heartbeat"),
    ("pt_nccl_", "NCCL"),
    ("pt_gloo_", "gloo"),
    ("pt_tcpstore", "TCPStore"),
    ("pt_data_pin", "DataLoader pin memory"),
    ("pt_data_worker", "DataLoader worker"),
    ("pt_elastic", "elastic agent"),
    ("pt_thread_pool", "torch thread pool"),
    ("cuda-EvtHandlr", "CUDA driver"),
    ("cuda", "CUDA driver"),
    ("QueueFeeder", "queue feeder"),
];

fn role(
    profile: &Profile,
    thread: ThreadId,
    own: &[&ProfileSample],
    training: Option<ThreadId>,
) -> &'static str {
    let Some(info) = profile.thread(thread) else {
        return "thread";
    };
    if training == Some(thread) {
        return "training thread";
    }
    if let Some((_, role)) = BY_NAME
        .iter()
        .find(|(start, _)| info.name.starts_with(start))
    {
        return role;
    }
    let pid = profile
        .process(info.process)
        .map(|process| process.info.pid);
    if pid == Some(info.tid) {
        return "main thread";
    }
    let first = |is: fn(StackFacts) -> bool| {
        let mut first = own.iter().take(64);
        first.any(|sample| is(profile.facts.of(sample.stack)))
    };
    if first(|stack| stack.is_watchdog) {
        // nccl2's has no name of its own.
        "NCCL watchdog"
    } else if info.is_python {
        "Python thread"
    } else if first(|stack| stack.has_openmp) {
        OPENMP_WORKER
    } else {
        "native thread"
    }
}

/// The threads of `samples` by descending CPU time, the training thread first.
pub fn threads(
    profile: &Profile,
    samples: &[&ProfileSample],
    training: Option<ThreadId>,
) -> Vec<ThreadSummary> {
    let mut own: FxHashMap<ThreadId, Vec<&ProfileSample>> = FxHashMap::default();
    for sample in samples {
        own.entry(sample.thread).or_default().push(sample);
    }
    let mut threads: Vec<ThreadSummary> = own
        .into_iter()
        .map(|(thread, own)| summarize(profile, thread, &own, training))
        .collect();
    threads.sort_by_key(|thread| {
        (
            Some(thread.thread) != training,
            std::cmp::Reverse((thread.cpu_ns, thread.running_ns)),
            thread.thread,
        )
    });
    threads
}

fn summarize(
    profile: &Profile,
    thread: ThreadId,
    own: &[&ProfileSample],
    training: Option<ThreadId>,
) -> ThreadSummary {
    let mut by_activity: FxHashMap<Activity, u64> = FxHashMap::default();
    let mut wall_ns = 0_u64;
    let mut running_ns = 0_u64;
    for sample in own {
        let queue_ns = sample.queue_ns.min(sample.weight_ns);
        *by_activity.entry(sample.activity).or_default() += sample.weight_ns - queue_ns;
        *by_activity.entry(Activity::CpuWait).or_default() += queue_ns;
        wall_ns = wall_ns.saturating_add(sample.weight_ns);
        if sample.state == ThreadState::Running {
            running_ns = running_ns.saturating_add(sample.weight_ns);
        }
    }
    let (main_activity, main_ns) = by_activity
        .into_iter()
        .max_by_key(|&(activity, ns)| (ns, std::cmp::Reverse(activity)))
        .unwrap_or((Activity::Unclassified, 0));
    let info = profile.thread(thread);
    ThreadSummary {
        thread,
        tid: info.map_or(0, |info| info.tid),
        name: info.map_or_else(String::new, |info| info.name.clone()),
        role: role(profile, thread, own, training),
        wall_ns,
        cpu_ns: profile
            .thread_cpu_ns
            .get(thread.index())
            .copied()
            .unwrap_or(0),
        running_ns,
        main_activity,
        main_share: main_ns as f64 / wall_ns.max(1) as f64,
    }
}
