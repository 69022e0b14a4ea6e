//! The ranks of a job by parallel group, for people: where groups, or ranks of one, differ.

use super::format::percent;
use super::job::{doing_text, rank_name};
use super::table::TextTable;
use super::{line, sentence};
use crate::analysis::job::Job;
use crate::report::tables::by_group::{
    BY_GROUP, ByGroupRow, DifferenceRow, OutlierRow, by_group as rows_of,
};
use std::collections::BTreeSet;

/// Ranks that are named in a group.
const MOST_OUTLIERS: usize = 5;
/// Parts of the time in which a group or a rank differs.
const MOST_PARTS: usize = 3;

/// The dimensions along which groups differ, or ranks of a group that are not yet named. Nothing
/// where there are none. Of more than `most` groups of a dimension those that have something to
/// say.
pub(super) fn by_group(out: &mut String, job: &Job, most: usize) {
    let rows = rows_of(job);
    let table = TextTable::new(BY_GROUP, &rows);
    let mut named: BTreeSet<Option<u32>> = BTreeSet::new();
    let mut has_head = false;
    for rows in rows.chunk_by(|a, b| a.dimension == b.dimension) {
        let mut outliers = rows.iter().flat_map(|row| &row.outliers);
        let is_notable = rows.iter().any(|row| !row.differs.is_empty())
            || outliers.any(|outlier| !named.contains(&outlier.rank));
        // Groups of one rank are rows of the table of ranks.
        if !is_notable || rows.iter().all(|row| row.ranks == 1) {
            continue;
        }
        if !has_head {
            line(
                out,
                "\nPARALLEL GROUPS, medians of their ranks, % of time in steps (host time)",
            );
            table.head(out);
            has_head = true;
        }
        let shown = rows.iter();
        let shown = shown.filter(|row| rows.len() <= most || row.is_notable());
        let shown: Vec<&ByGroupRow> = shown.take(most).collect();
        for row in &shown {
            table.row(out, row);
        }
        let more = rows.len() - shown.len();
        if more > 0 {
            line(out, &format!("  … {more} more: --full lists all"));
        }
        for row in shown {
            group(out, row, &mut named);
        }
    }
}

fn group(out: &mut String, row: &ByGroupRow, named: &mut BTreeSet<Option<u32>>) {
    let of = match row.compared_with {
        "all" => "of all ranks",
        _ => "of their stage",
    };
    let mut texts: Vec<String> = differs(&row.differs, of).into_iter().collect();
    texts.extend(row.common.first().map(|common| {
        format!(
            "{} of its {} ranks spend about {} of the time at {}",
            common.alike,
            row.compared,
            percent(common.at.share),
            doing_text(&common.at)
        )
    }));
    if !texts.is_empty() {
        sentence(out, "  ", &format!("{}: {}", row.group, texts.join("; ")));
    }
    let new = row.outliers.iter();
    let new = new.filter(|outlier| !named.contains(&outlier.rank));
    let new: Vec<&OutlierRow> = new.collect();
    named.extend(new.iter().map(|outlier| outlier.rank));
    for outlier in new.iter().take(MOST_OUTLIERS) {
        sentence(out, "    ", &outlier_text(outlier, row));
    }
    let known = row.outliers.len() - new.len() + new.len().min(MOST_OUTLIERS);
    let more = row.all_outliers - known;
    if more > 0 {
        line(out, &format!("    … {more} more of {} differ", row.group));
    }
}

/// `waits for others -36.1 % ±2.0, … against the median of pp=1`; `None` of no difference.
fn differs(rows: &[DifferenceRow], of: &str) -> Option<String> {
    let parts = rows.iter().take(MOST_PARTS).map(|row| {
        let name = match row.part {
            "waits" => "waits for others",
            "communication_call" => "issuing collectives",
            "python" => "Python",
            "cpu_wait" => "runnable without a CPU",
            name => name,
        };
        let half = (row.more.high - row.more.low) / 2.0;
        format!("{name} {:+.1} % ±{:.1}", row.more.value * 1e2, half * 1e2)
    });
    let parts: Vec<String> = parts.collect();
    let is_any = !parts.is_empty();
    is_any.then(|| format!("{} against the median {of}", parts.join(", ")))
}

fn outlier_text(outlier: &OutlierRow, row: &ByGroupRow) -> String {
    let of = match row.compared_with {
        "all" => format!("of {}", row.group),
        _ => format!("of its stage in {}", row.group),
    };
    let lines = outlier.lines.iter();
    let lines = lines.map(|line| {
        format!(
            "; {} more of the time at {}",
            percent(line.share),
            doing_text(line)
        )
    });
    format!(
        "outlier: {} (pid {} on {}; {}): {}{}",
        rank_name(outlier.rank, outlier.pid),
        outlier.pid,
        outlier.host,
        outlier.groups,
        differs(&outlier.differs, &of).unwrap_or_default(),
        lines.collect::<String>()
    )
}
