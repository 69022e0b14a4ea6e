//! What every thread was, and did.

use crate::model::category::Activity;
use crate::model::ids::ThreadId;
use crate::model::profile::{Profile, ProfileSample};
use crate::model::sample::ThreadState;
use rustc_hash::FxHashMap;

/// The role of OpenMP's threads beside those that call it.
pub(super) const OPENMP_WORKER: &str = "OpenMP worker";

/// One thread, summed up.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadSummary {
    /// The thread.
    pub thread: ThreadId,
    /// What it is: `training thread`, `OpenMP worker`, …
    pub role: &'static str,
    /// Time sampled, ns.
    pub wall_ns: u64,
    /// CPU time by the kernel's account, ns.
    pub cpu_ns: u64,
    /// Time in which it ran or could have run, ns.
    pub running_ns: u64,
    /// What it did most of its time.
    pub main_activity: Activity,
    /// The share of its time that it did that, 0 to 1.
    pub main_share: f64,
}

/// Roles by the beginning of the name. Source: strings of the torch 2.15.0 binaries; CUDA driver
/// 570; CPython Lib/multiprocessing/queues.py (3.14 on sets names).
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
    let Some(info) = profile.threads.get(thread.index()) else {
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
        .processes
        .get(info.process.index())
        .map(|process| process.info.pid);
    if pid == Some(info.tid) {
        return "main thread";
    }
    let mut first = own.iter().take(64);
    let openmp = first.any(|sample| profile.facts.of(sample.stack).has_openmp);
    if info.is_python {
        "Python thread"
    } else if openmp {
        OPENMP_WORKER
    } else {
        "native thread"
    }
}

/// The threads that `samples` speak of, those with the most CPU time first, the training thread
/// before all.
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
    ThreadSummary {
        thread,
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
