//! The one-screen report: the verdict, the time by row, and the most important lines and operators.

use super::format::seconds;
use super::{
    Detail, TextOptions, collectives, device_memory, functions, memory, nothing_sampled, operators,
    processes, progress, sampler, sentence, tables, tracks, verdict, waits, warnings, wrapped,
};
use crate::analysis::Analysis;
use crate::model::profile::Profile;

/// Lines of a screen.
pub(super) const LINES: usize = 40;
/// Maximum number of rows of a table.
const ROWS: usize = 5;
/// With fewer rows per table, one table is shown instead of two.
const FEWEST: usize = 3;
/// Maximum number of listed ranks.
const RANKS: usize = 4;
/// Minimum number of lines of the table of ranks: of two ranks, all.
const RANKS_LEAST: usize = 5;
/// Maximum number of ranks for which the rank that they wait for is reported.
const LATE: usize = 2;
/// Maximum number of listed devices.
const DEVICES: usize = 2;
/// Maximum number of processes whose memory grows.
const GROWING: usize = 2;
/// Rows below this share of the time are omitted.
const SMALL: f64 = 0.01;
/// Lines of a table besides its rows: one is empty, one is its title.
const TITLE: usize = 2;

/// A part of the report. If the report is too long, parts are cut to their `least` lines in the
/// order of `goes`.
struct Part {
    text: String,
    goes: u8,
    least: usize,
}

/// Value of `goes` of a part that is never cut.
const STAYS: u8 = u8::MAX;

impl Part {
    fn new(goes: u8, least: usize, write: impl FnOnce(&mut String)) -> Self {
        let mut text = String::new();
        write(&mut text);
        Self { text, goes, least }
    }

    fn lines(&self) -> usize {
        self.text.lines().count()
    }

    /// Removes `over` lines from its end, or as many as allowed; all of them if none has to stay.
    fn cut(&mut self, over: usize) {
        let left = self.lines().saturating_sub(over).max(self.least);
        if self.least == 0 {
            self.text.clear();
        } else if left < self.lines() {
            let kept: Vec<&str> = self.text.lines().take(left - 1).collect();
            self.text = format!("{}\n        …\n", kept.join("\n"));
        }
    }
}

fn lines_of(parts: &[Part]) -> usize {
    parts.iter().map(Part::lines).sum()
}

/// The summary on one screen; `itwinai`, if requested, is added to them.
pub(super) fn brief(profile: &Profile, analysis: &Analysis, options: TextOptions) -> String {
    let verdict = Part::new(9, 13, |out| verdict::verdict(out, profile, analysis));
    let ending = Part::new(3, 4, |out| sampler::brief(out, profile, analysis));
    let mut parts = vec![
        Part::new(STAYS, 0, |out| head(out, profile, analysis)),
        Part::new(1, 0, |out| notes(out, profile, analysis)),
        Part::new(STAYS, 0, |out| warnings(out, profile, analysis)),
        Part::new(STAYS, 0, |out| memory::ends(out, profile, analysis)),
    ];
    let at_verdict = parts.len();
    parts.push(Part::new(5, RANKS_LEAST, |out| {
        processes::ranks(out, profile, analysis, RANKS);
    }));
    let late = collectives::brief(profile, analysis, LATE);
    parts.extend(late.into_iter().enumerate().map(|(at, text)| {
        let goes = if at == 0 { 4 } else { 2 };
        Part::new(goes, 0, |out| out.push_str(&text))
    }));
    let mut asked_for = 0;
    if let Some(process) = analysis.primary() {
        parts.push(Part::new(8, 9, |out| {
            tables::rows(out, profile, process, SMALL);
        }));
        if options.itwinai {
            let itwinai = Part::new(STAYS, 0, |out| tables::itwinai(out, process));
            asked_for = itwinai.lines();
            parts.push(itwinai);
        }
        parts.push(Part::new(6, 0, |out| {
            tracks::brief(out, profile, analysis, DEVICES);
        }));
        parts.push(Part::new(STAYS, 0, |out| {
            memory::memory(out, profile, analysis, (GROWING, true));
            device_memory::device_memory(out, profile, analysis, true);
        }));
        parts.push(Part::new(STAYS, 0, |out| {
            progress::brief(out, profile, process)
        }));
        parts.push(Part::new(3, 0, |out| {
            progress::brief_phases(out, profile, process);
        }));
        let used = lines_of(&parts) + verdict.lines() + ending.lines();
        let room = (options.lines + asked_for).saturating_sub(used);
        parts.push(Part::new(0, 0, |out| {
            where_most_is(out, profile, analysis, room);
        }));
    } else {
        parts.push(Part::new(STAYS, 0, |out| {
            nothing_sampled(out, &profile.run);
        }));
    }
    parts.push(ending);
    match options.detail {
        Detail::VerdictLast => parts.push(verdict),
        _ => parts.insert(at_verdict, verdict),
    }
    fit(&mut parts, options.lines + asked_for);
    parts.into_iter().map(|part| part.text).collect()
}

/// Cuts parts until the report has no more than `most` lines.
fn fit(parts: &mut [Part], most: usize) {
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|&at| parts[at].goes);
    for at in order {
        let over = lines_of(parts).saturating_sub(most);
        if over > 0 && parts[at].goes != STAYS {
            parts[at].cut(over);
        }
    }
}

/// The lines of code, and the operators or waits, with the most time, in `room` lines.
fn where_most_is(out: &mut String, profile: &Profile, analysis: &Analysis, room: usize) {
    let (lines, rows) = shared(room);
    functions::user_lines(out, profile, analysis, lines);
    let sampled = operators::sampled(profile, analysis);
    match (sampled.is_empty(), rows) {
        (_, 0) if room <= TITLE => return,
        (false, 0) => return super::line(out, "  no room for OPERATORS: report --by op"),
        (true, 0) => return super::line(out, "  no room for WAITS: report --by wait"),
        (false, _) => return operators::brief(out, &sampled, rows),
        (true, _) => operators::none(out, profile, analysis),
    }
    // A wait may take several lines.
    let room = room.saturating_sub(out.lines().count());
    let listed = (1..=rows).rev().map(|rows| {
        let mut text = String::new();
        waits::waits(&mut text, profile, analysis, rows);
        text
    });
    let fits = |text: &String| text.lines().count() <= room;
    out.push_str(&listed.into_iter().find(fits).unwrap_or_default());
}

/// Rows of two tables that share so many lines. The second table is omitted if both would be too
/// short.
fn shared(lines: usize) -> (usize, usize) {
    let each = (lines / 2).saturating_sub(TITLE);
    if each >= FEWEST {
        return (each.min(ROWS), each.min(ROWS));
    }
    // A line says that it is omitted.
    (lines.saturating_sub(TITLE + 1).min(ROWS), 0)
}

/// What was recorded, and for how long.
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
}

/// Notes on the run and the process.
fn notes(out: &mut String, profile: &Profile, analysis: &Analysis) {
    let run = &profile.run;
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
}
