//! A comparison for people: the verdict first, then what differs beyond noise, then how certain
//! that is.

use super::format::{count, counted, cut, cut_front, printable, seconds};
use super::table::{TextTable, body};
use super::{WIDTH, line, sentence};
use crate::analysis::diff::carrier::is_below;
use crate::analysis::diff::conditions::Discrepancy;
use crate::analysis::diff::keys::Key;
use crate::analysis::diff::noise::RunToRun;
use crate::analysis::diff::steps::BetweenSteps;
use crate::analysis::diff::units::Unit;
use crate::analysis::diff::{Diff, Row, RunFacts, Verdict};
use crate::report::command::shown_command;
use crate::report::part::{part_name, unit_name};
use crate::report::tables::diff::{PARTS, Part, Scale, part, parts};

/// The comparison, in lines of 80 columns. `rows` is the maximum number of listed parts of a kind.
pub fn render_diff(diff: &Diff, rows: usize) -> String {
    let mut out = String::new();
    let scale = Scale::new(diff);
    sentence(&mut out, "", &verdict(diff, scale));
    out.push('\n');
    side(&mut out, "A", &diff.a, diff.unit);
    side(&mut out, "B", &diff.b, diff.unit);
    for each in &diff.discrepancies {
        sentence(&mut out, "  ", &discrepancy(each));
    }
    table(&mut out, diff, rows);
    evaluation(&mut out, diff);
    profiled(&mut out, diff);
    noise(&mut out, diff);
    how_sure(&mut out, diff);
    out
}

/// The first line.
fn verdict(diff: &Diff, scale: Scale) -> String {
    let Some(step) = &diff.step else {
        return of_a_second(diff, scale);
    };
    let (a, b) = (scale.ms(step.a.mean_ns), scale.ms(step.b.mean_ns));
    let percent = match step.relative {
        Some((relative, half)) => (relative * 100.0, half * 100.0),
        None => (0.0, 0.0),
    };
    if step.verdict != Verdict::Noise {
        let carried = match &diff.carrier {
            Some(carrier) => {
                let name = diff
                    .rows
                    .get(carrier.row)
                    .map_or(String::new(), |row| carrier_name(row, scale));
                format!("; {name} carries it")
            }
            None => "; no single part carries most of it".to_owned(),
        };
        let word = match step.verdict {
            Verdict::Slower => "more",
            _ => "less",
        };
        let speed = match step.b.mean_ns > 0.0 {
            true => format!(", {:.2}x as fast", step.a.mean_ns / step.b.mean_ns),
            false => String::new(),
        };
        return format!(
            "B takes {:.1} % ±{:.1} {word} time per step: {b} against {a} ms{speed}{carried}",
            percent.0.abs(),
            percent.1
        );
    }
    let but = diff.beyond_noise().first().map_or(String::new(), |row| {
        let more = if row.difference_ns > 0.0 {
            "more"
        } else {
            "less"
        };
        let taken = scale.ms(row.difference_ns.abs());
        format!("; but {} takes {taken} ms {more}", in_words(row))
    });
    format!(
        "No difference beyond noise: B takes {b} ms per step, A {a} ({:+.1} % ±{:.1}){but}",
        percent.0, percent.1
    )
}

/// Without steps it is unknown which side is faster.
fn of_a_second(diff: &Diff, scale: Scale) -> String {
    let why = if diff.few_steps {
        "Too few steps to tell whether B is faster."
    } else {
        "No steps are known, so it is unknown whether B is faster."
    };
    match diff.beyond_noise().first() {
        None => format!("{why} No part's share of wall time differs beyond noise."),
        Some(row) => {
            let more = if row.difference_ns > 0.0 {
                "more"
            } else {
                "less"
            };
            format!(
                "{why} Of a second of wall time, {} takes {} ms {more} (±{})",
                in_words(row),
                scale.ms(row.difference_ns.abs()),
                scale.ms(row.half_ns)
            )
        }
    }
}

fn carrier_name(row: &Row, scale: Scale) -> String {
    format!("{} ({} ms)", in_words(row), scale.signed(row.difference_ns))
}

fn in_words(row: &Row) -> String {
    let name = part_name(&row.key, &row.about);
    match row.key {
        Key::Phase(_) | Key::Region(_) => format!("phase {name}"),
        Key::Activity(_) => format!("activity {name}"),
        _ => name,
    }
}

fn side(out: &mut String, name: &str, runs: &[RunFacts], unit: Unit) {
    for (index, run) in runs.iter().enumerate() {
        let name = if index == 0 { name } else { "" };
        let counted = match unit {
            Unit::Step => counted(run.units as u64, "step"),
            Unit::Second => format!("{:.1} s of training", run.units),
        };
        let mut facts = format!("{} recorded, {counted}", seconds(run.wall_ns));
        if unit == Unit::Step && run.outside_ns > run.wall_ns / 100 {
            facts.push_str(&format!(", {} outside of them", seconds(run.outside_ns)));
        }
        let file = cut_front(&printable(&run.name), 30);
        line(out, &format!("{name:<2}{file}: {facts}"));
    }
    let commands: Vec<String> = runs
        .iter()
        .map(|run| shown_command(&run.command, WIDTH - 3))
        .collect();
    if let Some(command) = commands.first().filter(|command| !command.is_empty()) {
        line(out, &format!("  {command}"));
    }
}

fn discrepancy(each: &Discrepancy) -> String {
    let shown = |values: &[String]| cut(&values.join(" | "), 60);
    if each.a == each.b {
        return format!(
            "Runs of one side differ among themselves in {}: {}",
            each.what,
            shown(&each.a)
        );
    }
    let (a, b) = match (each.a.as_slice(), each.b.as_slice()) {
        ([a], [b]) if each.what == "command line" => {
            let (a, b) = less_common(a, b);
            (cut(&a, 60), cut(&b, 60))
        }
        _ => (shown(&each.a), shown(&each.b)),
    };
    format!("NOT THE SAME {}: A {a}; B {b}", each.what)
}

/// Two texts of many words without their common first and last words, except one word before the
/// first difference.
fn less_common(a: &str, b: &str) -> (String, String) {
    let (a, b): (Vec<&str>, Vec<&str>) = (a.split(' ').collect(), b.split(' ').collect());
    let same = |pair: &(&&str, &&str)| pair.0 == pair.1;
    let start = a.iter().zip(&b).take_while(same).count();
    let shorter = a.len().min(b.len());
    let end = a.iter().rev().zip(b.iter().rev()).take_while(same).count();
    let end = end.min(shorter - start);
    let from = start.saturating_sub(1);
    let part = |words: &[&str]| {
        let inner = words.get(from..words.len() - end).unwrap_or_default();
        let head = if from > 0 { "… " } else { "" };
        let tail = if end > 0 { " …" } else { "" };
        format!("{head}{}{tail}", inner.join(" "))
    };
    (part(&a), part(&b))
}

/// Whether a part belongs to a section.
type IsOf = fn(&Key) -> bool;

/// Sections, by kind of part.
const SECTIONS: &[(&str, IsOf)] = &[
    ("PHASES AND ACTIVITIES", |key| {
        matches!(
            key,
            Key::Phase(_) | Key::Region(_) | Key::Activity(_) | Key::Row(_)
        )
    }),
    ("MODULES in forward, with what is below them", |key| {
        matches!(key, Key::Module { .. })
    }),
    (
        "LINES of your own code, with what they call of others'",
        |key| matches!(key, Key::Line { .. }),
    ),
    ("OPERATORS, own time", |key| matches!(key, Key::Operator(_))),
    ("PYTHON FUNCTIONS, with native code that they call", |key| {
        matches!(key, Key::Function { .. })
    }),
    ("NATIVE FUNCTIONS, own time", |key| {
        matches!(key, Key::Native { .. })
    }),
];

fn table(out: &mut String, diff: &Diff, most: usize) {
    let beyond = diff.beyond_noise();
    if diff.step.is_none() && beyond.is_empty() {
        return;
    }
    line(
        out,
        &format!(
            "\nHOST WALL TIME of the training thread (not GPU time), {}",
            unit_name(diff.unit)
        ),
    );
    let mut steps = parts(diff, &diff.step);
    for (rank, step) in &diff.ranks {
        steps.push(Part {
            shown: format!("step of rank {rank}"),
            ..part(diff, step)
        });
    }
    let table = TextTable::new(PARTS, &steps);
    table.head(out);
    for step in &steps {
        table.row(out, step);
    }
    for (title, is_of) in SECTIONS {
        let is_listed = |row: &&Row| is_of(&row.key) && !passes_on(row, &beyond);
        let of_kind = parts(diff, beyond.iter().copied().filter(is_listed));
        if !of_kind.is_empty() {
            line(out, title);
            body(out, PARTS, &of_kind, most);
        }
    }
}

fn evaluation(out: &mut String, diff: &Diff) {
    let (a, b) = (
        BetweenSteps::of_side(&diff.a),
        BetweenSteps::of_side(&diff.b),
    );
    if (a.passes, b.passes) == (0, 0) {
        return;
    }
    let words = |evaluation: &BetweenSteps| match evaluation.passes {
        0 => "none".to_owned(),
        1 => format!("1 pass of {}", seconds(evaluation.ns)),
        passes => format!(
            "{} passes of {}",
            count(passes),
            seconds(evaluation.ns / passes)
        ),
    };
    let mut text = format!(
        "EVALUATION between steps, part of none: A {}, B {}",
        words(&a),
        words(&b)
    );
    if a.passes > 0 && b.passes > 0 && a.ns > 0 {
        let per_pass = |evaluation: &BetweenSteps| evaluation.ns as f64 / evaluation.passes as f64;
        let percent = (per_pass(&b) / per_pass(&a) - 1.0) * 100.0;
        text.push_str(&format!(" ({percent:+.1} %)"));
    }
    text.push('.');
    out.push('\n');
    sentence(out, "", &text);
}

fn profiled(out: &mut String, diff: &Diff) {
    let [a, b] =
        [&diff.a, &diff.b].map(|runs| -> u64 { runs.iter().map(|run| run.profiled_steps).sum() });
    if a.saturating_add(b) > 0 {
        let text = format!(
            "Steps that torch.profiler slowed down are left out: A {}, B {}.",
            count(a),
            count(b)
        );
        out.push('\n');
        sentence(out, "", &text);
    }
}

/// Whether a module's difference is that of a listed module below it.
fn passes_on(module: &Row, beyond: &[&Row]) -> bool {
    beyond.iter().any(|below| {
        is_below(&below.key, &module.key)
            && below.verdict == module.verdict
            && below.difference_ns / module.difference_ns >= 0.7
    })
}

fn noise(out: &mut String, diff: &Diff) {
    let within: Vec<&Row> = diff
        .rows
        .iter()
        .filter(|row| row.verdict == Verdict::Noise)
        .collect();
    let excluding = within.iter().filter(|row| row.excludes_zero()).count();
    let chance = (diff.rows.len() as f64 * 0.05).round() as u64;
    out.push('\n');
    let mut text = format!(
        "WITHIN NOISE: {} of {} parts compared",
        count(within.len() as u64),
        count(diff.rows.len() as u64)
    );
    if excluding > 0 {
        text.push_str(&format!(
            "; {} of their intervals exclude zero, chance alone makes up to {}",
            count(excluding as u64),
            count(chance)
        ));
    }
    text.push('.');
    if diff.too_seldom > 0 {
        text.push_str(&format!(
            " {} seen too seldom to compare (fewer than 30 samples).",
            counted(diff.too_seldom as u64, "more row")
        ));
    }
    sentence(out, "", &text);
}

fn how_sure(out: &mut String, diff: &Diff) {
    let text = match diff.run_to_run {
        RunToRun::Assumed(relative) if relative > 0.0 => format!(
            "HOW SURE: ± are 95 % intervals. Two single runs cannot show how far the machine itself drifts from one run to \
             the next: {:.1} % is taken for granted (--run-to-run). To have it measured, record each side several times, in \
             turns: torchspy diff --a A1 A2 A3 --b B1 B2 B3.",
            relative * 100.0
        ),
        RunToRun::Assumed(_) => "HOW SURE: ± are 95 % intervals of these two recordings alone: they know nothing of how far \
             the machine itself drifts from one run to the next (--run-to-run 0). To have that measured, record each side \
             several times, in turns: torchspy diff --a A1 A2 A3 --b B1 B2 B3."
            .to_owned(),
        RunToRun::Measured { scatter, freedom } => format!(
            "HOW SURE: ± are 95 % intervals, by how far runs of one side differ: by {:.1} % beyond what shows within a run \
             ({} run{} more than sides).",
            scatter * 100.0,
            freedom,
            if freedom == 1 { "" } else { "s" }
        ),
    };
    sentence(out, "", &text);
    let family = "A part is listed if it stands out of all that were compared: the chance that any is listed wrongly is 1 % \
                  (Holm); for the step, a question of its own, it is 5 %.";
    sentence(out, "", family);
    if diff.unit == Unit::Second {
        let shares = "Shares add up to the same second in both: where one grows, others shrink without having become \
                      faster.";
        sentence(out, "", shares);
    }
}

#[cfg(test)]
mod tests {
    use super::less_common;

    #[test]
    fn of_long_command_lines_only_what_differs_is_shown() {
        let shown = |a, b| less_common(a, b);
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            shown(
                "train.py --steps 5 --extra 0 -v",
                "train.py --steps 5 --extra 400 -v"
            ),
            pair("… --extra 0 …", "… --extra 400 …")
        );
        assert_eq!(
            shown("train.py", "train.py --fast"),
            pair("train.py", "train.py --fast")
        );
        assert_eq!(shown("a b c", "a b b c"), pair("… b …", "… b b …"));
        assert_eq!(shown("2.15.0", "2.14.0"), pair("2.15.0", "2.14.0"));
        assert_eq!(shown("", "x"), pair("", "x"));
    }
}
