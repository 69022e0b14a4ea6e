//! Runs on different numbers of ranks, for people.

use super::format::{count, counted, percent, printable};
use super::job::NCCL_OVERLAP;
use super::{line, sentence};
use crate::analysis::scaling::fit::Division;
use crate::analysis::scaling::mean::Estimate;
use crate::analysis::scaling::run::Run;
use crate::analysis::scaling::{Point, Scaling, Unit, Work, mean_of_runs};
use crate::report::tables::scaling::{FitRow, PointRow, fits, points};

/// Width of the first two columns.
const HEAD: usize = 21;

/// Heading of the share that communication has of itself and computation.
const OF_BOTH: &str = "comm/(comm+comput)";

/// The report.
pub fn render_scaling(scaling: &Scaling) -> String {
    let mut out = String::new();
    sentence(&mut out, "", &title(scaling));
    let rows = points(scaling);
    let unit = scaling.unit.name();
    line(&mut out, &format!("\nTIME PER {}", unit.to_uppercase()));
    let seconds = format!("s/{unit}");
    let mut head = vec![seconds.as_str(), "relative", "speed-up", "efficiency"];
    let is_mixed = scaling.other_work().next().is_some();
    let is_mixed = is_mixed
        && rows
            .iter()
            .any(|row| samples_of(row, scaling.unit).is_some());
    head.extend(is_mixed.then_some("samples"));
    table(&mut out, &head, &rows, |row| {
        let mut cells = vec![
            within(&row.time_s, precise),
            within(&row.relative_time, two),
            row.speed_up
                .map_or("not known".to_owned(), |it| within(&it, two)),
            row.efficiency.map_or(String::new(), |it| share_within(&it)),
        ];
        cells.extend(is_mixed.then(|| samples(row, scaling.unit)));
        cells
    });
    for text in about_work(scaling) {
        sentence(&mut out, "  ", &text);
    }
    line(
        &mut out,
        "\nWHERE TRAINING THREADS' TIME IN STEPS GOES (host time)",
    );
    let head = ["computation", "other", "communication", OF_BOTH];
    table(&mut out, &head, &rows, |row| {
        let shown = |it: Option<Estimate>, without: &str| {
            it.map_or(without.to_owned(), |it| share_within(&it))
        };
        let without = if row.nccl { "on the GPU" } else { "not known" };
        vec![
            shown(row.computation, "not known"),
            shown(row.other, ""),
            shown(row.communication, without),
            shown(row.communication_of_both, ""),
        ]
    });
    for text in about_time(&rows) {
        sentence(&mut out, "  ", &text);
    }
    gpu(&mut out, scaling, &rows);
    line(&mut out, "\nMODELS");
    for text in models(scaling) {
        sentence(&mut out, "  ", &text);
    }
    if !scaling.left_out.is_empty() {
        line(&mut out, "\nLEFT OUT");
        for (name, why) in &scaling.left_out {
            sentence(&mut out, "  ", &format!("{name}: {why}"));
        }
    }
    out
}

/// What is compared.
pub(crate) fn title(scaling: &Scaling) -> String {
    let runs: usize = scaling.points.iter().map(|point| point.runs.len()).sum();
    let mut ranks: Vec<u32> = scaling.points.iter().map(|point| point.ranks).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let word = if ranks == [1] { "rank" } else { "ranks" };
    let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
    format!(
        "{} on {} {word}, compared by {}s",
        counted(runs as u64, "run"),
        ranks.join(", "),
        scaling.unit.name()
    )
}

fn table(
    out: &mut String,
    head: &[&str],
    rows: &[PointRow],
    cells: impl Fn(&PointRow) -> Vec<String>,
) {
    let mut all = vec![head.iter().map(|&text| text.to_owned()).collect::<Vec<_>>()];
    all.extend(rows.iter().map(cells));
    let width = |column: usize| {
        let cells = all.iter().filter_map(|cells| cells.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for (at, cells) in all.iter().enumerate() {
        let mut text = match at.checked_sub(1).and_then(|at| rows.get(at)) {
            Some(row) => format!("  {:<12}{:>5}", printable(&row.strategy), row.ranks),
            None => format!("  {:<12}{:>5}", "strategy", "ranks"),
        };
        text = format!("{text:<HEAD$}");
        for (cell, width) in cells.iter().zip(&widths) {
            text.push_str(&format!("{cell:<width$}  "));
        }
        line(out, &text);
    }
}

/// `1.93 (1.88-1.98)`.
pub(crate) fn with_interval(estimate: &Estimate, shown: fn(f64) -> String) -> String {
    let value = shown(estimate.value);
    match (estimate.low, estimate.high) {
        (Some(low), Some(high)) => {
            let (low, high) = (shown(low), shown(high));
            // The unit once.
            let low = low.trim_end_matches([' ', '%']);
            format!("{value} ({low}-{high})")
        }
        _ => value,
    }
}

/// `1.93 ±0.05`: half of the interval.
fn within(estimate: &Estimate, shown: fn(f64) -> String) -> String {
    let value = shown(estimate.value);
    match (estimate.low, estimate.high) {
        (Some(low), Some(high)) => {
            let digits = value.split_once('.').map_or(0, |(_, behind)| behind.len());
            format!("{value} ±{:.digits$}", (high - low) / 2.0)
        }
        _ => value,
    }
}

/// `71.2 % ±2.8`.
pub(crate) fn share_within(estimate: &Estimate) -> String {
    let half = estimate.low.zip(estimate.high);
    let half = half.map_or(String::new(), |(low, high)| {
        format!(" ±{:.1}", (high - low) * 50.0)
    });
    format!("{}{half}", percent(estimate.value))
}

/// With three digits or more.
pub(crate) fn precise(value: f64) -> String {
    match value {
        value if value >= 1000.0 => count(value.round() as u64),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value if value >= 0.1 => format!("{value:.3}"),
        value => format!("{value:.4}"),
    }
}

pub(crate) fn two(value: f64) -> String {
    format!("{value:.2}")
}

pub(crate) fn share(value: f64) -> String {
    percent(value)
}

/// Samples of all ranks in an epoch or a step.
fn samples_of(row: &PointRow, unit: Unit) -> Option<f64> {
    match unit {
        Unit::Epoch => row.samples_an_epoch,
        Unit::Step => row.samples_a_step,
    }
}

fn samples(row: &PointRow, unit: Unit) -> String {
    let samples = samples_of(row, unit);
    samples.map_or("not counted".to_owned(), |it| count(it.round() as u64))
}

/// What is compared, and where the intervals come from: sentences.
pub(crate) fn about_work(scaling: &Scaling) -> Vec<String> {
    let mut all = vec![match scaling.work {
        Work::Epoch { counted: true } => {
            "speed-up: an epoch has as many samples in all runs (within 5 %)".to_owned()
        }
        Work::Epoch { counted: false } => "speed-up: an epoch is taken to be the same work in all \
             runs; its samples were not counted"
            .to_owned(),
        Work::Samples => format!(
            "speed-up: by samples of the data set per second; {}s of these runs do not have equally \
             many",
            scaling.unit.name()
        ),
        Work::Stated(Division::PerRank) => {
            "speed-up: each rank's batch is the same in all runs, so \
             a step of more ranks does more work (--batch rank)"
                .to_owned()
        }
        Work::Stated(Division::Global) => {
            "speed-up: the batch of all ranks together is the same in \
             all runs (--batch global)"
                .to_owned()
        }
        Work::Unknown if scaling.unit == Unit::Epoch => "speed-up: not known: epochs are not the \
             same work, and samples were not counted in all runs, or --batch says that they do not \
             count"
            .to_owned(),
        Work::Unknown => "speed-up: not known, since batches were not counted (no DataLoader was \
             seen in all runs): give --batch rank if each rank's batch is the same in all runs, \
             --batch global if the batch of all ranks together is"
            .to_owned(),
    }];
    all.extend(scaling.other_work().map(|(before, point)| {
        format!(
            "{} {}: {} and {} do not do the same work in {}{}: they are no repetitions",
            printable(&point.strategy),
            point.ranks,
            names(before),
            names(point),
            match scaling.unit {
                Unit::Epoch => "an epoch",
                Unit::Step => "a step",
            },
            amounts(before, point, scaling.unit)
        )
    }));
    let others = scaling.points.iter().filter(|point| !point.is_comparable);
    let others: Vec<String> = others.map(names).collect();
    if !others.is_empty() {
        all.push(format!(
            "no speed-up of {}: its batch is not known to be that of the run with the least ranks, neither of each \
             rank nor of all together, so more differs than the number of ranks",
            others.join(", ")
        ));
    }
    let of = match scaling.unit {
        Unit::Epoch => "between epochs (of four or more, the first is left out)",
        Unit::Step => "between steps (30 parts of a run, without warm-up)",
    };
    let share = percent(scaling.run_to_run.share);
    all.push(match scaling.run_to_run.measured {
        Some(freedom) => format!(
            "intervals: 95 %, by the variation between runs of the same size, {share} ({freedom:.0} \
             degrees of freedom), or within them if that is larger"
        ),
        None => format!(
            "intervals: 95 %, by the variation {of}, and {share} from run to run, which is assumed \
             (--run-to-run): no size has several runs"
        ),
    });
    if scaling
        .points
        .iter()
        .any(|point| point.time_s.error.is_none())
    {
        all.push(match scaling.unit {
            Unit::Epoch => {
                "a time without an interval is of a single epoch: --per step has more to compare"
            }
            Unit::Step => "a time without an interval is of fewer than 6 steps",
        }
        .to_owned());
    }
    let missing = scaling.points.iter().flat_map(|point| &point.runs);
    for run in missing.filter(|run| run.recorded < run.ranks as usize) {
        all.push(format!(
            "{}: {} of {} ranks are recorded",
            run.name, run.recorded, run.ranks
        ));
    }
    all
}

/// Runs of a point, by name.
fn names(point: &Point) -> String {
    let names: Vec<&str> = point.runs.iter().map(|run| run.name.as_str()).collect();
    printable(&names.join(", ")).into_owned()
}

/// How much work two points do, in samples and steps, where both were counted.
fn amounts(one: &Point, other: &Point, unit: Unit) -> String {
    let of = |name: &str, value: fn(&Run) -> Option<f64>| {
        let mean = |point: &Point| mean_of_runs(&point.runs, value);
        let (one, other) = mean(one).zip(mean(other))?;
        let shown = |it: f64| count(it.round() as u64);
        Some(format!("{} and {} {name}", shown(one), shown(other)))
    };
    let all = match unit {
        Unit::Epoch => [
            of("samples", |run| run.samples_an_epoch),
            of("steps", |run| run.steps_an_epoch),
        ],
        Unit::Step => [of("samples", |run| run.samples_a_step), None],
    };
    let all: Vec<String> = all.into_iter().flatten().collect();
    match all.as_slice() {
        [] => String::new(),
        all => format!(" ({})", all.join(", ")),
    }
}

/// What the shares of time are: sentences.
pub(crate) fn about_time(rows: &[PointRow]) -> Vec<String> {
    let mut all = vec![
        "means over ranks; communication is issuing collectives and waiting in them, waits for late \
         ranks included; intervals: 95 %, by the samples of a rank"
            .to_owned(),
    ];
    if rows.iter().any(|row| row.nccl) {
        all.push(NCCL_OVERLAP.to_owned());
    }
    all
}

fn gpu(out: &mut String, scaling: &Scaling, rows: &[PointRow]) {
    line(out, "\nGPU");
    let has_any = |row: &PointRow| row.gpu_utilization.is_some() || row.energy_wh.is_some();
    if !rows.iter().any(has_any) {
        return line(out, "  no utilization and no energy was measured");
    }
    let head = ["utilization", "Wh in all", "Wh/epoch"];
    table(out, &head, rows, gpu_cells);
    for text in about_gpu(scaling, rows) {
        sentence(out, "  ", &text);
    }
}

/// Utilization, energy in all, energy of an epoch.
pub(crate) fn gpu_cells(row: &PointRow) -> Vec<String> {
    let without = "not measured".to_owned();
    vec![
        row.gpu_utilization
            .map_or(without.clone(), |it| share_within(&it)),
        row.energy_wh
            .map_or(without, |it| with_interval(&it, precise)),
        row.energy_wh_an_epoch
            .map_or(String::new(), |it| with_interval(&it, precise)),
    ]
}

/// What energies are of: sentences.
pub(crate) fn about_gpu(scaling: &Scaling, rows: &[PointRow]) -> Vec<String> {
    let mut all = vec![
        "utilization: mean over devices in steps (NVML: time with a kernel); energy: of a run's \
         devices during its recording, by their counters, whoever used them"
            .to_owned(),
    ];
    for row in rows
        .iter()
        .filter(|row| row.energy_wh.is_some() && row.ranks_without_energy > 0)
    {
        all.push(format!(
            "{} {}: {} without an energy: it is that of {} alone",
            row.strategy,
            row.ranks,
            counted(row.ranks_without_energy as u64, "rank"),
            counted(row.energy_devices as u64, "device")
        ));
    }
    let has_epochs = rows.iter().any(|row| row.energy_wh_an_epoch.is_some());
    if scaling.unit == Unit::Step && has_epochs {
        all.push("energy of an epoch: of runs with complete epochs".to_owned());
    }
    all
}

/// The models, and what their predictions are worth: sentences.
pub(crate) fn models(scaling: &Scaling) -> Vec<String> {
    let rows = fits(scaling);
    let predicts = rows.iter().any(|row| row.speed_up.is_some());
    let texts = rows.iter().map(|row| model(scaling, row));
    texts
        .chain(predicts.then(|| PREDICTIONS.to_owned()))
        .collect()
}

const PREDICTIONS: &str = "a prediction's interval (95 %) is that of a new run if the \
     model is right beyond what was measured; that it is right there is not known";

/// A model, in words.
fn model(scaling: &Scaling, row: &FitRow) -> String {
    let name = match row.model {
        "amdahl" => "Amdahl's law",
        _ => "ring all-reduce",
    };
    let head = format!("{}, {name}", row.strategy);
    if let Some(why) = &row.why_not {
        return format!("{head}: not shown: {why}");
    }
    let (Some(part), Some(ranks), Some(speed_up)) = (row.part, row.ranks, row.speed_up) else {
        return head;
    };
    let part = with_interval(&part, share);
    let part = match row.model {
        "amdahl" => format!("serial part {part}"),
        _ => format!("communication tends to {part} of the computation of the least ranks"),
    };
    let time = row.time_s.map_or(String::new(), |time| {
        format!(
            ", {} s per {}",
            with_interval(&time, precise),
            scaling.unit.name()
        )
    });
    let efficiency = row.efficiency.map_or(String::new(), |it| {
        format!(", efficiency {}", with_interval(&it, share))
    });
    format!(
        "{head}: {part}; with {ranks} ranks {} x{efficiency}{time}",
        with_interval(&speed_up, two)
    )
}
