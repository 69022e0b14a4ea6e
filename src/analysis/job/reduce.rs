//! A recording, reduced to what answers for a job need.

use super::mesh::Mesh;
use super::pace::pace;
use crate::analysis::collectives::rendezvous;
use crate::analysis::dump::ras::kept;
use crate::analysis::gpu_overlay::device_of;
use crate::analysis::of_thread;
use crate::analysis::progress::standstill::{STILL_NS, stood};
use crate::analysis::progress::{Counting, Step, counting};
use crate::analysis::summary::parts;
use crate::analysis::tracks::{self, TrackSummary};
use crate::model::category::SummaryRow;
use crate::model::collective::{Backend, CollectiveCall};
use crate::model::facts::Line;
use crate::model::ids::{FunctionId, NameId, ProcessId, ThreadId};
use crate::model::parallel::{Dimension, GroupSource, USERS_MESH, parse_dimensions, text_of};
use crate::model::profile::{Profile, ProfileSample, Role};
use crate::model::progress::facts;
use crate::model::reduction::{
    Bin, MOST_BINS, Place, ReducedRank, ReducedRow, Reduction, Still, SyncEnd,
};
use crate::model::sample::{Capture, ThreadState};
use crate::model::track::TrackKind;
use rustc_hash::FxHashMap;

/// Length of the parts of a run whose ends of waits are kept, by the wall clock, ns.
const KEPT_NS: u64 = 4_000_000_000;
/// Ends of waits that are kept for each rank: enough to align clocks.
const MOST_ENDS: usize = 1024;

/// Reduces a profile.
pub fn reduce(profile: &Profile) -> Reduction {
    let tracks = tracks::summarize(profile);
    let mut reduction = Reduction {
        torchspy: profile.run.torchspy.clone(),
        host: profile.run.host.clone(),
        command: profile.run.command.clone(),
        started_wall_ns: profile.run.started_wall_ns,
        started_ns: profile.run.started_ns,
        length_ns: profile.end_ns.saturating_sub(profile.start_ns),
        rate_hz: profile.run.rate_hz,
        missing: profile.missing.clone(),
        ..Reduction::default()
    };
    let mut names = Names::default();
    for (at, process) in profile.processes.iter().enumerate() {
        let id = ProcessId::from_index(at);
        let (Role::Trainer { .. }, Some(thread)) = (process.role, process.training_thread) else {
            continue;
        };
        let own = of_thread(profile, thread);
        if own.is_empty() {
            continue;
        }
        let counting = counting(profile, id, &own);
        let rank = rank(profile, &tracks, id, &own, counting);
        let index = reduction.ranks.len() as u32;
        rows(
            profile,
            index,
            &rank.bins,
            &own,
            &mut names,
            &mut reduction.rows,
        );
        reduction.ranks.push(rank);
    }
    reduction.places = names.places(profile);
    reduction.waits = names.waits(profile);
    reduction
}

fn rank(
    profile: &Profile,
    tracks: &TrackSummary,
    id: ProcessId,
    own: &[&ProfileSample],
    counting: Option<Counting>,
) -> ReducedRank {
    let nccl_ras = kept(profile, counting.as_ref().map(|each| each.standstill));
    let counting = counting.unwrap_or_default();
    let steps = counting.steps.as_slice();
    let (mut bins, shift) = bins(steps);
    bins.truncate(MOST_BINS);
    let process = profile.process(id);
    let nccl = uses_nccl(profile, id);
    let (sync_ends, sync_every) = sync_ends(profile, own, steps, nccl);
    let mut rank = ReducedRank {
        counts_from_start: counting.counts_from_start,
        uncounted: counting.uncounted,
        counted: counting.counted,
        steps: steps.len() as u64,
        shift,
        sync_every,
        sync_ends,
        bins,
        wall_ns: own.iter().map(|sample| sample.weight_ns).sum(),
        ticks: own.iter().map(|sample| u64::from(sample.ticks)).sum(),
        start_ns: own.first().map_or(0, |sample| sample.start_ns),
        nccl,
        nccl_ras,
        ..ReducedRank::default()
    };
    if let Some(process) = process {
        if let Role::Trainer {
            rank: number,
            world_size,
            local_rank,
        } = process.role
        {
            (rank.rank, rank.world_size, rank.local_rank) = (number, world_size, local_rank);
        }
        let environment = &process.info.environment;
        rank.job = rendezvous(environment)
            .into_iter()
            .map(str::to_owned)
            .collect();
        rank.pid = process.info.pid;
        rank.groups = groups(profile, id, rank.rank, environment);
    }
    if let Ok(device) = device_of(tracks, id) {
        let (first, last) = match (steps.first(), steps.last()) {
            (Some(first), Some(last)) => (first.start_ns, last.end_ns),
            _ => (profile.start_ns, profile.end_ns),
        };
        rank.device = Some(device.info.uuid.clone());
        rank.utilization = device.mean(profile, TrackKind::Utilization, first..last);
        rank.energy_j = device.energy_j().map(|(joules, _)| joules);
    }
    rank.pace = pace(profile, id, own, device_of(tracks, id).ok());
    let still = counting.standstill.or_else(|| {
        // Without a step: where it was when NCCL was asked.
        let asked = rank.nccl_ras.as_ref().filter(|_| steps.is_empty())?;
        stood(profile, own, asked.time_ns.saturating_sub(STILL_NS))
    });
    rank.still = still.map(|still| Still {
        place: still.at.map(|line| place(profile, line)),
        wait: still.wait.map(|wait| wait.name().to_owned()),
    });
    rank
}

/// The parallel groups of a rank: those that its environment names, or of the mesh with the most
/// ranks that was found in it, or Megatron's if these are as many.
pub(crate) fn groups(
    profile: &Profile,
    id: ProcessId,
    rank: Option<u32>,
    environment: &[(String, String)],
) -> Option<(GroupSource, String)> {
    let named = environment.iter().find(|(name, _)| name == USERS_MESH);
    let named = named.and_then(|(_, text)| Mesh::parse(text).ok());
    if let Some(dimensions) = named
        .zip(rank)
        .and_then(|(mesh, rank)| mesh.groups_of(rank))
    {
        return Some((GroupSource::Environment, text_of(&dimensions)));
    }
    let conditions = profile.sideband.conditions.iter();
    let own = conditions.filter(|each| each.process == id);
    let ranks = |dimensions: &[Dimension]| {
        let sizes = dimensions.iter().map(|each| u64::from(each.size()));
        (sizes.fold(1, u64::saturating_mul), dimensions.len())
    };
    // One rank alone is no group.
    let meshes = own.filter_map(|each| {
        let source = match each.name.as_str() {
            facts::DEVICE_MESH => GroupSource::DeviceMesh,
            facts::PARALLEL_GROUPS => GroupSource::Megatron,
            _ => return None,
        };
        Some((source, parse_dimensions(&each.value)?))
    });
    let (source, largest) = meshes.max_by_key(|(source, mesh)| (ranks(mesh), *source))?;
    (ranks(&largest).0 > 1).then(|| (source, text_of(&largest)))
}

fn uses_nccl(profile: &Profile, id: ProcessId) -> bool {
    let threads = profile.threads.iter().enumerate();
    let mut own = threads.filter(|(_, thread)| thread.process == id);
    own.any(|(at, _)| profile.facts.backend(ThreadId::from_index(at)) == Some(Backend::Nccl))
}

/// Bins of all steps, and their shift.
fn bins(steps: &[Step]) -> (Vec<Bin>, u32) {
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else {
        return (Vec::new(), 0);
    };
    let mut shift = 0;
    while (last.number >> shift) - (first.number >> shift) >= MOST_BINS as u64 {
        shift += 1;
    }
    let mut bins: Vec<Bin> = Vec::new();
    for step in steps {
        let index = step.number >> shift;
        match bins.last_mut().filter(|bin| bin.index == index) {
            Some(bin) => bin.extend(1, step.start_ns, step.end_ns),
            None => bins.push(Bin {
                index,
                steps: 1,
                start_ns: step.start_ns,
                end_ns: step.end_ns,
                gap_ns: 0,
            }),
        }
    }
    (bins, shift)
}

/// The last wait for other ranks of each step that the thread was found in: of all of the run, or
/// of one part in as many as the second result says.
fn sync_ends(
    profile: &Profile,
    own: &[&ProfileSample],
    steps: &[Step],
    nccl: bool,
) -> (Vec<SyncEnd>, u64) {
    let waits_together = |sample: &ProfileSample| match nccl {
        true => sample
            .wait
            .is_some_and(|wait| wait.kind.is_for_earlier_work()),
        false => {
            (profile.facts.collective(sample.collective)).is_some_and(CollectiveCall::ends_together)
        }
    };
    let mut ends = Vec::new();
    let mut samples = own.iter().enumerate().peekable();
    for step in steps {
        let mut last: Option<SyncEnd> = None;
        while let Some((at, sample)) = samples.next_if(|(_, sample)| sample.start_ns < step.end_ns)
        {
            if sample.start_ns < step.start_ns {
                continue;
            }
            if may_wait_unseen(sample) {
                // The last wait that was seen may not be the last one.
                last = None;
            }
            if !waits_together(sample) {
                continue;
            }
            let end_ns = sample.start_ns.saturating_add(sample.weight_ns);
            let next = own.get(at + 1);
            let woke_ns = next.and_then(|next| woke_ns(sample, next));
            match &mut last {
                Some(end) if end.end_ns == sample.start_ns => {
                    end.end_ns = end_ns;
                    end.ticks = end.ticks.saturating_add(sample.ticks);
                    end.woke_ns = woke_ns.or(end.woke_ns);
                }
                last => {
                    *last = Some(SyncEnd {
                        step: step.number,
                        start_ns: sample.start_ns,
                        end_ns,
                        ticks: sample.ticks,
                        woke_ns,
                    });
                }
            }
        }
        ends.extend(last);
    }
    // The same times on all ranks, and whole parts of the run: numbers of steps may differ.
    let every = ends.len().div_ceil(MOST_ENDS).next_power_of_two() as u64;
    let run = &profile.run;
    let wall_ns = |at_ns: u64| (run.started_wall_ns + at_ns).saturating_sub(run.started_ns);
    ends.retain(|end| (wall_ns(end.end_ns) / KEPT_NS).is_multiple_of(every));
    // Kept for each of thousands of ranks.
    ends.shrink_to_fit();
    (ends, every)
}

/// Whether a thread of which only Python frames were read, since a stop would have ended its system
/// call, may wait in a collective of the function that is its innermost.
fn may_wait_unseen(sample: &ProfileSample) -> bool {
    sample.capture == Capture::Unstopped && sample.row == SummaryRow::Unclassified
}

/// When the sleep ended in which a thread was found, by its next sample. The poll of that one was
/// in its last tick, on average in the middle; if the thread slept again in between, it woke
/// earlier.
fn woke_ns(asleep: &ProfileSample, next: &ProfileSample) -> Option<u64> {
    let found_asleep = matches!(
        asleep.state,
        ThreadState::Sleeping | ThreadState::Uninterruptible
    );
    let end_ns = asleep.start_ns.saturating_add(asleep.weight_ns);
    if !found_asleep || next.start_ns != end_ns || next.awake_ns == 0 {
        return None;
    }
    let half_tick_ns = next.weight_ns / (2 * u64::from(next.ticks.max(1)));
    let polled_ns = end_ns
        .saturating_add(next.weight_ns)
        .saturating_sub(half_tick_ns);
    Some(polled_ns.saturating_sub(next.awake_ns))
}

/// Names by the profile's ids, each once.
#[derive(Default)]
struct Names {
    places: FxHashMap<(FunctionId, u32), u32>,
    waits: FxHashMap<NameId, u32>,
}

fn place(profile: &Profile, (function, line): Line) -> Place {
    let function = profile.function(function);
    function.map_or(Place::default(), |function| Place {
        function: function.shown_name().to_owned(),
        file: function.file.clone(),
        line,
    })
}

impl Names {
    fn places(&self, profile: &Profile) -> Vec<Place> {
        in_order(&self.places, |&(function, line)| {
            place(profile, (function, line))
        })
    }

    fn waits(&self, profile: &Profile) -> Vec<String> {
        in_order(&self.waits, |&name| {
            profile.facts.names.get(name).to_owned()
        })
    }
}

fn in_order<K, T>(ids: &FxHashMap<K, u32>, value: impl Fn(&K) -> T) -> Vec<T> {
    let mut keys: Vec<(&K, u32)> = ids.iter().map(|(key, &id)| (key, id)).collect();
    keys.sort_by_key(|&(_, id)| id);
    keys.into_iter().map(|(key, _)| value(key)).collect()
}

fn id_of<K: std::hash::Hash + Eq>(ids: &mut FxHashMap<K, u32>, key: K) -> u32 {
    let next = ids.len() as u32;
    *ids.entry(key).or_insert(next)
}

/// Sums the samples of a rank by bin and all that a row names.
fn rows(
    profile: &Profile,
    rank: u32,
    bins: &[Bin],
    own: &[&ProfileSample],
    names: &mut Names,
    rows: &mut Vec<ReducedRow>,
) {
    let mut sums: FxHashMap<ReducedRow, u64> = FxHashMap::default();
    let mut first = 0;
    for sample in own {
        let end_ns = sample.start_ns.saturating_add(sample.weight_ns);
        let line = profile.facts.line(sample.stack);
        let place = line.map(|line| id_of(&mut names.places, line));
        let label = sample.wait.map(|wait| id_of(&mut names.waits, wait.label));
        while bins
            .get(first)
            .is_some_and(|bin| bin.end_ns <= sample.start_ns)
        {
            first += 1;
        }
        for (phase, activity, row, ns) in parts(sample) {
            let mut add = |bin: Option<u16>, ns: u64| {
                if ns > 0 {
                    let key = ReducedRow {
                        rank,
                        bin,
                        phase,
                        row,
                        activity,
                        wait: sample.wait.map(|wait| wait.kind),
                        wait_label: label,
                        place,
                        ns: 0,
                    };
                    *sums.entry(key).or_default() += ns;
                }
            };
            let mut left_ns = ns;
            let within = bins.iter().enumerate().skip(first);
            for (at, bin) in within.take_while(|(_, bin)| bin.start_ns < end_ns) {
                let overlap = end_ns
                    .min(bin.end_ns)
                    .saturating_sub(sample.start_ns.max(bin.start_ns));
                let part =
                    u128::from(ns) * u128::from(overlap) / u128::from(sample.weight_ns.max(1));
                let part = u64::try_from(part).unwrap_or(ns).min(left_ns);
                left_ns -= part;
                add(u16::try_from(at).ok(), part);
            }
            add(None, left_ns);
        }
    }
    let mut all: Vec<ReducedRow> = sums
        .into_iter()
        .map(|(key, ns)| ReducedRow { ns, ..key })
        .collect();
    all.sort_by_key(|row| {
        (
            row.bin,
            row.phase,
            row.row,
            row.activity,
            row.wait,
            row.wait_label,
            row.place,
        )
    });
    rows.extend(all);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::Wait;
    use crate::model::progress::Condition;
    use crate::model::wait::WaitKind;

    #[test]
    fn a_wait_is_not_the_last_of_its_step_if_another_one_may_follow_unseen() {
        let waits = ProfileSample {
            wait: Some(Wait {
                kind: WaitKind::GpuSync,
                label: NameId::from_index(0),
            }),
            ..ProfileSample::default()
        };
        let unseen = ProfileSample {
            capture: Capture::Unstopped,
            row: SummaryRow::Unclassified,
            ..ProfileSample::default()
        };
        let classified = ProfileSample {
            capture: Capture::Unstopped,
            row: SummaryRow::HostComputation,
            ..ProfileSample::default()
        };
        let order = [waits, unseen, unseen, waits, waits, classified];
        let samples: Vec<ProfileSample> = (0..)
            .zip(order)
            .map(|(at, sample)| ProfileSample {
                start_ns: 10 * at,
                weight_ns: 10,
                ticks: 1,
                ..sample
            })
            .collect();
        let steps = [(1, 0..20), (2, 20..40), (3, 40..60)].map(|(number, range)| Step {
            number,
            start_ns: range.start,
            end_ns: range.end,
            uncertain_ns: 0,
            alone: true,
        });
        let own: Vec<&ProfileSample> = samples.iter().collect();
        let (ends, _) = sync_ends(&Profile::default(), &own, &steps, true);
        let found: Vec<(u64, u64)> = ends.iter().map(|end| (end.step, end.end_ns)).collect();
        assert_eq!(found, [(2, 40), (3, 50)]);
    }

    #[test]
    fn the_users_mesh_comes_first_then_the_largest_that_the_rank_holds() {
        let id = ProcessId::from_index(0);
        let mut profile = Profile::default();
        let found = |profile: &Profile, mesh: &str| {
            let environment = [(USERS_MESH.to_owned(), mesh.to_owned())];
            groups(profile, id, Some(3), &environment)
        };
        assert_eq!(found(&profile, ""), None);
        for (process, value) in [
            (id, "world=0-7"),
            (id, "dp=3,7;tp=0-3"),
            (id, "tp=0-3"),
            (id, "no mesh"),
            (ProcessId::from_index(1), "dp=0-99"),
        ] {
            profile.sideband.conditions.push(Condition {
                process,
                name: facts::DEVICE_MESH.to_owned(),
                value: value.to_owned(),
            });
        }
        let held = Some((GroupSource::DeviceMesh, "dp=3,7;tp=0-3".to_owned()));
        assert_eq!(found(&profile, ""), held);
        // The rank is not in such a mesh.
        assert_eq!(found(&profile, "dp=2"), held);
        let named = Some((GroupSource::Environment, "pp=1-7:2;tp=2,3".to_owned()));
        assert_eq!(found(&profile, "pp=4,tp=2"), named);
        // A mesh of one rank has no groups.
        profile.sideband.conditions.clear();
        profile.sideband.conditions.push(Condition {
            process: id,
            name: facts::DEVICE_MESH.to_owned(),
            value: "dp=3".to_owned(),
        });
        assert_eq!(found(&profile, ""), None);
    }

    #[test]
    fn who_waits_for_a_cpu_after_a_collective_has_left_it() {
        const TICK_NS: u64 = 10_000_000;
        let sample = |at: u64, ticks: u32, state, awake_ns| ProfileSample {
            start_ns: at * TICK_NS,
            weight_ns: u64::from(ticks) * TICK_NS,
            ticks,
            state,
            awake_ns,
            ..ProfileSample::default()
        };
        let asleep = sample(5, 3, ThreadState::Sleeping, 0);
        let next = sample(8, 2, ThreadState::Running, 12_000_000);
        // Polled in the middle of the tick from 90 to 100 ms.
        assert_eq!(woke_ns(&asleep, &next), Some(83_000_000));
        let awake = sample(5, 3, ThreadState::Running, 1_000_000);
        assert_eq!(woke_ns(&awake, &next), None);
        let later = sample(9, 1, ThreadState::Running, 1_000_000);
        assert_eq!(woke_ns(&asleep, &later), None, "a tick is missing");
    }
}
