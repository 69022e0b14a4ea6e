//! The answers for a job, for machines: JSON of a schema of its own.

use crate::analysis::intervals::Share;
use crate::analysis::job::Job;
use crate::analysis::job::ranks::Rank;
use crate::analysis::job::stragglers::Unsure;
use crate::model::nccl_ras::KeptRas;
use crate::model::text::printable_json;
use crate::report::tables::by_group::{ByGroupRow, by_group};
use crate::report::tables::job::{
    ClockRow, RankRow, StragglerRow, all_ranks, clocks, ranks, straggler,
};
use crate::torch::rules::RuleSet;
use schemars::JsonSchema;
use serde::Serialize;

/// Version of the schema. Keys are only ever added within a version.
pub const SCHEMA: u32 = 1;

/// A job.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct JobReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the rules that determined phases and activities.
    pub rules: u32,
    /// Version of the torchspy that reports.
    pub torchspy: &'static str,
    /// Ranks of the job, by their environment; null if it names none.
    pub world_size: Option<u32>,
    /// Those without a recording.
    pub missing_ranks: Vec<u32>,
    /// Other jobs whose recordings are in the folder; those are left out.
    pub other_jobs: Vec<OtherJobRow>,
    pub recordings: Vec<RecordingRow>,
    /// Files that are no part of the answer.
    pub left_out: Vec<LeftOutRow>,
    pub clocks: Vec<ClockRow>,
    /// Dimensions of the ranks' parallel groups.
    pub parallel: ParallelRow,
    /// Ranks by group along each dimension of 2 to 64 groups.
    pub by_group: Vec<ByGroupRow>,
    /// Ranks that do the same work, and what was found among them.
    pub groups: Vec<GroupRow>,
    pub ranks: Vec<RankRow>,
    /// All ranks together; null of fewer than two.
    pub all_ranks: Option<AllRanksRow>,
    /// How communication overlaps with computation on devices: `not_visible` from outside where
    /// ranks use NCCL, a kernel trace shows it; null where none does.
    pub overlap: Option<&'static str>,
    /// The end of the run, if no step ended in it for long; null if steps ended until its end.
    pub standstill: Option<StandstillRow>,
    /// What NCCL reported in that time; null if no rank was asked.
    pub nccl_ras: Option<RasRow>,
}

/// Means over ranks of what is known of each. Shares are of training threads' time in steps.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct AllRanksRow {
    pub ranks: usize,
    /// Steps of the rank with the most.
    pub steps: u64,
    pub step_ms: Option<f64>,
    pub computation: f64,
    pub communication_call: f64,
    pub communication_wait: f64,
    /// Parts of `communication_wait`: for ranks that arrive later, at least, and the rest, which is
    /// transferring, at most. Null if of no rank they are known.
    pub synchronizing: Option<f64>,
    pub transferring: Option<f64>,
    pub input: f64,
    pub gpu_wait: f64,
    pub python: f64,
    pub cpu_wait: f64,
    pub other: f64,
    pub gpu_utilization: Option<f64>,
    /// The sum over devices.
    pub energy_j: Option<f64>,
}

/// A time at the end of a run in which no step ended on any rank.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct StandstillRow {
    /// Its length on the rank that made the last step.
    pub seconds: f64,
    /// Where ranks were for most of it, as far as that is known.
    pub ranks: Vec<StoppedRow>,
}

/// Where a training thread was for most of a standstill.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct StoppedRow {
    pub rank: Option<u32>,
    pub pid: i32,
    pub host: String,
    pub function: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
    /// What it waited for; null if it did not wait.
    pub wait: Option<String>,
}

/// What NCCL answered: one rank that asked knows the whole job.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct RasRow {
    /// Whose host asked.
    pub rank: Option<u32>,
    pub host: String,
    #[serde(flatten)]
    pub kept: KeptRas,
}

/// A recording.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct RecordingRow {
    pub file: String,
    pub host: String,
    /// Version of the torchspy that recorded.
    pub torchspy: String,
    pub started_wall_ns: u64,
    pub length_s: f64,
    pub rate_hz: f64,
    /// What is missing of it.
    pub missing: Vec<String>,
}

/// A job that is not reported.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct OtherJobRow {
    /// What identifies it: rendezvous, scheduler's id; empty where its environment says nothing.
    pub job: Vec<String>,
    /// Ranks with a recording.
    pub ranks: usize,
    pub files: Vec<String>,
}

/// A file that is no part of the answer.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct LeftOutRow {
    pub file: String,
    pub why: String,
}

/// Dimensions of the ranks' parallel groups, and how they are known.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct ParallelRow {
    /// `--mesh`, `environment`, `device mesh` (which the ranks hold), or `none`.
    pub source: &'static str,
    /// Outermost first.
    pub dimensions: Vec<DimensionRow>,
    /// In what the ranks contradict each other, so that their groups are not used; null if they do
    /// not.
    pub conflict: Option<String>,
}

/// A dimension of a mesh of ranks.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct DimensionRow {
    pub name: String,
    /// Ranks along it.
    pub size: u32,
}

/// Ranks that do the same work.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct GroupRow {
    /// `pp=1`; empty if all ranks do the same work.
    pub name: String,
    pub ranks: Vec<Option<u32>>,
    /// Ranks that were compared.
    pub compared: usize,
    /// Mean length of a step, and what it would be with the slowest rank as fast as the median.
    pub step_ms: Option<f64>,
    pub ideal_step_ms: Option<f64>,
    /// By descending cost.
    pub stragglers: Vec<StragglerRow>,
    /// Ranks that wait less than the others, too unevenly to be sure.
    pub perhaps: Vec<PerhapsRow>,
    /// Ranks with too few steps, and those that do not step together with the others.
    pub too_short: Vec<Option<u32>>,
    pub out_of_step: Vec<Option<u32>>,
}

/// A rank that may be one that the others wait for.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct PerhapsRow {
    pub rank: Option<u32>,
    pub pid: i32,
    /// Its waits for others, and those of the median of the others, as shares of the time in steps.
    pub waits: Share,
    pub others_wait: Share,
    /// Its steps have another length than the others'.
    pub is_out_of_step: bool,
}

/// The report of a job.
pub fn job_report(job: &Job) -> JobReport {
    let rows = ranks(job);
    let ids = |all: &[usize]| -> Vec<Option<u32>> {
        let ranks = all.iter().filter_map(|&at| job.ranks.get(at));
        ranks.map(|rank| rank.facts.rank).collect()
    };
    JobReport {
        schema: SCHEMA,
        rules: RuleSet::built_in().version,
        torchspy: env!("CARGO_PKG_VERSION"),
        world_size: job.world_size,
        missing_ranks: job.missing_ranks.clone(),
        recordings: job
            .recordings
            .iter()
            .map(|recording| RecordingRow {
                file: recording.file.clone(),
                host: recording.host.clone(),
                torchspy: recording.torchspy.clone(),
                started_wall_ns: recording.started_wall_ns,
                length_s: recording.length_ns as f64 / 1e9,
                rate_hz: recording.rate_hz,
                missing: recording.missing.clone(),
            })
            .collect(),
        other_jobs: job
            .other_jobs
            .iter()
            .map(|other| OtherJobRow {
                job: other.job.clone(),
                ranks: other.ranks,
                files: other.files.clone(),
            })
            .collect(),
        left_out: job
            .left_out
            .iter()
            .map(|each| LeftOutRow {
                file: each.file.clone(),
                why: each.why.clone(),
            })
            .collect(),
        clocks: clocks(job),
        parallel: ParallelRow {
            source: job.parallel.source.name(),
            dimensions: job
                .parallel
                .dimensions
                .iter()
                .map(|(name, size)| DimensionRow {
                    name: name.clone(),
                    size: *size,
                })
                .collect(),
            conflict: job.parallel.conflict.clone(),
        },
        by_group: by_group(job),
        groups: job
            .groups
            .iter()
            .map(|(group, found)| GroupRow {
                name: group.name.clone(),
                ranks: ids(&group.ranks),
                compared: found.compared,
                step_ms: found.step_s.map(|seconds| seconds * 1e3),
                ideal_step_ms: found.ideal_step_s.map(|seconds| seconds * 1e3),
                stragglers: found
                    .stragglers
                    .iter()
                    .filter_map(|each| straggler(job, each))
                    .collect(),
                perhaps: found
                    .unsure
                    .iter()
                    .filter_map(|each| perhaps(job, each))
                    .collect(),
                too_short: ids(&found.too_short),
                out_of_step: ids(&found.out_of_step),
            })
            .collect(),
        all_ranks: all_ranks(job, &rows).map(|all| all_ranks_row(all, rows.len())),
        overlap: rows.iter().any(|row| row.nccl).then_some("not_visible"),
        standstill: job.standstill_ns().map(|ns| StandstillRow {
            seconds: ns as f64 / 1e9,
            ranks: job.ranks.iter().filter_map(stopped).collect(),
        }),
        nccl_ras: job.nccl_ras().map(|(rank, kept)| RasRow {
            rank: rank.facts.rank,
            host: rank.host.clone(),
            kept: kept.clone(),
        }),
        ranks: rows,
    }
}

fn all_ranks_row(all: RankRow, ranks: usize) -> AllRanksRow {
    AllRanksRow {
        ranks,
        steps: all.steps,
        step_ms: all.step_ms,
        computation: all.computation,
        communication_call: all.communication_call,
        communication_wait: all.communication_wait,
        synchronizing: all.synchronizing,
        transferring: all.transferring,
        input: all.input,
        gpu_wait: all.gpu_wait,
        python: all.python,
        cpu_wait: all.cpu_wait,
        other: all.other,
        gpu_utilization: all.gpu_utilization,
        energy_j: all.energy_j,
    }
}

fn stopped(rank: &Rank) -> Option<StoppedRow> {
    let still = rank.facts.still.as_ref()?;
    let place = still.place.as_ref();
    Some(StoppedRow {
        rank: rank.facts.rank,
        pid: rank.facts.pid,
        host: rank.host.clone(),
        function: place.map(|place| place.function.clone()),
        file: place.map(|place| place.file.clone()),
        line: place.map(|place| place.line),
        wait: still.wait.clone(),
    })
}

fn perhaps(job: &Job, found: &Unsure) -> Option<PerhapsRow> {
    let rank = job.ranks.get(found.rank)?;
    Some(PerhapsRow {
        rank: rank.facts.rank,
        pid: rank.facts.pid,
        waits: found.waits,
        others_wait: found.others_waits,
        is_out_of_step: found.is_out_of_step,
    })
}

/// The JSON schema of what [`render_job_json`].
pub fn job_schema() -> schemars::Schema {
    schemars::schema_for!(JobReport)
}

/// [`job_report`] as JSON text, indented, with a line feed at its end.
///
/// # Errors
/// None in practice: all values can be written as JSON.
pub fn render_job_json(job: &Job) -> Result<String, serde_json::Error> {
    let mut text = printable_json(&serde_json::to_string_pretty(&job_report(job))?);
    text.push('\n');
    Ok(text)
}
