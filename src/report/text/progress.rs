//! Steps: number, lengths, slow ones, and their phases.

use super::format::{count, cut, milliseconds, percent, place, printable, seconds, share_of};
use super::{WIDTH, line, sentence, table, wrapped};
use crate::analysis::Analysis;
use crate::analysis::progress::times::FEWEST_FOR_SPREAD;
use crate::analysis::progress::{Progress, SlowStep, StepTimes, StepUnit};
use crate::analysis::summary::ProcessSummary;
use crate::model::category::Phase;
use crate::model::profile::{Profile, Role};
use crate::model::progress::CounterKind;
use crate::report::tables::steps as rows;

/// Phases below this share of a step are summed.
const SMALL: f64 = 0.01;

pub(super) fn progress(out: &mut String, profile: &Profile, process: &ProcessSummary) {
    let Some(progress) = &process.progress else {
        not_counted(out, profile, process);
        return;
    };
    out.push('\n');
    headline(out, progress);
    no_training(out, profile, process);
    left_out(out, progress);
    counted(out, progress);
    evaluation(out, progress);
    phases(out, profile, process, progress);
    for slow in &progress.slow {
        slow_step(out, profile, slow);
    }
}

/// How many steps there were, and how long they took.
pub(super) fn brief(out: &mut String, profile: &Profile, process: &ProcessSummary) {
    let Some(progress) = &process.progress else {
        not_counted(out, profile, process);
        return;
    };
    out.push('\n');
    headline(out, progress);
    no_training(out, profile, process);
}

/// Phases of a step.
pub(super) fn brief_phases(out: &mut String, profile: &Profile, process: &ProcessSummary) {
    let Some(progress) = &process.progress else {
        return;
    };
    let phases: Vec<String> = progress
        .phases
        .iter()
        .filter(|phase| phase.share.value >= SMALL)
        .map(|phase| {
            let name = printable(profile.phase_name(phase.phase));
            format!("{name} {}", percent(phase.share.value))
        })
        .collect();
    if let Some((first, rest)) = phases.split_first() {
        let mut parts = vec![format!("  of a step: {first}")];
        parts.extend_from_slice(rest);
        wrapped(out, &parts, "| ");
    }
}

/// Whether a trainer was sampled for some time, and not seen to train.
fn is_idle(profile: &Profile, process: &ProcessSummary) -> bool {
    let matrix = &process.matrix;
    let steps = process.progress.as_ref();
    // Selected samples need not show what happened between them.
    let sees_all = !profile.run.gil_only && profile.run.threads.is_none();
    let trains = [Phase::Backward, Phase::Optimizer]
        .iter()
        .any(|&phase| matrix.phase(phase) > 0)
        || steps.is_some_and(|progress| progress.unit == StepUnit::Optimizer);
    sees_all && !trains && process.wall_ns > 0 && matches!(process.role, Role::Trainer { .. })
}

/// What to do about a recording without training.
fn no_training(out: &mut String, profile: &Profile, process: &ProcessSummary) {
    if is_idle(profile, process) {
        let text = "no training was seen (no backward, no optimizer): record longer or attach later; \
                    --region backward=FILE:FUNCTION marks a function of your own";
        sentence(out, "  ", text);
    }
}

/// A loop that updates its parameters and makes its batches by hand: what would make its steps
/// known.
fn not_counted(out: &mut String, profile: &Profile, process: &ProcessSummary) {
    let matrix = &process.matrix;
    if is_idle(profile, process) {
        out.push_str("\nSTEPS none\n");
        no_training(out, profile, process);
    }
    if matrix.phase(Phase::Backward) == 0 {
        return;
    }
    let lacks = |phase: &Phase| matrix.phase(*phase) == 0;
    let why = match [Phase::Input, Phase::Optimizer].iter().all(lacks) {
        true => "no optimizer and no DataLoader was seen at work",
        false => "no counter of an optimizer or a DataLoader was seen to move",
    };
    out.push('\n');
    line(out, &format!("STEPS not counted: {why}"));
    let lacking: Vec<String> = [Phase::Input, Phase::Optimizer]
        .iter()
        .filter(|phase| lacks(phase))
        .map(|phase| format!("--region {}=FILE:FUNCTION", phase.name()))
        .collect();
    let text = match lacking.is_empty() {
        true => {
            "record several steps; --region NAME=FILE:FUNCTION makes a function a phase".to_owned()
        }
        false => format!("functions of your own that do it: {}", lacking.join(", ")),
    };
    sentence(out, "  ", &text);
}

/// Every step that is complete in the recording.
pub(super) fn steps(out: &mut String, profile: &Profile, analysis: &Analysis) {
    let rows = rows::steps(profile, analysis);
    if !rows.is_empty() {
        out.push('\n');
        table::table(out, rows::STEPS, &rows, rows.len());
    }
}

fn headline(out: &mut String, progress: &Progress) {
    let unit = match progress.unit {
        StepUnit::Optimizer => "STEPS",
        StepUnit::Batch => "BATCHES",
    };
    let steps = count(progress.steps);
    let mut facts = vec![match (progress.steps_at_most, progress.counted_from_ns) {
        (Some(most), _) => format!("{unit} {steps} to {}", count(most)),
        (None, Some(_)) => format!("{unit} at least {steps}"),
        (None, None) => format!("{unit} {steps}"),
    }];
    let from = progress.counted_from_ns;
    facts.extend(from.map(|ns| format!("counted from {} on", seconds(ns))));
    match &progress.times {
        None => facts.push("too few to be timed".to_owned()),
        Some(times) => facts.extend(times_of(progress, times)),
    }
    if let Some(rate) = progress.samples_per_s() {
        facts.push(format!("{} samples/s", number(rate)));
    } else if let Some(rate) = progress.steps_per_s() {
        facts.push(format!("{}/s", number(rate)));
    }
    if let Some(epochs) = progress.epochs {
        facts.push(epochs_text(progress, epochs));
    }
    wrapped(out, &facts, "| ");
}

/// A pass that began need not have been seen to its end, nor one that ended from its start.
fn epochs_text(progress: &Progress, epochs: u64) -> String {
    let whole = progress.epochs_complete;
    let counted = progress.source == Some(CounterKind::LightningSteps);
    if let Some(most) = progress.epochs_at_most {
        return format!("epochs {} to {}", count(epochs), count(most));
    }
    match (whole, progress.more_epochs) {
        (_, true) => format!("epochs at least {}", count(epochs)),
        (whole, _) if whole >= epochs || counted => format!("epochs {}", count(epochs)),
        (whole, _) if progress.epochs_before > 0 => {
            let part = count(epochs.saturating_sub(whole));
            match whole {
                0 => format!("epochs {part} in part"),
                _ => format!("epochs {} complete, {part} in part", count(whole)),
            }
        }
        (0, _) => format!("epochs begun {}", count(epochs)),
        (whole, _) => format!(
            "epochs begun {}, {} of them to their end",
            count(epochs),
            count(whole)
        ),
    }
}

/// Mean and spread, the steps that they are of, and slow ones that are not among these.
fn times_of(progress: &Progress, times: &StepTimes) -> Vec<String> {
    let ms = |ns: f64| milliseconds(ns / 1e6);
    let mut mean = format!("mean {}", ms(times.mean_ns));
    if let Some((low, high)) = times.interval_ns {
        mean.push_str(&format!(" ±{}", ms((high - low) / 2.0)));
    }
    match &times.spread {
        Some(spread) => mean.push_str(&format!(" sd {} ms", ms(spread.sd_ns))),
        None => mean.push_str(" ms"),
    }
    if times.steps != progress.steps {
        mean.push_str(&format!(" of {}", count(times.steps)));
    }
    let mut facts = vec![mean];
    match progress.left_out.all {
        true => facts.push(format!(
            "the run's mean leaves them out: {}",
            reasons(progress).join(", ")
        )),
        false => {
            let without = start(progress).into_iter().chain(profiled(progress));
            facts.extend(without.map(|steps| format!("without {steps}")));
        }
    }
    facts.push(match &times.spread {
        None if times.steps < FEWEST_FOR_SPREAD as u64 => {
            "too few steps for percentiles".to_owned()
        }
        None => "steps too short for percentiles".to_owned(),
        Some(spread) => format!(
            "p50 {} p95 {} p99 {} max {} ms",
            ms(spread.p50_ns as f64),
            ms(spread.p95_ns as f64),
            ms(spread.p99_ns as f64),
            ms(spread.max_ns as f64)
        ),
    });
    facts
}

/// `14 slow ones at the start (7.5 s)`.
fn start(progress: &Progress) -> Option<String> {
    let out = &progress.left_out;
    let (steps, time) = (count(out.start), seconds(out.start_ns));
    match (out.start, out.compiles) {
        (0, _) => None,
        (_, true) => Some(format!("{steps} until torch.compile was done ({time})")),
        (1, false) => Some(format!("a slow one at the start ({time})")),
        (_, false) => Some(format!("{steps} slow ones at the start ({time})")),
    }
}

/// `12 that torch.profiler slowed down`.
fn profiled(progress: &Progress) -> Option<String> {
    let steps = progress.left_out.profiled;
    (steps > 0).then(|| format!("{} that torch.profiler slowed down", count(steps)))
}

/// Every step that the times are not of, and why.
fn left_out(out: &mut String, progress: &Progress) {
    let Some(times) = &progress.times else {
        return;
    };
    let each = &progress.left_out;
    let unseen = format!("{} whose start was not seen", count(each.unseen));
    let mut without: Vec<String> = Vec::new();
    without.extend((each.unseen > 0).then_some(unseen));
    if !each.all {
        without.extend(reasons(progress));
    }
    let mut text = match without.is_empty() {
        true => format!("times are of {} steps: all", count(times.steps)),
        false => format!(
            "times are of {} steps: all but {}",
            count(times.steps),
            without.join(", ")
        ),
    };
    if each.all {
        text.push_str(&format!(
            "; the run's mean leaves these out: {}",
            reasons(progress).join(", ")
        ));
    }
    sentence(out, "  ", &text);
}

/// Complete steps that the mean of the run is not of, by reason.
fn reasons(progress: &Progress) -> Vec<String> {
    let mut reasons: Vec<String> = start(progress).into_iter().collect();
    let passes = progress.left_out.between_passes;
    if passes > 0 {
        let text = format!("{} in which a pass over the data began", count(passes));
        reasons.push(text);
    }
    reasons.extend(profiled(progress));
    reasons
}

/// What was counted, and which counter.
fn counted(out: &mut String, progress: &Progress) {
    let class = printable(&progress.class);
    let mut facts = vec![match progress.source {
        Some(CounterKind::Batches) => format!("  counted by {class}"),
        Some(CounterKind::ParameterVersion) => {
            format!("  counted by changes of {class}'s parameters")
        }
        Some(CounterKind::OptimizerState) => {
            format!("  counted by {class}'s own count of its steps")
        }
        Some(CounterKind::TrainerSteps) => "  counted by the Trainer's global_step".to_owned(),
        Some(CounterKind::LightningSteps | CounterKind::LightningEpochs) => {
            "  counted by Lightning's progress".to_owned()
        }
        None => "  counted".to_owned(),
    }];
    if let Some(each) = progress.batches_per_step.filter(|&each| each > 1) {
        facts.push(format!("{} batches a step", count(each)));
    }
    if progress.unit == StepUnit::Batch {
        facts.push("no optimizer step was seen".to_owned());
    }
    if !progress.epoch_ns.is_empty() {
        const SHOWN: usize = 5;
        let from = progress.epoch_ns.len().saturating_sub(SHOWN);
        let times = progress.epoch_ns.get(from..).unwrap_or(&[]).iter();
        let times = times.map(|&ns| format!("{:.1}", ns as f64 / 1e9));
        let last = if progress.epoch_ns.len() > SHOWN {
            "last "
        } else {
            ""
        };
        facts.push(format!(
            "{last}epochs {} s",
            times.collect::<Vec<_>>().join(" ")
        ));
    }
    wrapped(out, &facts, "| ");
}

fn evaluation(out: &mut String, progress: &Progress) {
    let evaluation = &progress.evaluation;
    if evaluation.passes == 0 {
        return;
    }
    let passes = if evaluation.passes == 1 {
        "pass"
    } else {
        "passes"
    };
    let text = format!(
        "  evaluation: {} {passes} without a step, {} {}, {}",
        count(evaluation.passes),
        count(evaluation.batches),
        if evaluation.batches == 1 {
            "batch"
        } else {
            "batches"
        },
        seconds(evaluation.ns)
    );
    line(out, &cut(&text, WIDTH));
}

fn phases(out: &mut String, profile: &Profile, process: &ProcessSummary, progress: &Progress) {
    let (Some(times), false) = (&progress.times, progress.phases.is_empty()) else {
        return;
    };
    let whose = if process.cuda {
        "host wall time (not GPU time)"
    } else {
        "wall time"
    };
    let title = format!("  {whose} of a step, by phase");
    line(out, &format!("{title:<38}   ms/step   % of steps"));
    let mut small = 0.0;
    for phase in &progress.phases {
        if phase.share.value < SMALL {
            small += phase.per_step_ns;
            continue;
        }
        let text = format!(
            "    {:<36}{:>10}  {}",
            printable(profile.phase_name(phase.phase)),
            milliseconds(phase.per_step_ns / 1e6),
            share_of(&phase.share)
        );
        line(out, &text);
    }
    if small > 0.0 {
        let text = format!(
            "    {:<36}{:>10}  {:>7}",
            "rest",
            milliseconds(small / 1e6),
            percent(small / times.mean_ns.max(1.0))
        );
        line(out, &text);
    }
    if progress.collectives_elsewhere.value >= SMALL {
        let text = format!(
            "    {:<36}{:>10}  {}",
            "of these, collectives in other phases",
            milliseconds(progress.collectives_elsewhere.value * times.mean_ns / 1e6),
            share_of(&progress.collectives_elsewhere)
        );
        line(out, &text);
    }
}

fn slow_step(out: &mut String, profile: &Profile, slow: &SlowStep) {
    let at_s = slow.start_ns.saturating_sub(profile.start_ns) as f64 / 1e9;
    let mut text = format!(
        "  slow: step {} at {at_s:.1} s, {} ms ({:.1} x): {} +{} ms",
        count(slow.number),
        milliseconds(slow.ns as f64 / 1e6),
        slow.ns as f64 / slow.usual_ns.max(1) as f64,
        printable(profile.phase_name(slow.phase)),
        milliseconds(slow.more_ns as f64 / 1e6)
    );
    let line_of = slow.line.and_then(|(function, line)| {
        let function = profile.function(function)?;
        Some(place(function, line))
    });
    if let Some(place) = line_of {
        text.push_str(&format!(", {place}"));
    }
    line(out, &cut(&text, WIDTH));
}

fn number(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.2}")
    } else if value < 100.0 {
        format!("{value:.1}")
    } else {
        count(value.round() as u64)
    }
}
