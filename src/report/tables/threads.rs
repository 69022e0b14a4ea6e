//! Threads of the primary process.

use crate::analysis::Analysis;
use crate::analysis::threads::ThreadSummary;
use crate::model::seconds::of as seconds;
use crate::report::table::{Column, Cut, Kind};

type Col = Column<ThreadSummary>;

pub const THREADS: &[Col] = &[
    Col::words("thread", |row| {
        format!("{} {} ({})", row.tid, row.name, row.role).into()
    })
    .width(38)
    .cut(Cut::End),
    Col::data(Kind::Count, "tid", |row| row.tid.into()),
    Col::data(Kind::Text, "name", |row| (&row.name).into()),
    Col::data(Kind::Text, "role", |row| row.role.into()),
    Col::new(Kind::Seconds, "wall_s", "wall s", |row| {
        seconds(row.wall_ns).into()
    }),
    Col::new(Kind::Seconds, "cpu_s", "cpu s", |row| {
        seconds(row.cpu_ns).into()
    })
    .adds_up(),
    Col::words("mostly", |row| {
        let activity = row.main_activity.label();
        format!("{activity} {:.0} %", row.main_share * 100.0).into()
    }),
    Col::data(Kind::Text, "main_activity", |row| {
        row.main_activity.name().into()
    }),
    Col::data(Kind::Percent, "main_share", |row| row.main_share.into()),
];

pub fn threads(analysis: &Analysis) -> &[ThreadSummary] {
    analysis.primary().map_or(&[], |process| &process.threads)
}
