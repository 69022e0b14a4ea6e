//! Idle time of GPUs by the phase, line and module that the training thread executed.
//!
//! A value of the driver describes a window, not a point in time. Samples are joined to windows,
//! and the uncertainty within a window remains: each figure is an estimate between two bounds, and
//! visits shorter than two windows are not resolved by one window, but by a regression over many,
//! where steps are alike. Utilization counts any kernel, including those
//! of communication and of other processes: idle means that no kernel ran.
//!
//! | file | content |
//! |---|---|
//! | [`windows`] | the windows of a device |
//! | [`account`] | the share of one subject in their amounts |
//! | [`cut`] | restricts a profile to idle windows |
//! | [`regression`] | idle time of phases that are shorter than windows, from many windows |
//! | `position` | where in a step a thread was, for the regression |
//! | `gaussian` | shares by position, from what was done in windows |

pub mod account;
pub mod cut;
mod gaussian;
mod position;
pub mod regression;
pub mod windows;

use super::tracks::{Device, TrackSummary};
use super::{of_thread, progress};
use crate::model::category::Phase;
use crate::model::facts::Line;
use crate::model::ids::{ChainId, GpuId, NnModuleId, ProcessId, StackId, ThreadId};
use crate::model::profile::{Profile, Role};
use account::{Account, Part};
use regression::{Refused, regress};
use rustc_hash::FxHashMap;
use windows::{NoWindows, Windows};

/// Subjects of a kind that are listed, by descending idle time.
const MOST_ROWS: usize = 200;
/// Maximum number of subjects that are examined: a recording is untrusted input.
const MAX_SUBJECTS: usize = 20_000;

/// What the host executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    Phase(Phase),
    /// At a line: the nearest of the user's own code.
    Line(Line),
    /// In a module's forward, or in that of one below it.
    Module(NnModuleId),
}

/// Idle time of a device while the host executed a subject.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IdleRow {
    pub subject: Subject,
    /// Idle time, ns.
    pub part: Part,
    /// Windows of the regression that resolved it; `None` if its own windows did, or nothing.
    pub regressed: Option<usize>,
}

/// The device of one trainer, by what its training thread executed.
#[derive(Clone, Debug)]
pub struct GpuIdle {
    pub process: ProcessId,
    /// The device.
    pub gpu: GpuId,
    /// Length of a window.
    pub window_ns: u64,
    /// All of the training thread's time.
    pub all: Part,
    /// Resolved subjects, by kind, by descending idle time.
    pub rows: Vec<IdleRow>,
    /// Unresolved subjects, by kind, by descending time on the host.
    pub unresolved: Vec<IdleRow>,
    /// Why a regression did not resolve them, either.
    pub refused: Refused,
}

/// Why a process has no idle times by subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoOverlay {
    /// No device that it uses was recorded.
    #[error("no GPU was recorded that it uses")]
    NoDevice,
    /// It may use several, and the driver does not report which.
    #[error("it may use several GPUs, and the driver does not list which one it does")]
    Several,
    /// The device has no windows.
    #[error("{0}")]
    Windows(#[from] NoWindows),
}

/// The device that a process uses: of several that the driver lists, the one on which it has the
/// most memory.
///
/// # Errors
/// If there is none, or it is not known which.
pub fn device_of(tracks: &TrackSummary, process: ProcessId) -> Result<&Device, NoOverlay> {
    let uses = |device: &&Device, hinted: bool| {
        let mut own = device.processes.iter();
        own.any(|user| user.process == Some(process) && user.hinted == hinted)
    };
    let memory = |device: &&Device| {
        let mut own = device.processes.iter();
        let own = own.find(|user| user.process == Some(process));
        own.and_then(|user| user.memory_bytes).unwrap_or(0)
    };
    let listed = tracks.devices.iter().filter(|device| uses(device, false));
    // A MIG instance is more specific to the process than its device; of equals the first.
    let best = listed
        .rev()
        .max_by_key(|device| (memory(device), device.info.mig.is_some()));
    if let Some(device) = best {
        return Ok(device);
    }
    let mut hinted = tracks.devices.iter().filter(|device| uses(device, true));
    match (hinted.next(), hinted.next()) {
        (Some(device), None) => Ok(device),
        (Some(_), Some(_)) => Err(NoOverlay::Several),
        (None, _) => Err(NoOverlay::NoDevice),
    }
}

/// The process that a process works for: a DataLoader worker's trainer, else itself.
pub fn served(profile: &Profile, process: ProcessId) -> ProcessId {
    match profile.process(process).map(|info| info.role) {
        Some(Role::DataLoaderWorker {
            trainer: Some(trainer),
            ..
        }) => trainer,
        _ => process,
    }
}

/// Idle windows of the device of each process; processes without any are omitted.
pub fn idle_windows(profile: &Profile, tracks: &TrackSummary) -> FxHashMap<ProcessId, Windows> {
    let ids = (0..profile.processes.len()).map(ProcessId::from_index);
    let of = |process| {
        let device = device_of(tracks, served(profile, process)).ok()?;
        Some((process, Windows::idle(profile, device).ok()?))
    };
    ids.filter_map(of).collect()
}

/// Idle time of the devices of `ranks` (processes with their training threads), or why there is
/// none.
pub fn all(
    profile: &Profile,
    tracks: &TrackSummary,
    ranks: &[(ProcessId, ThreadId)],
) -> Vec<(ProcessId, Result<GpuIdle, NoOverlay>)> {
    ranks
        .iter()
        .map(|&(process, thread)| (process, overlay(profile, tracks, process, thread)))
        .collect()
}

fn overlay(
    profile: &Profile,
    tracks: &TrackSummary,
    process: ProcessId,
    thread: ThreadId,
) -> Result<GpuIdle, NoOverlay> {
    let device = device_of(tracks, process)?;
    let windows = Windows::idle(profile, device)?;
    let (all, mut parts) = by_subject(profile, &windows, thread);
    let steps: Vec<(u64, u64)> = progress::steps(profile, process)
        .iter()
        .map(|step| (step.start_ns, step.end_ns))
        .collect();
    let found = regress(profile, &windows, &steps, &of_thread(profile, thread));
    if let Ok(found) = &found {
        for row in parts.iter_mut().filter(|row| !row.part.resolved) {
            if let Some(part) = found.parts.get(&row.subject) {
                row.part = *part;
                row.regressed = Some(found.windows);
            }
        }
    }
    let (mut rows, mut unresolved): (Vec<IdleRow>, Vec<IdleRow>) =
        parts.into_iter().partition(|row| row.part.resolved);
    rows.sort_by(|a, b| {
        let order = b.part.amount.total_cmp(&a.part.amount);
        order.then(a.subject.cmp(&b.subject))
    });
    unresolved.sort_by_key(|row| (std::cmp::Reverse(row.part.host_ns), row.subject));
    for list in [&mut rows, &mut unresolved] {
        *list = most_of_each_kind(list);
    }
    Ok(GpuIdle {
        process,
        gpu: device.id,
        window_ns: windows.typical_ns(),
        all,
        rows,
        unresolved,
        refused: found.err().unwrap_or(Refused::Apart),
    })
}

/// Amounts of `windows` by what a thread executed: in total, and by subject.
pub fn by_subject(profile: &Profile, windows: &Windows, thread: ThreadId) -> (Part, Vec<IdleRow>) {
    let mut modules = Modules::new(profile);
    let mut accounts: FxHashMap<Subject, Account> = FxHashMap::default();
    let mut all = Account::default();
    for sample in of_thread(profile, thread) {
        let (from_ns, to_ns) = (
            sample.start_ns,
            sample.start_ns.saturating_add(sample.weight_ns),
        );
        all.add(windows, from_ns, to_ns);
        let phase = [Subject::Phase(sample.phase)];
        let line = profile.facts.line(sample.stack).map(Subject::Line);
        let own = match sample.phase {
            Phase::Forward => modules.of(sample.stack),
            _ => &[],
        };
        let own = own.iter().copied().map(Subject::Module);
        for subject in phase.into_iter().chain(line).chain(own) {
            if accounts.len() < MAX_SUBJECTS || accounts.contains_key(&subject) {
                let account = accounts.entry(subject).or_default();
                account.add(windows, from_ns, to_ns);
            }
        }
    }
    let rows = accounts.into_iter().map(|(subject, account)| IdleRow {
        subject,
        part: account.finish(windows),
        regressed: None,
    });
    (all.finish(windows), rows.collect())
}

fn most_of_each_kind(rows: &[IdleRow]) -> Vec<IdleRow> {
    let kind = |subject: Subject| match subject {
        Subject::Phase(_) => 0_usize,
        Subject::Line(_) => 1,
        Subject::Module(_) => 2,
    };
    let mut counts = [0; 3];
    let mut kept = Vec::new();
    for row in rows {
        let count = &mut counts[kind(row.subject)];
        *count += 1;
        if *count <= MOST_ROWS {
            kept.push(*row);
        }
    }
    kept.sort_by_key(|row| kind(row.subject));
    kept
}

/// The modules of call chains, each by its first id: a module that was seen in two modes has two.
struct Modules<'p> {
    profile: &'p Profile,
    first: FxHashMap<(&'p str, u32, &'p str), NnModuleId>,
    /// By chain, of [`Facts::module_chains`](crate::model::facts::Facts::module_chains).
    of: FxHashMap<ChainId, Vec<NnModuleId>>,
}

impl<'p> Modules<'p> {
    fn new(profile: &'p Profile) -> Self {
        Self {
            profile,
            first: FxHashMap::default(),
            of: FxHashMap::default(),
        }
    }

    fn of(&mut self, stack: Option<StackId>) -> &[NnModuleId] {
        let (profile, first) = (self.profile, &mut self.first);
        let Some(calls) = profile.facts.of(stack).modules else {
            return &[];
        };
        self.of.entry(calls).or_insert_with(|| {
            let ids = profile.facts.modules_from(calls);
            let mut own: Vec<NnModuleId> = ids
                .filter_map(|id| {
                    let info = profile.nn_module(id)?;
                    let key = (info.root.as_str(), info.number, info.path.as_str());
                    Some(*first.entry(key).or_insert(id))
                })
                .collect();
            own.sort_unstable();
            own.dedup();
            own
        })
    }
}
