//! What fits a screen: the verdict, where the time went, and the few lines and operators that
//! matter.

use super::format::seconds;
use super::{
    Detail, TextOptions, collectives, functions, lanes, nothing_sampled, operators, processes,
    progress, sampler, sentence, tables, verdict, waits, warnings, wrapped,
};
use crate::analysis::Analysis;
use crate::model::profile::Profile;

/// Lines of the whole, which a verdict of many words may exceed.
const LINES: usize = 40;
/// Rows of a table at most.
const ROWS: usize = 5;
/// Rows below which two tables say less than one.
const FEWEST: usize = 3;
/// Ranks that are listed.
const RANKS: usize = 4;
/// Ranks of which it is said which rank they wait for.
const LATE: usize = 2;
/// Devices that are listed.
const DEVICES: usize = 2;
/// The share of the time below which a row says nothing.
const SMALL: f64 = 0.01;
/// Lines of a table besides its rows: one is empty, one is its title.
const TITLE: usize = 2;
/// The same of waits, which have a header and a sum.
const WAITS: usize = 4;

/// The summary in some 40 lines.
pub(super) fn brief(profile: &Profile, analysis: &Analysis, options: TextOptions) -> String {
    let mut verdict = String::new();
    verdict::verdict(&mut verdict, profile, analysis);
    let mut out = String::new();
    head(&mut out, profile, analysis);
    if options.detail != Detail::VerdictLast {
        out.push_str(&verdict);
    }
    let mut ending = String::new();
    sampler::brief(&mut ending, profile, analysis);
    processes::ranks(&mut out, profile, analysis, RANKS);
    collectives::brief(&mut out, profile, analysis, LATE);
    match analysis.primary() {
        Some(process) => {
            tables::rows(&mut out, profile, process, SMALL);
            if options.itwinai {
                tables::itwinai(&mut out, process);
            }
            lanes::brief(&mut out, profile, analysis, DEVICES);
            progress::brief(&mut out, profile, process);
            let mut used = out.lines().count() + ending.lines().count();
            if options.detail == Detail::VerdictLast {
                used += verdict.lines().count();
            }
            let (lines, operators) = shared(LINES.saturating_sub(used));
            functions::user_lines(&mut out, profile, analysis, lines);
            let sampled = operators::sampled(profile, analysis);
            match sampled.is_empty() {
                false => operators::brief(&mut out, &sampled, operators),
                true => {
                    let rows = operators.saturating_sub(WAITS - TITLE);
                    waits::waits(&mut out, profile, analysis, rows);
                }
            }
        }
        None => nothing_sampled(&mut out, &profile.run),
    }
    out.push_str(&ending);
    if options.detail == Detail::VerdictLast {
        out.push_str(&verdict);
    }
    out
}

/// Rows of two tables that share so many lines. The second is left out where both would say too
/// little.
fn shared(lines: usize) -> (usize, usize) {
    let each = (lines / 2).saturating_sub(TITLE);
    if each >= FEWEST {
        return (each.min(ROWS), each.min(ROWS));
    }
    (lines.saturating_sub(TITLE).min(ROWS), 0)
}

/// Who was recorded, for how long, and what casts doubt on it.
fn head(out: &mut String, profile: &Profile, analysis: &Analysis) {
    super::command(out, profile);
    let run = &profile.run;
    let elapsed_ns = profile.end_ns.saturating_sub(profile.start_ns);
    let mut facts = match analysis.primary() {
        Some(process) => super::process_facts(profile, process, analysis),
        None => vec![format!("pid {}", run.pid)],
    };
    facts.push(format!("{} recorded", seconds(elapsed_ns)));
    facts.extend(super::selection(run));
    if !run.native {
        facts.push("Python stacks only".to_owned());
    }
    wrapped(out, &facts, "| ");
    let root = profile
        .processes
        .iter()
        .find(|process| process.info.pid == run.pid);
    let primary = analysis.primary().map(|process| process.process.index());
    let whose = primary.and_then(|at| profile.processes.get(at)).or(root);
    let note = whose.map(|process| &process.info.note);
    for note in run.notes.iter().chain(note).filter(|note| !note.is_empty()) {
        sentence(out, "", note);
    }
    warnings(out, profile, analysis);
}
