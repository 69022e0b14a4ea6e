//! Collectives of every rank, and which rank arrived last.

use super::waits::{At, at};
use crate::analysis::Analysis;
use crate::analysis::collectives::{CollectiveTime, ProcessCollectives};
use crate::analysis::intervals::Share;
use crate::analysis::late_ranks::Late;
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use crate::report::table::{Column, Kind};
use schemars::JsonSchema;
use serde::Serialize;

/// Maximum number of ranks and lines listed per collective.
const MOST_LATE: usize = 20;

/// One collective of one rank, at one line.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Collective {
    /// The rank whose host time it is; null if the environment names none.
    pub rank: Option<u32>,
    /// Pid of the rank.
    pub pid: i32,
    /// `all_reduce`, …; null for a wrapper's own work around collectives; `wait` for waiting for a
    /// collective that was issued elsewhere.
    pub name: Option<&'static str>,
    /// `nccl`, `gloo`, `mpi`, `ucc`; null if unknown.
    pub backend: Option<&'static str>,
    /// The process group: always null, since no frame shows it.
    pub group: Option<String>,
    /// The collective as text, with the wrapper that issued it: `all_reduce (DDP bucket)`.
    pub what: String,
    /// The wrapper: `DDP bucket`, `FSDP unshard`, …; null if the script calls it itself.
    pub issuer: Option<&'static str>,
    /// Host time. With NCCL that of enqueueing.
    pub seconds: f64,
    /// As a share of the training thread's wall time.
    pub share: f64,
    /// The same with its interval.
    pub interval: Share,
    /// The part in which the thread waited.
    pub wait_s: f64,
    /// As a share of the training thread's wall time.
    pub wait_share: Share,
    /// The line; null if no Python frame was read.
    pub at: Option<At>,
    /// Which rank of the recording arrived last, and its line, by descending time.
    pub late: Vec<LateRank>,
}

/// A rank that others waited for.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct LateRank {
    /// Its rank; null if the environment names none.
    pub rank: Option<u32>,
    /// Pid of the rank.
    pub pid: i32,
    /// How long the others waited while it executed this line.
    pub seconds: f64,
    /// The line; null if no Python frame was read.
    pub at: Option<At>,
}

/// The rank that arrives last at collectives that run on GPUs: it waits less than the others, by
/// what it does on its host.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct SlowRank {
    /// Its rank; null if the environment names none.
    pub rank: Option<u32>,
    /// Pid of the rank.
    pub pid: i32,
    /// Its waits for its GPU and for other ranks, as a share of the time in which all ranks train.
    pub waits: Share,
    /// The same of the rank that waits least of the others.
    pub others_wait: Share,
    /// The difference, as a share of that time.
    pub late: Share,
    /// Mean length of a step; null if steps are not counted.
    pub step_ms: Option<f64>,
    /// The difference in a step.
    pub late_ms: Option<f64>,
    /// How much less its GPU is busy than that of the other rank, as a share of the time; null if
    /// that was not measured.
    pub gpu_idles: Option<f64>,
    /// Where it spends more time on the host than the median of the others.
    pub lines: Vec<SlowLine>,
}

/// A line at which a rank spends more time on the host than the others.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct SlowLine {
    /// The phase.
    pub phase: String,
    /// The line; null if no Python frame was read.
    pub at: Option<At>,
    /// How much more, as a share of the time.
    pub share: f64,
    /// The same in a step; null if steps are not counted.
    pub ms: Option<f64>,
}

/// The rank that arrives last at collectives that run on GPUs.
pub fn slow_rank(profile: &Profile, analysis: &Analysis) -> Option<SlowRank> {
    let slow = analysis.slow_rank.as_ref()?;
    let (pid, rank) = profile.pid_and_rank(slow.process);
    let ms = |share: f64| Some(share * slow.step_ns? / 1e6);
    let lines = slow.lines.iter().map(|line| SlowLine {
        phase: profile.phase_name(line.phase).to_owned(),
        at: at(profile, line.at),
        share: line.share,
        ms: ms(line.share),
    });
    Some(SlowRank {
        rank,
        pid,
        waits: slow.waits,
        others_wait: slow.other_waits,
        late: slow.less,
        step_ms: ms(1.0),
        late_ms: ms(slow.less.value),
        gpu_idles: slow.device_idles,
        lines: lines.collect(),
    })
}

type Col = Column<Collective>;

const SECONDS: Col = Col::new(Kind::Seconds, "seconds", "seconds", |row| {
    row.seconds.into()
})
.adds_up();
const SHARE: Col = Col::new(Kind::Share, "share", "share", |row| row.interval.into()).adds_up();
const WAITS: Col = Col::new(Kind::Seconds, "wait_s", "waits s", |row| row.wait_s.into()).width(8);
const AT: Col = Col::words("", |row| format!(" {}", At::shown(row.at.as_ref())).into());

pub const COLLECTIVES: &[Col] = &[
    Col::data(Kind::Count, "rank", |row| row.rank.into()),
    Col::data(Kind::Count, "pid", |row| row.pid.into()),
    SECONDS,
    SHARE,
    WAITS,
    Col::new(Kind::Text, "what", "collective, at", |row| {
        (&row.what).into()
    }),
    AT,
    Col::data(Kind::Text, "name", |row| row.name.into()),
    Col::data(Kind::Text, "backend", |row| row.backend.into()),
    Col::data(Kind::Text, "issuer", |row| row.issuer.into()),
    Col::data(Kind::Share, "wait_share", |row| row.wait_share.into()),
    Col::data(Kind::Text, "function", |row| At::function(row.at.as_ref())),
    Col::data(Kind::Place, "at", |row| At::place(row.at.as_ref())),
];
/// The columns in text if there are several backends.
pub const OF_BACKENDS: &[Col] = &[
    SECONDS,
    SHARE,
    WAITS,
    Col::words("collective, at", |row| match row.backend {
        Some(backend) => format!("{}, {backend}", row.what).into(),
        None => (&row.what).into(),
    }),
    AT,
];

/// The collectives of every rank, the first `most` of each.
pub fn collectives(profile: &Profile, analysis: &Analysis, most: usize) -> Vec<Collective> {
    let ranks = analysis.collectives.iter();
    ranks
        .flat_map(|rank| of_rank(profile, rank, most))
        .collect()
}

/// The first `most` collectives of a rank.
pub fn of_rank(profile: &Profile, rank: &ProcessCollectives, most: usize) -> Vec<Collective> {
    let rows = rank.rows.iter().take(most);
    rows.map(|row| collective(profile, rank, row)).collect()
}

fn collective(profile: &Profile, own: &ProcessCollectives, row: &CollectiveTime) -> Collective {
    let process = own.process.map(|process| profile.pid_and_rank(process));
    let (pid, rank) = process.unwrap_or_default();
    Collective {
        rank,
        pid,
        name: row.call.name,
        backend: row.call.backend.map(|backend| backend.name()),
        group: None,
        what: row.call.label(),
        issuer: row.call.issuer.map(|issuer| issuer.name()),
        seconds: seconds(row.ns),
        share: row.share.value,
        interval: row.share,
        wait_s: seconds(row.wait_ns),
        wait_share: row.wait_share,
        at: at(profile, row.at),
        late: row
            .late
            .iter()
            .take(MOST_LATE)
            .map(|each| late(profile, each))
            .collect(),
    }
}

fn late(profile: &Profile, late: &Late) -> LateRank {
    let (pid, rank) = profile.pid_and_rank(late.process);
    LateRank {
        rank,
        pid,
        seconds: seconds(late.ns),
        at: at(profile, late.at),
    }
}
