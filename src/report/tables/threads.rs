//! Threads of the primary process.

use crate::analysis::Analysis;
use crate::analysis::threads::ThreadSummary;
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use crate::report::table::{Column, Cut, Kind};
use schemars::JsonSchema;
use serde::Serialize;

/// A thread.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Thread {
    /// Its tid.
    pub tid: i32,
    /// Its name.
    pub name: String,
    /// What it is, for people.
    pub role: &'static str,
    /// Time sampled.
    pub wall_s: f64,
    /// CPU time.
    pub cpu_s: f64,
    /// What it did most.
    pub main_activity: &'static str,
    /// The share of its time that it did that.
    pub main_share: f64,
    /// `main_activity` as text has it.
    #[serde(skip)]
    mostly: &'static str,
}

type Col = Column<Thread>;

/// Threads.
pub const THREADS: &[Col] = &[
    Col::words("thread", |row| {
        format!("{} {} ({})", row.tid, row.name, row.role).into()
    })
    .width(38)
    .cut(Cut::End),
    Col::data(Kind::Count, "tid", |row| row.tid.into()),
    Col::data(Kind::Text, "name", |row| (&row.name).into()),
    Col::data(Kind::Text, "role", |row| row.role.into()),
    Col::new(Kind::Seconds, "wall_s", "wall s", |row| row.wall_s.into()),
    Col::new(Kind::Seconds, "cpu_s", "cpu s", |row| row.cpu_s.into()).adds_up(),
    Col::words("mostly", |row| {
        format!("{} {:.0} %", row.mostly, row.main_share * 100.0).into()
    }),
    Col::data(Kind::Text, "main_activity", |row| row.main_activity.into()),
    Col::data(Kind::Percent, "main_share", |row| row.main_share.into()),
];

/// All threads.
pub fn threads(profile: &Profile, analysis: &Analysis) -> Vec<Thread> {
    let threads = analysis.primary().into_iter();
    let threads = threads.flat_map(|process| &process.threads);
    threads.filter_map(|each| thread(profile, each)).collect()
}

fn thread(profile: &Profile, summary: &ThreadSummary) -> Option<Thread> {
    let info = profile.threads.get(summary.thread.index())?;
    Some(Thread {
        tid: info.tid,
        name: info.name.clone(),
        role: summary.role,
        wall_s: seconds(summary.wall_ns),
        cpu_s: seconds(summary.cpu_ns),
        main_activity: summary.main_activity.name(),
        main_share: summary.main_share,
        mostly: summary.main_activity.label(),
    })
}
