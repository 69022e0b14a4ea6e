//! The wall time of training threads by phase and activity.

use super::backward::{BackwardTable, backward};
use super::compile::{CompileTable, compile};
use super::functions::{Hot, LineTime, hot, line_shares, user_lines, user_lines_by};
use super::intervals::{Share, Shares};
use super::modules::{ModuleTree, modules};
use super::operators::{OperatorTable, operators};
use super::progress::{Progress, progress};
use super::threads::{ThreadSummary, threads};
use crate::model::category::{Activity, ActivityGroup, Phase, SummaryRow};
use crate::model::collective::Backend;
use crate::model::ids::{ProcessId, ThreadId};
use crate::model::profile::{Profile, ProfileSample, Role};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Nanoseconds by phase and activity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix {
    cells: Vec<u64>,
}

impl Matrix {
    fn add(&mut self, phase: Phase, activity: Activity, ns: u64) {
        if self.cells.is_empty() {
            self.cells = vec![0; Phase::ALL.len() * Activity::ALL.len()];
        }
        if let Some(cell) = self.cells.get_mut(Self::index(phase, activity)) {
            *cell = cell.saturating_add(ns);
        }
    }

    fn index(phase: Phase, activity: Activity) -> usize {
        phase as usize * Activity::ALL.len() + activity as usize
    }

    /// One cell, ns.
    pub fn cell(&self, phase: Phase, activity: Activity) -> u64 {
        self.cells
            .get(Self::index(phase, activity))
            .copied()
            .unwrap_or(0)
    }

    /// All cells of a phase, ns.
    pub fn phase(&self, phase: Phase) -> u64 {
        Activity::ALL
            .iter()
            .map(|&activity| self.cell(phase, activity))
            .sum()
    }

    /// All cells of an activity, ns.
    pub fn activity(&self, activity: Activity) -> u64 {
        Phase::ALL
            .iter()
            .map(|&phase| self.cell(phase, activity))
            .sum()
    }

    /// All cells, ns.
    pub fn total(&self) -> u64 {
        self.cells.iter().sum()
    }
}

/// Computation versus other, as itwinai counts it, on the host.
///
/// itwinai (its torch.profiler report) takes the self device time of operators whose name matches
/// `.*(?:aten|\sat|c10|autograd)::` over that of all. The analogue here: time whose nearest
/// function with a meaning is one of ATen, oneDNN, the dispatcher, autograd or a GPU call, over the
/// wall time of the training thread. Communication and waits are "other", as there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Itwinai {
    pub computation_ns: u64,
    /// The rest, ns.
    pub other_ns: u64,
}

/// One process, summed up.
#[derive(Clone, Debug)]
pub struct ProcessSummary {
    pub process: ProcessId,
    pub role: Role,
    /// Whether CUDA is loaded: computation on the host is then the dispatch of work to the device.
    pub cuda: bool,
    /// Whether NCCL was seen: its time on the host is that of issuing collectives.
    pub nccl: bool,
    /// The thread that the shares are of.
    pub training_thread: Option<ThreadId>,
    /// Its wall time, ns: the sum of its samples.
    pub wall_ns: u64,
    /// The ticks that these samples stand for.
    pub ticks: u64,
    /// How long the thread was seen, ns; more than `wall_ns` if ticks were lost.
    pub life_ns: u64,
    /// By row, in the order of [`SummaryRow::ALL`].
    pub rows: Vec<(SummaryRow, u64, Share)>,
    /// Wall time until the end of start-up, ns.
    pub startup_ns: u64,
    /// Wall time from the start of the interpreter's exit on, ns.
    pub shutdown_ns: u64,
    /// By row, in the same order, as a share of the wall time between these two.
    pub after_startup: Vec<Share>,
    /// By row, in the same order: the user's line that most of it was called from.
    pub row_lines: Vec<Option<LineTime>>,
    /// By phase, in the order of reports: torchspy's own and the user's regions.
    pub phases: Vec<(Phase, Share)>,
    /// By activity, in the order of [`Activity::ALL`].
    pub activities: Vec<(Activity, Share)>,
    /// Phase by activity.
    pub matrix: Matrix,
    /// Computation versus other.
    pub itwinai: Itwinai,
    /// Functions and lines of the training thread.
    pub hot: Hot,
    /// Own time of the first of its lines, in their order, as shares of `wall_ns`.
    pub line_shares: Vec<Share>,
    /// Time by the user's line nearest to the leaf, descending, with all that the line calls.
    pub user_lines: Vec<LineTime>,
    /// The first of these, in their order, as shares of `wall_ns`.
    pub user_line_shares: Vec<Share>,
    /// Operators of the training thread.
    pub operators: OperatorTable,
    /// Modules of its forward passes.
    pub modules: ModuleTree,
    /// Its steps; `None` where no counter was read.
    pub progress: Option<Progress>,
    /// Nodes of its backward passes.
    pub backward: BackwardTable,
    /// Time of torch.compile on it.
    pub compile: CompileTable,
    pub threads: Vec<ThreadSummary>,
    /// CPU time of all threads that were sampled, ns.
    pub cpu_ns: u64,
}

impl ProcessSummary {
    /// A time as a share of the training thread's wall time.
    pub fn part(&self, ns: u64) -> f64 {
        ns as f64 / self.wall_ns.max(1) as f64
    }

    /// Time of a row, ns.
    pub fn row_ns(&self, row: SummaryRow) -> u64 {
        self.rows
            .iter()
            .find(|(each, _, _)| *each == row)
            .map_or(0, |&(_, ns, _)| ns)
    }

    /// The label of the computation row: with CUDA the host only dispatches work to the device.
    pub fn computation_label(&self) -> &'static str {
        if self.cuda {
            "host op dispatch"
        } else {
            "host computation"
        }
    }
}

/// The parts of one sample: (phase, activity, row, ns). Time in the run queue is `cpu_wait`,
/// whatever code was to run.
pub fn parts(sample: &ProfileSample) -> [(Phase, Activity, SummaryRow, u64); 2] {
    let queue_ns = sample.queue_ns.min(sample.weight_ns);
    [
        (
            sample.phase,
            sample.activity,
            sample.row,
            sample.weight_ns - queue_ns,
        ),
        (
            sample.phase,
            Activity::CpuWait,
            SummaryRow::CpuWait,
            queue_ns,
        ),
    ]
}

/// All processes that have samples or a Python.
pub fn summarize(profile: &Profile) -> Vec<ProcessSummary> {
    let mut samples: FxHashMap<ProcessId, Vec<&ProfileSample>> = FxHashMap::default();
    for sample in &profile.samples {
        if let Some(thread) = profile.thread(sample.thread) {
            samples.entry(thread.process).or_default().push(sample);
        }
    }
    let mut processes: Vec<ProcessSummary> = (0..profile.processes.len())
        .map(ProcessId::from_index)
        .map(|id| process(profile, id, samples.get(&id).map_or(&[][..], Vec::as_slice)))
        .collect();
    processes.sort_by_key(|process| (order(process.role), process.wall_ns == 0, process.process));
    processes
}

fn order(role: Role) -> (u8, u32, u32) {
    match role {
        Role::Trainer {
            rank: Some(rank), ..
        } => (0, rank, 0),
        Role::Trainer { rank: None, .. } => (1, 0, 0),
        Role::DataLoaderWorker { number, trainer } => {
            (2, trainer.map_or(u32::MAX, |trainer| trainer.0), number)
        }
        Role::Launcher => (3, 0, 0),
        Role::Other => (4, 0, 0),
    }
}

/// The first trainer with samples, else the first process with samples.
pub fn primary(processes: &[ProcessSummary]) -> Option<usize> {
    let sampled = |process: &ProcessSummary| process.wall_ns > 0;
    processes
        .iter()
        .position(|process| sampled(process) && matches!(process.role, Role::Trainer { .. }))
        .or_else(|| processes.iter().position(sampled))
}

fn process(profile: &Profile, id: ProcessId, samples: &[&ProfileSample]) -> ProcessSummary {
    let info = profile.process(id);
    let training_thread = info.and_then(|process| process.training_thread);
    let own: Vec<&ProfileSample> = samples
        .iter()
        .copied()
        .filter(|sample| Some(sample.thread) == training_thread)
        .collect();
    let wall_ns: u64 = own.iter().map(|sample| sample.weight_ns).sum();
    let ticks: u64 = own.iter().map(|sample| u64::from(sample.ticks)).sum();
    let mut phases = Shares::new(wall_ns, ticks, Phase::ALL.len());
    let mut activities = Shares::new(wall_ns, ticks, Activity::ALL.len());
    let mut row_ns = vec![0_u64; SummaryRow::ALL.len()];
    let mut matrix = Matrix::default();
    let mut itwinai = Itwinai::default();
    for sample in &own {
        let parts = parts(sample);
        for (phase, activity, row, ns) in parts {
            matrix.add(phase, activity, ns);
            row_ns[row as usize] += ns;
            if is_itwinai_computation(activity) {
                itwinai.computation_ns += ns;
            } else {
                itwinai.other_ns += ns;
            }
        }
        let [first, second] = parts;
        phases.add(
            sample.weight_ns,
            sample.ticks,
            &[(sample.phase as usize, sample.weight_ns)],
        );
        activities.add(
            sample.weight_ns,
            sample.ticks,
            &merged(first.1 as usize, second.1 as usize, &parts),
        );
    }
    let trained = trained(&own);
    let sum = |samples: &[&ProfileSample]| samples.iter().map(|sample| sample.weight_ns).sum();
    let life_ns = training_thread
        .and_then(|thread| profile.thread(thread))
        .map_or(0, |thread| {
            // A recording may begin in the middle of a session, which knew the thread before.
            let from_ns = thread.first_seen_ns.max(profile.run.started_ns);
            thread.last_seen_ns.saturating_sub(from_ns)
        });
    let threads = threads(profile, samples, training_thread);
    let rows = row_shares(&own);
    let hot = hot(profile, own.iter().copied());
    let users = user_lines(profile, own.iter().copied());
    let progress = progress(profile, id, &own);
    let mut modules = modules(profile, &own, wall_ns, ticks);
    modules.per_step(progress.as_ref());
    ProcessSummary {
        process: id,
        role: info.map_or(Role::Other, |process| process.role),
        cuda: info.is_some_and(|process| process.info.has_cuda),
        nccl: info.is_some_and(|process| process.info.has_cuda)
            && (uses_nccl(profile, samples) || has_backend(profile, id, Backend::Nccl)),
        training_thread,
        wall_ns,
        ticks,
        life_ns,
        rows: SummaryRow::ALL
            .iter()
            .zip(rows)
            .map(|(&row, share)| (row, row_ns[row as usize], share))
            .collect(),
        startup_ns: own.get(..trained.start).map_or(0, sum),
        shutdown_ns: own.get(trained.end..).map_or(0, sum),
        after_startup: row_shares(own.get(trained).unwrap_or_default()),
        row_lines: SummaryRow::ALL
            .iter()
            .map(|&row| {
                let of_row = own.iter().flat_map(|sample| {
                    let parts = parts(sample).into_iter();
                    parts
                        .filter(move |&(_, _, of, ns)| of == row && ns > 0)
                        .map(|(.., ns)| (*sample, ns))
                });
                user_lines_by(profile, of_row).first().copied()
            })
            .collect(),
        phases: profile
            .phases()
            .map(|phase| (phase, phases.share(phase as usize)))
            .collect(),
        activities: Activity::ALL
            .iter()
            .map(|&activity| (activity, activities.share(activity as usize)))
            .collect(),
        matrix,
        itwinai,
        line_shares: line_shares(&own, &hot.lines, |stack| {
            profile.facts.of(stack).python_leaf
        }),
        hot,
        user_line_shares: line_shares(&own, &users, |stack| profile.facts.of(stack).user_line),
        user_lines: users,
        operators: operators(profile, &own, wall_ns, ticks),
        modules,
        progress,
        backward: backward(profile, &own, wall_ns, ticks),
        compile: compile(profile, &own, wall_ns, ticks),
        cpu_ns: threads.iter().map(|thread| thread.cpu_ns).sum(),
        threads,
    }
}

/// The samples between start-up and the interpreter's exit, which happen once and belong to no
/// step: from the end of the first interval that is mostly start-up to the start of the last one
/// that is mostly exit. Later imports of modules do not count.
pub(super) fn trained(own: &[&ProfileSample]) -> Range<usize> {
    let start = mostly(own.iter().copied(), Phase::Startup);
    let rest = own.get(start..).unwrap_or_default();
    let end = mostly(rest.iter().rev().copied(), Phase::Shutdown);
    start..own.len().saturating_sub(end)
}

/// Number of samples in the longest prefix that is mostly of this phase.
fn mostly<'p>(samples: impl Iterator<Item = &'p ProfileSample>, phase: Phase) -> usize {
    /// One sample of another phase outweighs this many of the phase.
    const OTHERS: i128 = 4;
    let (mut sum, mut best, mut until) = (0_i128, 0, 0);
    for (at, sample) in samples.enumerate() {
        let ns = i128::from(sample.weight_ns);
        sum += if sample.phase == phase {
            ns
        } else {
            -OTHERS * ns
        };
        if sum > best {
            (best, until) = (sum, at + 1);
        }
    }
    until
}

/// Shares of these samples' time by row, in the order of [`SummaryRow::ALL`].
fn row_shares(own: &[&ProfileSample]) -> Vec<Share> {
    let wall_ns = own.iter().map(|sample| sample.weight_ns).sum();
    let ticks = own.iter().map(|sample| u64::from(sample.ticks)).sum();
    let mut rows = Shares::new(wall_ns, ticks, SummaryRow::ALL.len());
    for sample in own {
        let parts = parts(sample);
        let [first, second] = &parts;
        let merged = merged(first.2 as usize, second.2 as usize, &parts);
        rows.add(sample.weight_ns, sample.ticks, &merged);
    }
    (0..SummaryRow::ALL.len())
        .map(|row| rows.share(row))
        .collect()
}

/// Parts by category; two parts of the same category are merged, because a tick counts once.
fn merged(
    first: usize,
    second: usize,
    parts: &[(Phase, Activity, SummaryRow, u64); 2],
) -> Vec<(usize, u64)> {
    if first == second {
        vec![(first, parts[0].3 + parts[1].3)]
    } else {
        vec![(first, parts[0].3), (second, parts[1].3)]
    }
}

fn is_itwinai_computation(activity: Activity) -> bool {
    match activity.group() {
        ActivityGroup::Compute | ActivityGroup::Dispatch => true,
        ActivityGroup::Gpu => activity != Activity::GpuSync,
        ActivityGroup::Collective | ActivityGroup::Alone => activity == Activity::OmpIdle,
    }
}

/// Whether NCCL was called or waited for: its destructors run in processes that never used it.
/// Whether a process has a thread of this backend.
fn has_backend(profile: &Profile, process: ProcessId, backend: Backend) -> bool {
    let mut threads = profile.threads.iter().enumerate();
    threads.any(|(at, thread)| {
        thread.process == process
            && profile.facts.backend(ThreadId::from_index(at)) == Some(backend)
    })
}

fn uses_nccl(profile: &Profile, samples: &[&ProfileSample]) -> bool {
    samples.iter().any(|sample| {
        let communicates = sample.activity.group() == ActivityGroup::Collective;
        communicates && profile.facts.of(sample.stack).has_nccl
    })
}
