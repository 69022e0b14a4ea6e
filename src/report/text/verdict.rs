//! The verdict, at the top: cause, evidence, next step, and the maximum gain.

use super::format::{milliseconds, place, printable, seconds};
use super::ras::ras;
use super::{collectives, role};
use crate::analysis::Analysis;
use crate::analysis::dump::ras::kept;
use crate::analysis::progress::standstill::Standstill;
use crate::analysis::verdict::STANDS_OUT;
use crate::analysis::verdict::figures::{Figures, Part};
use crate::analysis::verdict::rules::Finding;
use crate::analysis::verdict::{Bound, Cause, OTHERS_WAIT, Verdict, WaitedFor};
use crate::model::ids::ProcessId;
use crate::model::profile::Profile;
use std::iter::{once, repeat};

/// Indentation of a continued line.
const INDENT: &str = "        ";

/// What the shares of the training thread's time are of.
const OF_TIME: &str = "of the time after start-up";

/// Figures of the evidence that are such shares: others are of a GPU's time, of workers', or of
/// CPUs.
const OF_TRAINING_THREAD: [&str; 9] = [
    "collectives",
    "gpu_copy",
    "gpu_sync",
    "host_operators",
    "input",
    "omp_barrier",
    "python_and_dispatch",
    "waiting_for_gpu",
    "without_cpu",
];

/// What a statement is about, in one word; empty if that is what the one before is about.
pub(super) type Statement = (&'static str, String);

/// Appends nothing if the process is not a trainer.
pub(super) fn verdict(out: &mut String, profile: &Profile, analysis: &Analysis) {
    let statements = statements(profile, analysis);
    if !statements.is_empty() {
        out.push('\n');
    }
    for (word, text) in &statements {
        hanging(out, word, text);
    }
}

/// The verdict, statement by statement; none if the process is not a trainer.
pub(super) fn statements(profile: &Profile, analysis: &Analysis) -> Vec<Statement> {
    let mut out = Vec::new();
    let Some(verdict) = &analysis.verdict else {
        return out;
    };
    match (verdict.cause, verdict.findings.first()) {
        (Some(cause), Some(finding)) => one_cause(&mut out, profile, analysis, cause, finding),
        _ => no_cause(&mut out, profile, analysis, verdict),
    }
    let process = analysis.processes.iter();
    let mut process = process.filter(|each| each.process == verdict.process);
    let progress = process.next().and_then(|each| each.progress.as_ref());
    if let Some(still) = progress.and_then(|progress| progress.standstill.as_ref()) {
        out.push(("STILL", standstill(profile, verdict.process, still)));
    }
    if let Some(kept) = kept(profile, progress.map(|progress| progress.standstill)) {
        let lines = ras(profile, analysis, &kept).into_iter();
        out.extend(
            lines
                .zip(once("RAS").chain(repeat("")))
                .map(|(line, word)| (word, line)),
        );
    }
    let missing = verdict.missing.iter();
    out.extend(missing.map(|missing| ("MISSING", missing.clone())));
    out
}

/// How long no step ended, where the training thread was, and how to learn more.
fn standstill(profile: &Profile, process: ProcessId, still: &Standstill) -> String {
    let at = still.at.and_then(|(function, line)| {
        let function = profile.function(function)?;
        Some(place(function, line))
    });
    let at = at.unwrap_or_else(|| "no line that is known".to_owned());
    let pid = profile.process(process).map_or(0, |it| it.info.pid);
    let mut text = format!(
        "no step ended in the last {}: the training thread was at {at} for {} of it",
        seconds(still.ns),
        percent(still.share)
    );
    if let Some(wait) = still.wait {
        text.push_str(&format!(
            " ({}); if it hangs, torchspy dump --pid {pid} says what it waits for, and torchspy watch finds the next one",
            wait.name().replace('_', " ")
        ));
    }
    text
}

/// The verdict in one line: the cause, the evidence, and the line of code.
pub(super) fn line(profile: &Profile, verdict: &Verdict) -> String {
    let (Some(cause), Some(finding)) = (verdict.cause, verdict.findings.first()) else {
        return none_text(verdict);
    };
    let mut text = cause_text(verdict, cause, finding);
    if let Some((function, line)) = verdict.at
        && let Some(function) = profile.function(function)
    {
        text.push_str(&format!(", at {}", place(function, line)));
    }
    text
}

/// `input-bound, batch work (high). Training thread waits for data 41 %`.
fn cause_text(verdict: &Verdict, cause: Cause, finding: &Finding) -> String {
    let detail = cause
        .detail()
        .map_or(String::new(), |detail| format!(", {detail}"));
    let confidence = verdict
        .confidence
        .map_or("", |confidence| confidence.name());
    let claim = claim(cause, finding, &verdict.figures);
    format!("{}{detail} ({confidence}). {claim}", cause.name())
}

fn one_cause(
    out: &mut Vec<Statement>,
    profile: &Profile,
    analysis: &Analysis,
    cause: Cause,
    finding: &Finding,
) {
    let Some(verdict) = &analysis.verdict else {
        return;
    };
    out.push(("VERDICT", cause_text(verdict, cause, finding)));
    of_which_rank(out, profile, analysis, verdict);
    out.push(("WHY", why(finding, &verdict.figures)));
    if let Some(step) = &verdict.next_step {
        out.push(("NEXT", step.clone()));
    }
    if let Some(bound) = &verdict.bound {
        out.push(("BOUND", bound_text(bound)));
    }
}

/// The rank that the verdict is of, if the others wait for it, and the line.
fn of_which_rank(
    out: &mut Vec<Statement>,
    profile: &Profile,
    analysis: &Analysis,
    verdict: &Verdict,
) {
    if let Some(waits) = verdict.waits_for {
        let info = profile.process(verdict.process);
        let name = info.map_or_else(String::new, |process| role(process.role));
        let text = match waits {
            WaitedFor::Host(percent) => format!(
                "this is {name}, the last to arrive for {percent} % of the others' wait in collectives"
            ),
            WaitedFor::Device => {
                format!("this is {name}: the others' GPUs spin in collectives, its own does not")
            }
            WaitedFor::OnDevices(_) => {
                let slow = analysis.slow_rank.as_ref();
                format!(
                    "this is {name}, which arrives last: {}",
                    slow.map_or_else(String::new, collectives::behind)
                )
            }
        };
        out.push(("", text));
    }
    if let Some((function, line)) = verdict.at
        && let Some(function) = profile.function(function)
    {
        let text = format!(
            "at {} in {}",
            place(function, line),
            printable(&function.name)
        );
        out.push(("", text));
    }
}

/// Why there is no single cause.
fn none_text(verdict: &Verdict) -> String {
    let names: Vec<String> = verdict
        .findings
        .iter()
        .take(3)
        .map(|finding| finding.cause.name().to_owned())
        .collect();
    match names.as_slice() {
        [] if verdict.figures.ticks == 0 => "none: nothing after start-up was recorded".to_owned(),
        [] => {
            "no single one: nothing takes enough of the time, or the decisive figures were not recorded".to_owned()
        }
        [only] => match verdict.competing {
            Some((competing, weight)) if STANDS_OUT * weight > weight_of_first(verdict) => {
                format!(
                    "no single one: {only}, but {} takes nearly as much",
                    competing.name()
                )
            }
            _ if verdict.missing.is_empty() => {
                format!("none: {only} is the most, and little")
            }
            _ => format!("none: it may be {only}, but see what is missing"),
        },
        several => format!("no single one: {}", several.join(", ")),
    }
}

fn weight_of_first(verdict: &Verdict) -> f64 {
    verdict.findings.first().map_or(0.0, |first| first.weight)
}

fn no_cause(out: &mut Vec<Statement>, profile: &Profile, analysis: &Analysis, verdict: &Verdict) {
    out.push(("VERDICT", none_text(verdict)));
    if verdict.waits_for.is_some() {
        of_which_rank(out, profile, analysis, verdict);
    }
    for finding in verdict.findings.iter().take(3) {
        let text = format!("{}: {}", finding.cause.name(), evidence(finding));
        out.push(("", text));
    }
    if verdict.figures.ticks > 0 {
        out.push(("WHY", host_shares(&verdict.figures)));
    }
    for (index, cost) in verdict.costs.iter().enumerate() {
        let text = format!(
            "{}. {}, {} after start-up: {}",
            index + 1,
            cost.what,
            percent(cost.share),
            cost.next_step
        );
        out.push((if index == 0 { "NEXT" } else { "" }, text));
    }
    let bounds = verdict.costs.iter();
    let bounds = bounds.filter_map(|cost| Some((&cost.what, cost.at_most?)));
    for (index, (what, at_most)) in bounds.enumerate() {
        let text = format!("without {what}: at most {at_most:.1}x");
        out.push((if index == 0 { "BOUND" } else { "" }, text));
    }
}

/// Whether the others wait for a rank in collectives that hosts wait in.
fn is_in_hosts(finding: &Finding) -> bool {
    let mut evidence = finding.evidence.iter();
    evidence.any(|evidence| evidence.figure == OTHERS_WAIT)
}

/// A line with a word before it, and continuation lines below its text.
fn hanging(out: &mut String, word: &str, text: &str) {
    let text = printable(text);
    let width = super::WIDTH - INDENT.len();
    let (mut line, mut first) = (String::new(), true);
    let mut flush = |line: &mut String| {
        let head = if first { word } else { "" };
        first = false;
        let text = format!("{head:<8}{line}");
        out.push_str(text.trim_end());
        out.push('\n');
        line.clear();
    };
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            flush(&mut line);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    flush(&mut line);
}

fn percent(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}

/// `44 % ±4 of the time after start-up`.
fn share(figures: &Figures, part: Part) -> String {
    let share = figures.share(part);
    let half = (share.high - share.low) / 2.0 * 100.0;
    format!("{} ±{half:.0} {OF_TIME}", percent(share.value))
}

/// What the training thread does, with respect to the cause.
fn claim(cause: Cause, finding: &Finding, figures: &Figures) -> String {
    let of = |part| share(figures, part);
    match cause {
        Cause::InputWork | Cause::InputStorage
            if figures.of(Part::InputWait) >= figures.of(Part::InputOwn) =>
        {
            format!("Training thread waits for data {}", of(Part::InputWait))
        }
        Cause::InputWork | Cause::InputStorage => {
            format!(
                "Training thread makes batches itself {}",
                of(Part::InputOwn)
            )
        }
        Cause::Launch => format!(
            "Training thread hands work to the GPU {}",
            of(Part::Dispatch)
        ),
        Cause::Dispatch => format!(
            "Training thread is in torch's dispatch of operators {}",
            of(Part::Dispatch)
        ),
        Cause::Python if figures.is_of_gil() => format!(
            "Training thread waits for the GIL, which another thread holds, {} {OF_TIME}",
            percent(figures.gil)
        ),
        Cause::Python => format!("Training thread is in Python {}", of(Part::Python)),
        Cause::GpuCompute | Cause::GpuMemory => "The GPU is what is waited for".to_owned(),
        Cause::Communication if finding.parts.contains(&Part::Sync) => {
            "The GPU runs kernels that do little, as collectives do that wait for other ranks"
                .to_owned()
        }
        Cause::Communication => format!(
            "Training thread is in collectives {}",
            of(Part::Communication)
        ),
        Cause::LateRank if is_in_hosts(finding) => format!(
            "The others wait for this rank {} of their time after start-up",
            percent(finding.weight)
        ),
        Cause::LateRank => format!(
            "The others wait for this rank {} of the time in which all step",
            percent(finding.weight)
        ),
        Cause::Sync => format!(
            "Training thread waits for the GPU, which has time to spare, {}",
            of(Part::Sync)
        ),
        Cause::Copy => format!("Training thread waits for copies {}", of(Part::Copy)),
        Cause::CpuStarved if finding.parts.contains(&Part::InputWait) => format!(
            "Training thread waits for data, and its workers for CPUs, {}",
            of(Part::InputWait)
        ),
        Cause::CpuStarved => format!("Training thread has no CPU {}", of(Part::NoCpu)),
        Cause::Throttled => "The GPU's clocks are held down".to_owned(),
        Cause::HostCompute => format!("Operators compute on the host {}", of(Part::Compute)),
        Cause::BarrierThreads | Cause::BarrierUneven | Cause::BarrierShort => format!(
            "Training thread waits for other OpenMP threads {}",
            of(Part::Barrier)
        ),
    }
}

fn why(finding: &Finding, figures: &Figures) -> String {
    let mut parts = vec![evidence(finding)];
    if let Some(busy) = figures.workers_busy
        && matches!(
            finding.cause,
            Cause::InputWork | Cause::InputStorage | Cause::CpuStarved
        )
    {
        let tasks: Vec<String> = figures
            .tasks
            .iter()
            .filter(|(task, share)| task.name() != "idle" && *share >= 0.05)
            .take(3)
            .map(|(task, share)| format!("{} {}", task.name().replace('_', " "), percent(*share)))
            .collect();
        let with = if tasks.is_empty() { "" } else { ": " };
        parts.push(format!(
            "workers busy {} of their time{with}{}",
            percent(busy),
            tasks.join(", ")
        ));
    }
    parts.join("; ")
}

fn evidence(finding: &Finding) -> String {
    let texts: Vec<String> = finding
        .evidence
        .iter()
        .map(|evidence| {
            let name = evidence.figure.replace('_', " ");
            let of = match OF_TRAINING_THREAD.contains(&evidence.figure) {
                true => " after start-up",
                false => "",
            };
            let value = format!("{}{of}", percent(evidence.value));
            match (evidence.at_least, evidence.at_most) {
                (Some(least), _) => format!("{name} {value} (≥ {})", percent(least)),
                (_, Some(most)) => format!("{name} {value} (≤ {})", percent(most)),
                _ => format!("{name} {value}"),
            }
        })
        .collect();
    texts.join(", ")
}

/// The largest parts of the training thread's time.
fn host_shares(figures: &Figures) -> String {
    const NAMES: [(Part, &str); 12] = [
        (Part::InputWait, "waits for data"),
        (Part::InputOwn, "input of its own"),
        (Part::Sync, "waits for the GPU"),
        (Part::Copy, "copies"),
        (Part::Communication, "collectives"),
        (Part::NoCpu, "no CPU"),
        (Part::Dispatch, "dispatch"),
        (Part::Python, "Python"),
        (Part::Compute, "operators on the host"),
        (Part::Barrier, "OpenMP barriers"),
        (Part::Compile, "torch.compile at work"),
        (Part::Other, "other things"),
    ];
    let mut parts: Vec<(f64, &str)> = NAMES
        .into_iter()
        .map(|(part, name)| match part {
            Part::Python if !figures.native => (figures.of(part), "Python or native code"),
            _ => (figures.of(part), name),
        })
        .filter(|(share, _)| *share >= 0.05)
        .collect();
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    let texts: Vec<String> = parts
        .iter()
        .map(|(share, name)| format!("{name} {}", percent(*share)))
        .collect();
    match texts.is_empty() {
        true => "training thread: nothing of 5 % or more".to_owned(),
        false => format!("training thread after start-up: {}", texts.join(", ")),
    }
}

fn bound_text(bound: &Bound) -> String {
    let steps = match bound.step_ns {
        Some((now, then)) => format!(
            " ({} -> {} ms/step)",
            milliseconds(now / 1e6),
            milliseconds(then / 1e6)
        ),
        None if bound.of_more => " over all time after start-up, not of each step".to_owned(),
        None => String::new(),
    };
    format!(
        "with {}: at most {:.1}x{steps}",
        bound.without, bound.speedup
    )
}
