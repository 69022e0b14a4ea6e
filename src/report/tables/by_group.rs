//! The ranks of a job by parallel group.

use super::job::{DoingRow, class, doing_row, number};
use crate::analysis::intervals::Share;
use crate::analysis::job::Job;
use crate::analysis::job::by_group::{Difference, GroupTimes, Outlier, Part};
use crate::analysis::job::ranks::Class;
use crate::report::table::{Column, Kind, Value};
use schemars::JsonSchema;
use serde::Serialize;

/// The ranks with the same index along a dimension of their parallel groups. Shares are medians
/// over them, of their training threads' time in steps.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct ByGroupRow {
    /// `pp=0`.
    pub group: String,
    pub dimension: String,
    pub index: u32,
    /// Ranks with a recording, and those of them that were compared.
    pub ranks: usize,
    pub compared: usize,
    /// The median of their mean steps; null if no steps are known.
    pub step_ms: Option<f64>,
    pub computation: f64,
    pub communication_call: f64,
    pub communication_wait: f64,
    pub input: f64,
    pub gpu_wait: f64,
    pub python: f64,
    pub cpu_wait: f64,
    pub other: f64,
    /// What `differs` compares with: `all` ranks, or those of the same `stage`.
    pub compared_with: &'static str,
    /// In what the group clearly differs from the median, the largest first.
    pub differs: Vec<DifferenceRow>,
    /// The lines at which the rank with the median waits spends most of its own time.
    pub common: Vec<CommonRow>,
    /// Ranks that clearly differ from the median of the ranks of this group and the same stage:
    /// the 16 that do most, and the number of all.
    pub outliers: Vec<OutlierRow>,
    pub all_outliers: usize,
}

/// A part of the time that is clearly larger or smaller than that of the median.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct DifferenceRow {
    /// `waits` (for other ranks and for the device), or a class as of `ranks`.
    pub part: &'static str,
    /// How much larger, as a share of the time; negative if it is smaller.
    pub more: Share,
}

/// A line that the ranks of a group have in common.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct CommonRow {
    #[serde(flatten)]
    pub at: DoingRow,
    /// Ranks of the group that spend nearly as much there.
    pub alike: usize,
}

/// A rank that differs from the median of its group.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct OutlierRow {
    pub rank: Option<u32>,
    pub pid: i32,
    pub host: String,
    /// Where it is in its parallel groups.
    pub groups: String,
    /// The largest first.
    pub differs: Vec<DifferenceRow>,
    /// Where it spends at least 5 % of its time more than the median.
    pub lines: Vec<DoingRow>,
}

impl ByGroupRow {
    /// Whether there is something to say of it.
    pub fn is_notable(&self) -> bool {
        !self.differs.is_empty() || !self.outliers.is_empty()
    }
}

/// Rows by dimension and index.
pub fn by_group(job: &Job) -> Vec<ByGroupRow> {
    let dimensions = job.by_group.iter();
    let rows = dimensions.flat_map(|along| {
        let compared_with = if along.of_all { "all" } else { "stage" };
        let groups = along.groups.iter();
        groups.map(move |group| row(job, &along.dimension, compared_with, group))
    });
    rows.collect()
}

fn row(job: &Job, dimension: &str, compared_with: &'static str, group: &GroupTimes) -> ByGroupRow {
    let share = |class: Class| group.classes[class as usize];
    let step_ms = group.step_s.map(|seconds| seconds * 1e3);
    let common = group.common.iter().map(|common| CommonRow {
        at: doing_row(
            &job.names,
            &common.doing,
            common.share,
            step_ms.unwrap_or(0.0),
        ),
        alike: common.alike,
    });
    ByGroupRow {
        group: format!("{dimension}={}", group.at),
        dimension: dimension.to_owned(),
        index: group.at,
        ranks: group.ranks.len(),
        compared: group.compared,
        step_ms,
        computation: share(Class::Computation),
        communication_call: share(Class::CommunicationCall),
        communication_wait: share(Class::CommunicationWait),
        input: share(Class::Input),
        gpu_wait: share(Class::GpuWait),
        python: share(Class::Python),
        cpu_wait: share(Class::CpuWait),
        other: share(Class::Other),
        compared_with,
        differs: differences(&group.differs),
        common: common.collect(),
        outliers: group
            .outliers
            .iter()
            .filter_map(|each| outlier(job, each, step_ms.unwrap_or(0.0)))
            .collect(),
        all_outliers: group.all_outliers,
    }
}

fn differences(all: &[Difference]) -> Vec<DifferenceRow> {
    let rows = all.iter().map(|each| DifferenceRow {
        part: match each.part {
            Part::Waits => "waits",
            Part::Class(class) => class.name(),
        },
        more: each.more,
    });
    rows.collect()
}

fn outlier(job: &Job, found: &Outlier, step_ms: f64) -> Option<OutlierRow> {
    let rank = job.ranks.get(found.rank)?;
    let doing = found.doing.iter();
    Some(OutlierRow {
        rank: rank.facts.rank,
        pid: rank.facts.pid,
        host: rank.host.clone(),
        groups: job.parallel.place(rank.facts.rank),
        differs: differences(&found.differs),
        lines: doing
            .map(|(doing, share)| doing_row(&job.names, doing, *share, step_ms))
            .collect(),
    })
}

fn common(row: &ByGroupRow) -> Option<&CommonRow> {
    row.common.first()
}

pub const BY_GROUP: &[Column<ByGroupRow>] = &[
    Column::new(Kind::Text, "group", "group", |row: &ByGroupRow| {
        Value::text(&row.group)
    })
    .width(8),
    Column::data(Kind::Text, "dimension", |row| Value::text(&row.dimension)),
    Column::data(Kind::Id, "index", |row| row.index.into()),
    Column::new(Kind::Count, "ranks", "ranks", |row: &ByGroupRow| {
        row.ranks.into()
    })
    .width(5),
    Column::data(Kind::Count, "compared", |row| row.compared.into()),
    Column::new(Kind::Milliseconds, "step_ms", "ms/step", |row| {
        number(row.step_ms)
    }),
    class("computation", "comput", |row| row.computation.into()),
    class("communication_call", "coll", |row| {
        row.communication_call.into()
    }),
    class("communication_wait", "waits", |row| {
        row.communication_wait.into()
    }),
    class("input", "input", |row| row.input.into()),
    class("gpu_wait", "gpu wt", |row| row.gpu_wait.into()),
    class("python", "python", |row| row.python.into()),
    class("cpu_wait", "cpu wt", |row| row.cpu_wait.into()),
    class("other", "other", |row| row.other.into()),
    Column::data(Kind::Place, "line", |row| match common(row) {
        Some(line) => Value::place(line.at.file.as_ref(), line.at.line),
        None => Value::None,
    }),
    Column::data(Kind::Points, "line_share", |row| {
        number(common(row).map(|line| line.at.share))
    }),
    Column::data(Kind::Count, "alike", |row| {
        common(row).map_or(Value::None, |line| line.alike.into())
    }),
    Column::data(Kind::Count, "differs", |row| {
        Value::Flag(!row.differs.is_empty())
    }),
    Column::data(Kind::Count, "all_outliers", |row| row.all_outliers.into()),
];
