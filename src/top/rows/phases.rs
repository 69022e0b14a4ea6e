//! Phases by activities.

use super::{Row, Table, column, percent};
use crate::live::store::LiveProcess;
use crate::model::category::{Activity, Phase};
use crate::model::region::region_names;
use crate::model::run::RunInfo;
use crate::report::text::format::printable;
use crate::top::state::{RowKey, Sort, State};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Phases by the activities with the most time, as many as fit.
pub(super) fn table(process: &LiveProcess, state: &State, width: u16, run: &RunInfo) -> Table {
    const CELL: u16 = 10;
    /// The longest title; names of regions are shorter.
    const NAME: u16 = 24;
    let is_now = matches!(state.sort, Sort::OwnNow | Sort::TotalNow);
    let tables = if is_now { &process.now } else { &process.since };
    let (mut by_phase, mut by_activity): (FxHashMap<Phase, u64>, FxHashMap<Activity, u64>) =
        (FxHashMap::default(), FxHashMap::default());
    for (&(phase, activity), &ns) in &tables.matrix {
        *by_phase.entry(phase).or_default() += ns;
        *by_activity.entry(activity).or_default() += ns;
    }
    let mut activities: Vec<(Activity, u64)> = by_activity.into_iter().collect();
    activities.sort_by_key(|&(activity, ns)| (Reverse(ns), activity));
    // A space lies before each cell but the first.
    let fits = usize::from(width.saturating_sub(NAME + CELL + 1) / (CELL + 1)).max(1);
    let left_out: Vec<(Activity, u64)> = activities.split_off(fits.min(activities.len()));
    let mut columns = vec![column("all", CELL)];
    columns.extend(
        activities
            .iter()
            .map(|(activity, _)| column(short(*activity), CELL)),
    );
    columns.push(column(
        if is_now {
            "Phase, last 5 s (4: all)"
        } else {
            "Phase, all (1: last 5 s)"
        },
        0,
    ));
    let mut names = region_names(&run.regions);
    let mut named: Vec<(Phase, String)> = Vec::new();
    for &phase in Phase::ALL {
        let name = match phase.region() {
            Some(_) => names.next().map(str::to_owned),
            None => Some(phase.name().to_owned()),
        };
        named.extend(name.map(|name| (phase, name)));
    }
    let mut phases: Vec<(Phase, u64)> = by_phase.into_iter().collect();
    phases.sort_by_key(|&(phase, ns)| (Reverse(ns), phase));
    let share = |ns: u64| percent(ns, tables.wall_ns);
    let mut rows: Vec<Row> = phases
        .iter()
        .map(|&(phase, ns)| {
            let mut cells = vec![share(ns)];
            for (activity, _) in &activities {
                let ns = tables.matrix.get(&(phase, *activity)).copied();
                cells.push(share(ns.unwrap_or(0)));
            }
            let name = named.iter().find(|(each, _)| *each == phase);
            cells.push(name.map_or(phase.name().to_owned(), |(_, name)| {
                printable(name).into_owned()
            }));
            Row {
                cells,
                key: RowKey::None,
                bold: false,
            }
        })
        .collect();
    if !rows.is_empty() {
        let mut cells = vec![share(phases.iter().map(|(_, ns)| ns).sum())];
        cells.extend(activities.iter().map(|&(_, ns)| share(ns)));
        let rest: u64 = left_out.iter().map(|(_, ns)| ns).sum();
        cells.push(match rest {
            0 => "all".to_owned(),
            rest => format!("all (not shown: {})", share(rest)),
        });
        rows.push(Row {
            cells,
            key: RowKey::None,
            bold: true,
        });
    }
    Table {
        columns,
        rows,
        empty: "the training thread was not seen yet".to_owned(),
    }
}

/// An activity in ten columns.
fn short(activity: Activity) -> &'static str {
    match activity {
        Activity::GpuAlloc => "gpu alloc",
        Activity::CollectiveCall => "coll. call",
        Activity::CollectiveWait => "coll. wait",
        Activity::LockWait => "lock wait",
        other => other.label(),
    }
}
