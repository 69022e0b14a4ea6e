//! Runs on different numbers of ranks: what is compared, and that fits of planted curves hold the
//! truth as often as they say.

use proptest::prelude::*;
use std::path::Path;
use torchspy::analysis::scaling::fit::{Division, Fit, Measured, Model, NoFit, fit};
use torchspy::analysis::scaling::mean::{Estimate, Mean};
use torchspy::analysis::scaling::run::{Energy, Run};
use torchspy::analysis::scaling::{Options, Scaling, Unit, Work, scaling};
use torchspy::report::csv;
use torchspy::report::json::scaling::{render_scaling_json, scaling_report};
use torchspy::report::scaling_page;
use torchspy::report::table::Sheet;
use torchspy::report::tables::scaling::{PointRow, fit_columns, fits, point_columns, points};
use torchspy::report::text::scaling::render_scaling;

/// xorshift64, and sums of twelve of its numbers for a normal one.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next()).sum::<f64>() - 6.0
    }
}

/// Seconds for the same work.
fn truth(model: Model, division: Division, part: f64, ranks: f64) -> f64 {
    match model {
        Model::Amdahl => 10.0 * (part + (1.0 - part) / ranks),
        Model::Ring => {
            let steps = division.steps(ranks, 1.0);
            10.0 / ranks + 10.0 * part * steps * 2.0 * (ranks - 1.0) / ranks
        }
    }
}

/// What a run of this many ranks measures: parts of it vary by 5 %, and it differs from others by
/// `run_to_run`.
fn measure(random: &mut Random, truth_s: f64, run_to_run: f64) -> Mean {
    let own = truth_s * (1.0 + run_to_run * random.normal());
    let parts: Vec<f64> = (0..30)
        .map(|_| own * (1.0 + 0.05 * random.normal()))
        .collect();
    Mean::of_parts(parts.iter().sum::<f64>() / 30.0, &parts).with(run_to_run * own, f64::MAX)
}

fn measured(ranks: f64, time: Mean) -> Measured {
    Measured {
        ranks,
        time_s: time.value,
        error_s: time.error.unwrap(),
        freedom: time.freedom,
    }
}

const RUN_TO_RUN: f64 = 0.01;

/// Of 1,000 experiments on `sizes`: fits that are shown, and how many of these hold the truth: the
/// part, the time of a new run of twice the ranks, and its speed-up.
fn coverage(model: Model, division: Division, part: f64, sizes: &[f64]) -> (f64, [f64; 3]) {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let (mut shown, mut held) = (0.0, [0.0; 3]);
    let curve = |ranks: f64| truth(model, division, part, ranks);
    for _ in 0..1000 {
        let points: Vec<Measured> = sizes
            .iter()
            .map(|&ranks| measured(ranks, measure(&mut random, curve(ranks), RUN_TO_RUN)))
            .collect();
        let Ok(fit) = fit(model, &points, Some(division), RUN_TO_RUN) else {
            continue;
        };
        shown += 1.0;
        let ranks = fit.predicted.ranks;
        let new_s = curve(ranks) * (1.0 + RUN_TO_RUN * random.normal());
        let whole = match model {
            Model::Amdahl => part,
            // What it tends to, of the computation of one rank.
            Model::Ring => 2.0 * part,
        };
        let checks = [
            (&fit.part, whole),
            (&fit.predicted.time_s, new_s),
            (&fit.predicted.speed_up, curve(1.0) / new_s),
        ];
        for (held, (estimate, truth)) in held.iter_mut().zip(checks) {
            let (low, high) = (estimate.low.unwrap(), estimate.high.unwrap());
            *held += f64::from(u8::from(low <= truth && truth <= high));
        }
    }
    (shown / 1000.0, held.map(|held| held / shown))
}

#[test]
fn intervals_of_fits_hold_the_planted_curve() {
    for (model, division, part) in [
        (Model::Amdahl, Division::PerRank, 0.0),
        (Model::Amdahl, Division::PerRank, 0.03),
        (Model::Amdahl, Division::PerRank, 0.4),
        (Model::Ring, Division::PerRank, 0.1),
        (Model::Ring, Division::Global, 0.02),
    ] {
        for sizes in [&[1.0, 2.0, 4.0][..], &[1.0, 2.0, 4.0, 8.0, 16.0]] {
            let (shown, held) = coverage(model, division, part, sizes);
            let what = format!("{model:?} {division:?} {part} {sizes:?}: {shown} {held:?}");
            assert!(shown > 0.95, "{what}");
            assert!(held.iter().all(|&held| held >= 0.93), "{what}");
            // They are no wider than needed, where no end is cut at what is possible.
            assert!(part == 0.0 || held[1] <= 0.995, "{what}");
        }
    }
}

#[test]
fn a_curve_of_another_kind_is_not_fitted() {
    let sizes = [1.0, 2.0, 4.0, 8.0, 16.0];
    let fitted = |model, curve: fn(f64) -> f64| {
        let mut random = Random(7);
        let points = sizes.map(|n| measured(n, measure(&mut random, curve(n), RUN_TO_RUN)));
        fit(model, &points, Some(Division::Global), RUN_TO_RUN)
    };
    for model in [Model::Amdahl, Model::Ring] {
        // Twice as fast up to four ranks, no faster after that.
        let misfit = fitted(model, |n| 10.0 / n.min(4.0));
        assert!(matches!(misfit, Err(NoFit::Misfit(_))), "{misfit:?}");
        assert!(fitted(model, |n| 10.0 * n).is_err());
        assert!(matches!(
            fitted(model, |n| 10.0 / n.powf(1.5)),
            Err(NoFit::TooFast)
        ));
    }
    let point = |ranks| Measured {
        ranks,
        time_s: 1.0 / ranks,
        error_s: 0.01,
        freedom: 20.0,
    };
    let few = [point(1.0), point(2.0), point(2.0)];
    assert_eq!(fit(Model::Amdahl, &few, None, 0.01), Err(NoFit::TooFew(2)));
    let all = [point(1.0), point(2.0), point(4.0)];
    assert!(fit(Model::Amdahl, &all, None, 0.01).is_ok());
    assert_eq!(fit(Model::Ring, &all, None, 0.01), Err(NoFit::NoDivision));
    let unknown = [
        point(1.0),
        point(2.0),
        Measured {
            error_s: 0.0,
            ..point(4.0)
        },
    ];
    assert_eq!(
        fit(Model::Amdahl, &unknown, None, 0.01),
        Err(NoFit::NoError)
    );
}

fn exact(model: Model, division: Division, part: f64, scale: f64) -> Fit {
    let points = [1.0, 2.0, 4.0, 8.0].map(|ranks| Measured {
        ranks,
        time_s: scale * truth(model, division, part, ranks),
        error_s: scale * 1e-4,
        freedom: 30.0,
    });
    fit(model, &points, Some(division), 0.0).unwrap()
}

proptest! {
    #[test]
    fn points_without_noise_give_the_curve_in_any_unit(
        part in 0.0..0.45_f64,
        scale in 1e-4..1e4_f64,
        ring in any::<bool>(),
        global in any::<bool>(),
    ) {
        let model = if ring { Model::Ring } else { Model::Amdahl };
        let division = if global { Division::Global } else { Division::PerRank };
        let fit = exact(model, division, part, scale);
        for ranks in [1.0, 3.0, 16.0] {
            let expected = scale * truth(model, division, part, ranks);
            prop_assert!((fit.time_s(ranks) / expected - 1.0).abs() < 1e-6);
        }
        let speed_up = fit.predicted.speed_up;
        let (low, high) = (speed_up.low.unwrap(), speed_up.high.unwrap());
        prop_assert!(low <= speed_up.value && speed_up.value <= high);
        prop_assert!((0.0..=1.0 + 1e-9).contains(&(speed_up.value / 16.0)));
        prop_assert!(fit.part.low.unwrap() >= 0.0);
    }
}

/// A run with steps and epochs of these lengths.
fn run(name: &str, ranks: u32, strategy: Option<&str>, step_s: f64, epoch_s: Option<f64>) -> Run {
    let parts: Vec<f64> = (0..30)
        .map(|at| step_s * (1.0 + 0.01 * f64::from(at % 2)))
        .collect();
    let steps_an_epoch = epoch_s.map(|epoch_s| epoch_s / step_s);
    Run {
        name: name.to_owned(),
        ranks,
        recorded: ranks as usize,
        strategy: strategy.map(str::to_owned),
        epoch_s: epoch_s.and_then(|epoch_s| Mean::of(&[epoch_s * 0.99, epoch_s, epoch_s * 1.01])),
        epochs: 3,
        step_s: Some(Mean::of_parts(parts.iter().sum::<f64>() / 30.0, &parts)),
        steps: 300,
        steps_an_epoch,
        samples_an_epoch: None,
        samples_a_step: None,
        energy: None,
        utilization: None,
        computation: Some(Estimate::within(0.7, 0.68, 0.72)),
        communication: Some(Estimate::within(0.2, 0.19, 0.21)),
        communication_of_both: Some(Estimate::within(0.22, 0.21, 0.24)),
        nccl: false,
    }
}

fn compared(runs: &[Run], options: Options) -> Scaling {
    scaling(
        runs.to_vec(),
        &Options {
            run_to_run: 0.01,
            ..options
        },
    )
}

/// DDP on 1 to 8 ranks by Amdahl's law with a serial part of 10 %, each rank with the same batch.
fn amdahl() -> Vec<Run> {
    let sizes = [1_u32, 2, 4, 8];
    let of = |ranks: u32| {
        let n = f64::from(ranks);
        let epoch_s = 100.0 * (0.1 + 0.9 / n);
        // 1,000 steps of one rank.
        let steps = 1000.0 / n;
        let own = run(
            &format!("runs/{ranks}"),
            ranks,
            Some("DDP"),
            epoch_s / steps,
            Some(epoch_s),
        );
        Run {
            samples_an_epoch: Some(64_000.0),
            samples_a_step: Some(64.0 * n),
            energy: Some(Energy {
                devices: ranks as usize,
                ranks_without: 0,
                joules: 3600.0 * n,
                epoch: Mean::of(&[350.0 * n, 360.0 * n, 370.0 * n]),
            }),
            utilization: Some(Mean {
                value: 0.9 - 0.05 * n,
                error: Some(0.01),
                freedom: 20.0,
            }),
            ..own
        }
    };
    sizes.map(of).to_vec()
}

#[test]
fn epochs_are_compared_and_a_model_is_shown() {
    let scaling = compared(&amdahl(), Options::default());
    assert_eq!(scaling.unit, Unit::Epoch);
    assert_eq!(scaling.work, Work::Epoch { counted: true });
    let rows = points(&scaling);
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
    for (row, expected) in rows
        .iter()
        .zip([1.0, 100.0 / 55.0, 100.0 / 32.5, 100.0 / 21.25])
    {
        let speed_up = row.speed_up.unwrap();
        assert!(close(speed_up.value, expected), "{speed_up:?}");
        let efficiency = row.efficiency.unwrap().value;
        assert!(close(efficiency, expected / f64::from(row.ranks)));
        assert!(close(row.relative_time.value, 1.0 / expected));
        assert!(close(row.energy_wh.unwrap().value, f64::from(row.ranks)));
        assert!(close(
            row.energy_wh_an_epoch.unwrap().value,
            0.1 * f64::from(row.ranks)
        ));
    }
    assert_eq!(
        (
            rows[0].speed_up.unwrap().low,
            rows[0].efficiency.unwrap().value
        ),
        (None, 1.0)
    );
    let fits = fits(&scaling);
    let law = fits.iter().find(|row| row.model == "amdahl").unwrap();
    assert_eq!((law.ranks, law.same_batch), (Some(16), Some("rank")));
    let (part, time) = (law.part.unwrap(), law.time_s.unwrap());
    assert!(
        close(part.value, 0.1) && part.low.unwrap() < 0.1,
        "{part:?}"
    );
    assert!(close(time.value, 15.625), "{time:?}");

    // The same by steps: more ranks do more in a step, and the answer is the same.
    let by_steps = compared(
        &amdahl(),
        Options {
            per: Some(Unit::Step),
            ..Options::default()
        },
    );
    assert_eq!(by_steps.work, Work::Samples);
    for (a, b) in points(&by_steps).iter().zip(&rows) {
        assert!(close(a.speed_up.unwrap().value, b.speed_up.unwrap().value));
    }
    let steps = torchspy::report::tables::scaling::fits(&by_steps);
    let law = steps.iter().find(|row| row.model == "amdahl").unwrap();
    // 1.56 s for the work of a thousand steps, of which 16 ranks do 62.5.
    assert!(
        close(law.time_s.unwrap().value, 15.625 / 62.5 * 1.005),
        "{law:?}"
    );
}

#[test]
fn what_is_not_known_is_not_shown() {
    let runs = [
        run("a", 1, None, 0.1, None),
        run("b", 2, Some("DDP"), 0.11, Some(5.0)),
        run("c", 4, Some("DDP"), 0.12, None),
        run("d", 4, Some("FSDP"), 0.10, None),
        run("e", 8, None, 0.10, None),
    ];
    let scaling = compared(&runs, Options::default());
    assert_eq!((scaling.unit, scaling.work), (Unit::Step, Work::Unknown));
    assert!(points(&scaling).iter().all(|row| row.speed_up.is_none()));
    let text = render_scaling(&scaling);
    assert!(text.contains("give --batch rank"), "{text}");
    assert!(fits(&scaling).iter().all(|row| row.why_not.is_some()));

    let batch = |batch| Options {
        batch: Some(batch),
        ..Options::default()
    };
    let speed_up = |scaling: &Scaling, name: &str| {
        let points = scaling.points.iter();
        let mut of = points.filter(|point| point.runs.iter().any(|run| run.name == name));
        of.next().unwrap().speed_up.unwrap().value
    };
    // A run of one rank without a strategy is what all are compared with.
    let per_rank = compared(&runs, batch(Division::PerRank));
    assert!((speed_up(&per_rank, "c") - 4.0 * 0.1 / 0.12).abs() < 1e-6);
    assert!((speed_up(&per_rank, "d") - 4.0).abs() < 1e-6);
    let global = compared(&runs, batch(Division::Global));
    assert!((speed_up(&global, "c") - 0.1 / 0.12).abs() < 1e-6);
    let strategies: Vec<&str> = per_rank
        .points
        .iter()
        .map(|it| it.strategy.as_str())
        .collect();
    assert_eq!(strategies, ["none", "DDP", "DDP", "FSDP", "unknown"]);

    // Epochs that hold more samples with more ranks: each rank reads all of the data.
    let unshared = [1_u32, 2, 4].map(|ranks| Run {
        samples_an_epoch: Some(1000.0 * f64::from(ranks)),
        ..run(&format!("{ranks}"), ranks, Some("DDP"), 0.1, Some(10.0))
    });
    let scaling = compared(&unshared, Options::default());
    assert_eq!((scaling.unit, scaling.work), (Unit::Epoch, Work::Samples));
    assert!((speed_up(&scaling, "4") - 4.0).abs() < 1e-6);

    let none = Run {
        step_s: None,
        ..run("x", 2, None, 0.1, None)
    };
    let scaling = compared(&[none], Options::default());
    assert!(scaling.points.is_empty());
    assert_eq!(
        scaling.left_out[0].1,
        "fewer than two steps were seen in it"
    );
}

#[test]
fn repeated_runs_show_how_much_they_scatter() {
    let mut runs = amdahl();
    for (at, factor) in [0.9, 1.1, 1.05].into_iter().enumerate() {
        let mut again = runs[1].clone();
        let epoch_s = again.epoch_s.unwrap().value * factor;
        again.epoch_s = Mean::of(&[epoch_s, epoch_s * 1.001]);
        again.name = format!("again/{at}");
        runs.push(again);
    }
    let scaling = compared(&runs, Options::default());
    let measured = scaling.run_to_run;
    assert_eq!(measured.measured, Some(3.0));
    assert!((0.05..0.12).contains(&measured.share), "{measured:?}");
    assert_eq!(scaling.points.len(), 4);
    assert_eq!(scaling.points[1].runs.len(), 4);
    // The scatter is that of runs that are not repeated, too.
    let wide = points(&scaling)[3].time_s;
    let before = points(&compared(&amdahl(), Options::default()))[3].time_s;
    assert!(wide.high.unwrap() - wide.value > 3.0 * (before.high.unwrap() - before.value));
    assert!(render_scaling(&scaling).contains("between runs of the same size"));
}

#[test]
fn runs_of_other_work_are_no_repetitions() {
    let of = |name: &str, ranks, samples, epoch_s| Run {
        samples_an_epoch: samples,
        samples_a_step: Some(512.0),
        ..run(name, ranks, Some("DDP"), 0.1, Some(epoch_s))
    };
    let even = of("even", 4, Some(25_600.0), 5.0);
    let again = of("again", 4, Some(25_000.0), 5.1);
    let slow = of("slow", 4, Some(12_800.0), 7.0);
    let scaling = compared(&[even, slow, again], Options::default());
    assert_eq!(scaling.work, Work::Samples);
    let names: Vec<Vec<String>> = points(&scaling).into_iter().map(|row| row.runs).collect();
    assert_eq!(names, [vec!["slow"], vec!["again", "even"]]);
    // Between the two that do the same.
    let measured = scaling.run_to_run;
    assert!(
        measured.measured == Some(1.0) && measured.share < 0.03,
        "{measured:?}"
    );
    let speed_up = points(&scaling)[1].speed_up.unwrap().value;
    assert!(
        (speed_up - 7.0 / 5.05 * 25_300.0 / 12_800.0).abs() < 1e-6,
        "{speed_up}"
    );
    let text = render_scaling(&scaling);
    assert!(
        text.contains("DDP 4: slow and again, even do not do the same work in an epoch (12,800"),
        "{text}"
    );
    assert!(text.contains("12,800") && text.contains("25,300"), "{text}");

    // Where another one was not counted, works are known to differ, and not by how much.
    let runs = [
        of("a", 4, Some(25_600.0), 5.0),
        of("b", 4, Some(12_800.0), 5.0),
        of("c", 2, None, 9.0),
    ];
    assert_eq!(compared(&runs, Options::default()).work, Work::Unknown);
}

/// A step or epoch with twice the batch is not faster by more ranks.
#[test]
fn runs_of_one_size_with_other_batches_have_no_speed_up() {
    let of = |name: &str, ranks: u32, batch: Option<f64>, steps, epoch_s| Run {
        samples_an_epoch: batch.map(|_| 12_800.0),
        samples_a_step: batch.map(|batch| batch * f64::from(ranks)),
        steps_an_epoch: Some(steps),
        ..run(name, ranks, Some("DDP"), epoch_s / steps, Some(epoch_s))
    };
    let runs = |counts: bool| {
        let batch = |batch: f64| counts.then_some(batch);
        [
            of("a", 1, batch(64.0), 200.0, 20.0),
            of("b", 1, batch(128.0), 100.0, 10.2),
            of("c", 2, batch(64.0), 100.0, 11.0),
            of("d", 2, batch(128.0), 50.0, 6.0),
        ]
    };
    // Of epochs, b comes first, with fewer steps: c has its batch, of all ranks together.
    for (per, expected, others) in [
        (Unit::Epoch, vec!["b", "d", "c"], "a"),
        (Unit::Step, vec!["a", "c"], "b, d"),
    ] {
        let options = Options {
            per: Some(per),
            ..Options::default()
        };
        let scaling = compared(&runs(true), options);
        let rows = points(&scaling);
        let known = |row: &&PointRow| row.speed_up.is_some() && row.efficiency.is_some();
        let known: Vec<&str> = rows.iter().filter(known).map(|row| &*row.runs[0]).collect();
        assert_eq!(known, expected, "{per:?}");
        let text = render_scaling(&scaling);
        let said = format!("no speed-up of {others}: ");
        assert!(text.contains(&said), "{text}");
    }
    // Steps of an epoch are known where samples are not.
    let scaling = compared(&runs(false), Options::default());
    assert_eq!((scaling.points.len(), scaling.work), (4, Work::Unknown));
    assert!(scaling.points.iter().all(|point| point.speed_up.is_none()));
    let text = render_scaling(&scaling);
    let said = "DDP 1: b and a do not do the same work in an epoch (100 and 200 steps)";
    assert!(text.contains(said), "{text}");
}

#[test]
fn all_forms_say_the_same() {
    let mut runs = amdahl();
    runs.push(Run {
        nccl: true,
        communication: None,
        communication_of_both: None,
        ..run("nccl <b>&", 4, Some("FSDP"), 0.2, Some(40.0))
    });
    let scaling = compared(&runs, Options::default());
    insta::assert_snapshot!("scaling", render_scaling(&scaling));
    let json: serde_json::Value =
        serde_json::from_str(&render_scaling_json(&scaling).unwrap()).unwrap();
    assert_eq!(json["points"].as_array().unwrap().len(), 5);
    assert_eq!(json["unit"], "epoch");
    assert_eq!(scaling_report(&scaling).fits.len(), 4);
    let table = csv::render(&Sheet::new(&point_columns(), &points(&scaling)));
    assert_eq!(table.lines().count(), 6, "{table}");
    assert!(table.starts_with("strategy,ranks,runs,recorded,time_s,time_s_low,time_s_high,"));
    let columns = |line: &str| line.matches(',').count();
    assert!(
        table
            .lines()
            .all(|line| columns(line) == columns(table.lines().next().unwrap()))
    );
    let table = csv::render(&Sheet::new(&fit_columns(), &fits(&scaling)));
    assert_eq!(table.lines().count(), 5, "{table}");
    let page = scaling_page::render(&scaling);
    // To be looked at.
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scaling.html");
    std::fs::write(path, &page).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script"), "{page}");
    assert!(
        page.contains("nccl &lt;b&gt;&amp;") && !page.contains("NaN"),
        "{page}"
    );
    assert!(page.contains("Amdahl&#39;s law"), "{page}");
    // Both plots have the sizes that were measured, and the one that is predicted.
    let ticks = |size: u32| page.matches(&format!("\"middle\">{size}</text>")).count();
    let sizes = (1..=16).filter(|&size| ticks(size) == 2);
    assert_eq!(sizes.collect::<Vec<_>>(), [1, 2, 4, 8, 16]);
    assert_eq!((1..=16).map(ticks).sum::<usize>(), 10, "{page}");
}

#[test]
fn energy_in_all_has_an_interval_where_runs_are_repeated() {
    let mut runs = amdahl();
    let mut again = runs[0].clone();
    again.name = "runs/1b".to_owned();
    again.energy.as_mut().unwrap().joules *= 2.0;
    runs.push(again);
    let rows = points(&compared(&runs, Options::default()));
    let repeated = rows[0].energy_wh.unwrap();
    // 1 and 2 Wh: a standard error of 0.5 Wh by 12.706, the t of one degree of freedom.
    assert_eq!((repeated.value, repeated.low), (1.5, Some(0.0)));
    assert!(
        (repeated.high.unwrap() - 7.853).abs() < 0.01,
        "{repeated:?}"
    );
    assert_eq!(rows[1].energy_wh.unwrap().high, None);
}
