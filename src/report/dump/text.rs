//! A dump for people: how far each rank is, which ranks differ, and each distinct stack once.

use super::head::{deadlocks, processes, ranks};
use super::ras::ras;
use super::thread::group as stack;
use crate::analysis::dump::groups::groups;
use crate::model::dump::Dump;
use crate::model::text::printable;
use std::fmt::Write as _;

/// A dump as text.
pub fn render_dump(dump: &Dump) -> String {
    let mut out = String::new();
    processes(&mut out, dump);
    deadlocks(&mut out, dump);
    ranks(&mut out, dump);
    ras(&mut out, &dump.nccl_ras, |member, _| {
        let process = dump.processes.iter().find(|each| each.pid == member.pid);
        process.filter(|_| member.is_here)
    });
    for group in groups(dump) {
        stack(&mut out, dump, &group);
    }
    if !dump.missing.is_empty() {
        out.push_str("\nNOT READ\n");
        for missing in &dump.missing {
            let _ = writeln!(out, "  {}", printable(missing));
        }
    }
    out
}
