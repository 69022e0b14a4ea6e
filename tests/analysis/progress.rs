//! Steps, epochs and their times from readings of counters; and what is said of a recording without
//! them.

use crate::analysis_builder::*;
use crate::track_builder::{put, track};
use serde_json::Value;
use torchspy::analysis::analyze;
use torchspy::analysis::diff;
use torchspy::analysis::diff::steps::units_of;
use torchspy::analysis::progress::running::RunningSteps;
use torchspy::analysis::progress::window::{StepRange, WindowError, restrict, restrict_to};
use torchspy::analysis::progress::{Progress, StepUnit, steps};
use torchspy::model::category::Phase;
use torchspy::model::ids::{CounterId, ProcessId, ThreadId};
use torchspy::model::profile::Profile;
use torchspy::model::progress::{Condition, CounterInfo, CounterKind, ProgressPoint, facts};
use torchspy::model::sample::Capture;
use torchspy::model::track::TrackKind;
use torchspy::report::csv;
use torchspy::report::json::render_json;
use torchspy::report::table::Sheet;
use torchspy::report::tables::steps as table;
use torchspy::report::text::diff::render_diff;
use torchspy::report::text::{Detail, TextOptions, render_summary};

/// A training run whose counters are read in the middle of every tick.
struct Run {
    builder: Builder,
    now_ns: u64,
    /// Value, and when and with which value it was last read.
    counters: Vec<(u64, Option<(u64, u64)>)>,
}

impl Run {
    fn new() -> Self {
        Self {
            builder: Builder::trainer(),
            now_ns: 0,
            counters: Vec::new(),
        }
    }

    fn counter(&mut self, kind: CounterKind, class: &str, said: &[(&str, &str)]) -> usize {
        let said = said.iter();
        self.builder.counters.push(CounterInfo {
            process: ProcessId(0),
            number: self.counters.len() as u32,
            kind,
            class: class.to_owned(),
            file: "/home/u/train.py".to_owned(),
            line: 40,
            facts: said
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        });
        self.counters.push((0, None));
        self.counters.len() - 1
    }

    fn loader(&mut self, dataset: &str) -> usize {
        let said = [
            (facts::BATCH_SIZE, "8"),
            (facts::WORKERS, "2"),
            (facts::DATASET, dataset),
        ];
        self.counter(
            CounterKind::Batches,
            "_MultiProcessingDataLoaderIter",
            &said,
        )
    }

    fn optimizer(&mut self) -> usize {
        let said = [(facts::PARAMETER_DTYPE, "float32")];
        self.counter(CounterKind::ParameterVersion, "AdamW", &said)
    }

    /// Ticks of the training thread, each with a reading of the counters in `read`.
    fn ticks(&mut self, ticks: u64, frames: &[F], read: &[usize]) {
        for _ in 0..ticks {
            self.builder.ticks(0, 1, S::Running, frames);
            let time_ns = self.now_ns + TICK_NS / 2;
            self.now_ns += TICK_NS;
            for &counter in read {
                let (value, last) = &mut self.counters[counter];
                if last.is_none_or(|(known, _)| known != *value) {
                    self.builder.sideband.points.push(ProgressPoint {
                        counter: CounterId::from_index(counter),
                        thread: ThreadId(0),
                        before_ns: last.map_or(time_ns, |(_, read_ns)| read_ns),
                        time_ns,
                        value: *value,
                    });
                }
                *last = Some((*value, time_ns));
            }
        }
    }

    fn add(&mut self, counter: usize, count: u64) {
        self.counters[counter].0 += count;
    }

    /// A batch, and a step of `changes` to the parameter if `steps`.
    fn batch(&mut self, loader: usize, optimizer: usize, steps: bool, changes: u64) {
        let read = [loader, optimizer];
        self.ticks(2, &input(), &read);
        self.add(loader, 1);
        self.ticks(6, &forward(), &read);
        self.ticks(8, &backward(), &read);
        if steps {
            // The first of two changes is seen on its own.
            self.add(optimizer, changes / 2);
            self.ticks(1, &update(), &read);
            self.add(optimizer, changes - changes / 2);
            self.ticks(1, &update(), &read);
        }
    }

    fn profile(self) -> Profile {
        self.builder.profile()
    }
}

fn script(more: &[F]) -> Vec<F> {
    let mut frames = vec![user("<module>", 90), user("train", 41)];
    frames.extend_from_slice(more);
    frames
}

fn input() -> Vec<F> {
    script(&[lib(
        "torch/utils/data/dataloader.py",
        "_BaseDataLoaderIter.__next__",
    )])
}

fn forward() -> Vec<F> {
    script(&[lib("torch/nn/modules/module.py", "Module._call_impl")])
}

fn backward() -> Vec<F> {
    script(&[lib("torch/_tensor.py", "Tensor.backward")])
}

fn update() -> Vec<F> {
    script(&[lib(
        "torch/optim/optimizer.py",
        "Optimizer.profile_hook_step.<locals>.wrapper",
    )])
}

/// Two epochs of 12 steps, and an evaluation of 5 batches after each. The counters are found in the
/// third batch.
fn two_epochs() -> Run {
    two_epochs_with(5)
}

/// The same with so many batches in each evaluation.
fn two_epochs_with(tested: u64) -> Run {
    let mut run = Run::new();
    let optimizer = run.optimizer();
    for epoch in 0..2 {
        let train = run.loader("Photos");
        if epoch == 0 {
            run.add(train, 2);
            run.add(optimizer, 7 + 2 * 2);
        }
        for _ in 0..if epoch == 0 { 10 } else { 12 } {
            run.batch(train, optimizer, true, 2);
        }
        let test = run.loader("Tests");
        for _ in 0..tested {
            run.ticks(2, &input(), &[test, optimizer]);
            run.add(test, 1);
            run.ticks(3, &forward(), &[test, optimizer]);
        }
    }
    run
}

fn progress(profile: &Profile) -> Progress {
    analyze(profile)
        .primary()
        .unwrap()
        .progress
        .clone()
        .unwrap()
}

fn json(profile: &Profile) -> Value {
    serde_json::from_str(&render_json(profile, &analyze(profile)).unwrap()).unwrap()
}

/// As the agent takes it: part by part, each with the one before it.
#[test]
fn steps_of_a_run_that_goes_on_are_counted_once() {
    const STEPS: u64 = 60;
    let mut run = Run::new();
    let (optimizer, loader) = (run.optimizer(), run.loader("Photos"));
    for _ in 0..STEPS {
        run.batch(loader, optimizer, true, 2);
    }
    let profile = run.profile();
    let all_ns = profile.end_ns - profile.start_ns;
    // A step lasts 18 ticks.
    for ticks in [7, 50, 333] {
        let part_ns = ticks * TICK_NS;
        let mut running = RunningSteps::default();
        let mut counted = 0;
        for end_ns in (1..=all_ns.div_ceil(part_ns)).map(|part| part * part_ns) {
            let from_ns = match running.is_counting() {
                true => end_ns.saturating_sub(2 * part_ns),
                false => 0,
            };
            let mut shown = profile.clone();
            restrict_to(&mut shown, from_ns, end_ns).unwrap();
            for ended in running.add(&shown, ProcessId(0)) {
                counted += ended.count;
                let is_step = |ns: u64| ns.abs_diff(18 * TICK_NS) <= 2 * TICK_NS;
                assert!(ended.each_ns.is_none_or(is_step), "{ended:?}");
            }
        }
        assert_eq!(counted, STEPS, "{ticks}");
    }
}

#[test]
fn steps_epochs_and_evaluation_are_told_apart() {
    let profile = two_epochs().profile();
    let progress = progress(&profile);
    assert_eq!(progress.unit, StepUnit::Optimizer);
    assert_eq!(progress.source, Some(CounterKind::ParameterVersion));
    // Two of them before the counters were found.
    assert_eq!(progress.steps, 24, "{progress:?}");
    assert_eq!(progress.epochs, Some(2));
    assert_eq!(progress.batches, 24);
    assert_eq!(progress.batches_per_step, Some(1));
    assert_eq!(progress.evaluation.passes, 2);
    assert_eq!(progress.evaluation.batches, 10);
    // From the first reading of the loader to the end of the last forward.
    assert_eq!(progress.evaluation.ns, 2 * 25 * TICK_NS - TICK_NS);
    let times = progress.times.as_ref().unwrap();
    let spread = times.spread.unwrap();
    assert_eq!(spread.p50_ns, 18 * TICK_NS);
    assert_eq!(spread.max_ns, 18 * TICK_NS, "evaluation is no step");
    assert!(spread.sd_ns < 1.0, "{spread:?}");
    // 8 samples in a step of 180 ms.
    assert!((progress.samples_per_s().unwrap() - 8.0 / 0.18).abs() < 0.1);
    let backward = progress.phases.first().unwrap();
    assert_eq!(backward.phase, Phase::Backward);
    assert!((backward.per_step_ns - 80e6).abs() < 1e6, "{backward:?}");
    // The second one is complete, and how long it lasts with what follows is not known.
    assert_eq!((progress.epochs_complete, progress.epoch_ns.len()), (2, 1));
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    assert!(text.contains("| epochs 2\n"), "{text}");
    // From a step's end to the next step's, the evaluation in one of them.
    let listed = steps(&profile, ProcessId(0));
    assert_eq!(listed.len(), 21);
    assert_eq!((listed[0].number, listed[20].number), (4, 24));
    assert!(
        listed
            .windows(2)
            .all(|pair| pair[0].end_ns == pair[1].start_ns)
    );
}

#[test]
fn a_standstill_at_the_end_is_named_with_its_line() {
    let stopped = |ticks: u64| {
        let mut run = Run::new();
        let (optimizer, loader) = (run.optimizer(), run.loader("Photos"));
        for _ in 0..20 {
            run.batch(loader, optimizer, true, 2);
        }
        let frames = script(&[user("hang", 69), libc("pthread_cond_wait")]);
        run.builder.ticks(0, ticks, S::Futex, &frames);
        let profile = run.profile();
        render_summary(&profile, &analyze(&profile), TextOptions::default())
    };
    // A step lasts 180 ms: 20 of them are less than the least time of 10 s.
    let text = stopped(1100);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = "STILL no step ended in the last 11.0 s: the training thread was at train.py:69 for 100 % of it (gil); \
                if it hangs, torchspy dump --pid";
    assert!(words.contains(said), "{text}");
    assert!(!stopped(900).contains("STILL"));
}

/// After an attach in the midst of an epoch, the next one is complete, however soon it comes.
#[test]
fn an_epoch_that_began_before_the_recording_is_one_in_part() {
    let mut run = Run::new();
    let optimizer = run.optimizer();
    run.add(optimizer, 7 + 2 * 90);
    for epoch in 0..4 {
        let train = run.loader("Photos");
        if epoch == 0 {
            run.add(train, 8);
        }
        for _ in 0..[4, 12, 12, 5][epoch] {
            run.batch(train, optimizer, true, 2);
        }
    }
    let mut profile = run.profile();
    profile.run.launched = false;
    let progress = progress(&profile);
    assert_eq!((progress.epochs, progress.epochs_before), (Some(4), 1));
    assert_eq!(progress.epoch_ns, [12 * 18 * TICK_NS; 2]);
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    assert!(text.contains("epochs 2 complete, 2 in part"), "{text}");
}

/// The step after an evaluation begins where it ends, in a comparison: a longer evaluation makes no
/// step slower.
#[test]
fn a_comparison_of_steps_has_no_evaluation_in_them() {
    let (a, b) = (two_epochs_with(5).profile(), two_epochs_with(40).profile());
    let run = |profile| {
        let (units, evaluation) = units_of(profile, ProcessId(0));
        diff::Run {
            name: "x.tspy".to_owned(),
            profile,
            process: ProcessId(0),
            units,
            evaluation,
        }
    };
    let diff = diff::compare(&[run(&a)], &[run(&b)], &diff::Options::default()).unwrap();
    let step = diff.step.as_ref().unwrap();
    assert_eq!(step.verdict, diff::Verdict::Noise, "{step:?}");
    let differing = diff.beyond_noise();
    assert!(differing.is_empty(), "{differing:?}");
    // The evaluation after the last step is before no other.
    assert_eq!(diff.b[0].evaluation.unwrap().passes, 1);
    // Of 25 and 200 ticks, seen until the start of the last.
    let text = render_diff(&diff, 10);
    let said = "EVALUATION between steps, part of none: A 1 pass of 0.3 s, B 1 pass of 2.0 s";
    assert!(text.contains(said), "{text}");
}

/// A thread that is not stopped runs on between the reading of a counter and that of its frames:
/// the first of a step's two changes is then seen beside frames of what comes after the step.
#[test]
fn readings_of_a_thread_that_ran_on_do_not_double_the_steps() {
    let mut run = Run::new();
    let optimizer = run.optimizer();
    let train = run.loader("Photos");
    let read = [train, optimizer];
    for number in 0..24 {
        run.ticks(2, &input(), &read);
        run.add(train, 1);
        run.ticks(14, &backward(), &read);
        run.add(optimizer, 1);
        if number % 3 == 0 {
            run.ticks(1, &input(), &read);
            run.builder.samples.last_mut().unwrap().capture = Capture::Unstopped;
        }
        run.add(optimizer, 1);
        run.ticks(1, &update(), &read);
    }
    let progress = progress(&run.profile());
    assert_eq!(progress.source, Some(CounterKind::ParameterVersion));
    assert_eq!((progress.steps, progress.batches), (24, 24), "{progress:?}");
}

/// An evaluation whose first batch is seen in the same reading as the last step before it does not
/// train.
#[test]
fn the_last_step_of_an_epoch_is_not_that_of_the_evaluation_behind_it() {
    let mut run = Run::new();
    let optimizer = run.optimizer();
    for _ in 0..3 {
        let train = run.loader("Photos");
        for number in 1..=12 {
            run.ticks(2, &input(), &[train, optimizer]);
            run.add(train, 1);
            run.ticks(6, &backward(), &[train, optimizer]);
            run.add(optimizer, 1);
            if number < 12 {
                run.ticks(1, &update(), &[train, optimizer]);
            }
        }
        let test = run.loader("Tests");
        for _ in 0..5 {
            run.add(test, 1);
            run.ticks(3, &forward(), &[test, optimizer]);
        }
    }
    let progress = progress(&run.profile());
    assert_eq!((progress.steps, progress.epochs), (36, Some(3)));
    assert_eq!(progress.batches, 36);
    let evaluation = progress.evaluation;
    assert_eq!((evaluation.passes, evaluation.batches), (3, 15));
}

/// Accelerate's loader fetches a batch before it gives away the one before.
#[test]
fn a_batch_that_was_fetched_ahead_is_no_step_that_was_missed() {
    let mut run = Run::new();
    let optimizer = run.optimizer();
    // Filled once.
    run.add(optimizer, 1);
    for _ in 0..3 {
        let train = run.loader("Photos");
        let read = [train, optimizer];
        run.add(train, 1);
        for number in 1..=12 {
            run.ticks(2, &input(), &read);
            run.add(train, u64::from(number < 12));
            run.ticks(6, &forward(), &read);
            run.ticks(8, &backward(), &read);
            run.add(optimizer, 1);
            run.ticks(1, &update(), &read);
        }
        let test = run.loader("Tests");
        for _ in 0..5 {
            run.add(test, 1);
            run.ticks(3, &forward(), &[test, optimizer]);
        }
        run.ticks(1, &script(&[]), &[optimizer]);
    }
    let progress = progress(&run.profile());
    assert_eq!((progress.steps, progress.steps_at_most), (36, None));
    assert_eq!(progress.evaluation.batches, 15);
}

/// On a busy machine the last step of an epoch was read as one that ended amid the evaluation.
#[test]
fn a_step_that_is_seen_late_makes_no_epoch_of_an_evaluation() {
    let mut run = Run::new();
    let optimizer = run.optimizer();
    // Filled once.
    run.add(optimizer, 1);
    for epoch in 0..3 {
        let train = run.loader("Photos");
        for number in 1..=12 {
            run.batch(train, optimizer, number < 12, 1);
        }
        let late = epoch == 1;
        run.add(optimizer, u64::from(!late));
        run.ticks(1, &update(), &[train, optimizer]);
        let test = run.loader("Tests");
        for number in 0..5 {
            run.add(test, 1);
            run.ticks(3, &forward(), &[test, optimizer]);
            run.add(optimizer, u64::from(late && number == 1));
        }
        run.ticks(1, &script(&[]), &[optimizer]);
    }
    let progress = progress(&run.profile());
    assert_eq!((progress.steps, progress.epochs), (36, Some(3)));
    assert_eq!(progress.evaluation.batches, 15);
}

/// A loader that is found in its third batch made the steps that came before it was found, and not
/// the evaluation before.
#[test]
fn steps_before_a_loader_is_found_are_its_own() {
    let mut run = Run::new();
    let optimizer = run.optimizer();
    for epoch in 0..3 {
        let train = run.loader("Photos");
        for number in 1..=12 {
            let found = epoch == 0 || number > 2;
            let read = [optimizer, train];
            let read = if found { &read[..] } else { &read[..1] };
            run.ticks(2, &input(), read);
            run.add(train, 1);
            run.ticks(6, &backward(), read);
            run.add(optimizer, 1);
            run.ticks(1, &update(), read);
        }
        let test = run.loader("Tests");
        for _ in 0..5 {
            run.add(test, 1);
            run.ticks(3, &forward(), &[test, optimizer]);
        }
    }
    let progress = progress(&run.profile());
    assert_eq!((progress.steps, progress.epochs), (36, Some(3)));
    assert_eq!(progress.evaluation.passes, 3);
}

/// A loader that is found between its first step and its second batch made that step, and not the
/// evaluation before.
#[test]
fn a_step_before_the_first_reading_of_a_loader_is_not_that_of_an_evaluation() {
    let mut run = Run::new();
    let optimizer = run.optimizer();
    for epoch in 0..3 {
        let train = run.loader("Photos");
        let read = [optimizer, train];
        for number in 1..=12 {
            let known = if epoch == 0 || number > 1 { 2 } else { 1 };
            run.ticks(2, &input(), &read[..known]);
            run.add(train, 1);
            run.ticks(6, &backward(), &read[..known]);
            run.add(optimizer, 1);
            run.ticks(1, &update(), &read[..known]);
        }
        let test = run.loader("Tests");
        for _ in 0..5 {
            run.add(test, 1);
            run.ticks(3, &forward(), &[test, optimizer]);
        }
    }
    let progress = progress(&run.profile());
    assert_eq!((progress.steps, progress.epochs), (36, Some(3)));
    assert_eq!(progress.batches, 36);
    let evaluation = progress.evaluation;
    assert_eq!((evaluation.passes, evaluation.batches), (3, 15));
}

#[test]
fn batches_are_gathered_into_steps() {
    let mut run = Run::new();
    let (optimizer, loader) = (run.optimizer(), run.loader("Photos"));
    for batch in 1..=40 {
        run.batch(loader, optimizer, batch % 4 == 0, 1);
    }
    let progress = progress(&run.profile());
    assert_eq!((progress.steps, progress.batches), (10, 40));
    assert_eq!(progress.batches_per_step, Some(4));
    assert_eq!(progress.epochs, Some(1));
}

/// The loader of each of three epochs ends before it is read again: its last step was made with
/// batches that nobody saw.
#[test]
fn batches_that_steps_took_unseen_are_told() {
    for (unseen, more) in [(0, false), (3, false), (4, true)] {
        let mut run = Run::new();
        let optimizer = run.optimizer();
        for _ in 0..3 {
            let loader = run.loader("Photos");
            for batch in 1..=48 {
                if batch + unseen <= 48 {
                    run.batch(loader, optimizer, batch % 4 == 0, 1);
                } else if batch % 4 == 0 {
                    run.add(optimizer, 1);
                    run.ticks(1, &update(), &[optimizer]);
                }
            }
        }
        let profile = run.profile();
        let progress = progress(&profile);
        assert_eq!((progress.steps, progress.batches_per_step), (36, Some(4)));
        // Three may also be what the last step of an epoch did without.
        assert_eq!(progress.batches, 144 - 3 * unseen);
        assert_eq!(progress.more_batches, more, "{unseen} unseen");
        assert_eq!(json(&profile)["progress"]["more_batches"], more);
    }
}

#[test]
fn without_steps_batches_are_counted() {
    let mut run = Run::new();
    let (optimizer, loader) = (run.optimizer(), run.loader("Photos"));
    for _ in 0..20 {
        run.batch(loader, optimizer, false, 1);
    }
    let profile = run.profile();
    let progress = progress(&profile);
    assert_eq!(progress.unit, StepUnit::Batch);
    assert_eq!((progress.steps, progress.epochs), (20, None));
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    assert!(text.contains("\nBATCHES 20 | mean 160"), "{text}");
    assert!(text.contains("no optimizer step was seen"), "{text}");
}

/// Several steps between two ticks are counted, and their lengths are not told.
#[test]
fn steps_shorter_than_a_tick_are_counted_and_not_timed() {
    let mut run = Run::new();
    let (optimizer, loader) = (run.optimizer(), run.loader("Photos"));
    // Every reading is made between a batch and its step.
    for tick in 0..200 {
        run.add(loader, 2 + tick % 3);
        run.add(optimizer, 2 + tick % 3 - u64::from(tick == 0));
        run.ticks(1, &forward(), &[loader, optimizer]);
    }
    let progress = progress(&run.profile());
    assert_eq!(progress.steps, 66 * 9 + 2 + 3 - 1, "{progress:?}");
    let times = progress.times.unwrap();
    assert!((times.mean_ns - 10e6 / 3.0).abs() < 0.1e6, "{times:?}");
    assert_eq!(times.spread, None);
}

#[test]
fn a_slow_step_says_what_it_did() {
    let mut run = Run::new();
    let (optimizer, loader) = (run.optimizer(), run.loader("Photos"));
    for step in 1..=30 {
        run.batch(loader, optimizer, true, 1);
        if step == 20 {
            run.ticks(30, &script(&[user("save", 77)]), &[loader, optimizer]);
        }
    }
    let profile = run.profile();
    let progress = progress(&profile);
    let [slow] = progress.slow.as_slice() else {
        panic!("{:?}", progress.slow)
    };
    // Its time falls into the step that ends after it.
    assert_eq!((slow.number, slow.phase), (21, Phase::User));
    assert_eq!(slow.more_ns, 30 * TICK_NS);
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    let line = "  slow: step 21 at 3.6 s, 480 ms (2.7 x): user +300 ms, train.py:77";
    assert!(text.contains(line), "{text}");
}

/// So many steps, the first of them slow.
fn slow_at_the_start(steps: usize, slow: usize) -> Profile {
    let mut run = Run::new();
    let (optimizer, loader) = (run.optimizer(), run.loader("Photos"));
    for step in 0..steps {
        if step < slow {
            run.ticks(40, &forward(), &[loader, optimizer]);
        }
        run.batch(loader, optimizer, true, 1);
    }
    run.profile()
}

#[test]
fn slow_steps_at_the_start_are_warm_up() {
    let profile = slow_at_the_start(40, 4);
    let known = progress(&profile);
    assert_eq!(known.steps, 40);
    assert_eq!(known.warm_up.steps, 4, "{known:?}");
    assert_eq!(known.times.unwrap().mean_ns, 180e6);
    let out = &json(&profile)["progress"]["left_out"];
    let wanted = serde_json::json!({
        "unseen": 1, "start": 3, "start_seconds": 1.74, "compiles": false, "between_passes": 0,
        "profiled": 0, "all": false,
    });
    assert_eq!(*out, wanted);
    let analysis = analyze(&profile);
    let text = render_summary(&profile, &analysis, TextOptions::default());
    let all = "times are of 36 steps: all but 1 whose start was not seen, 3 slow ones at the";
    assert!(text.contains(all), "{text}");
    // The short report says it, too.
    let brief = TextOptions {
        detail: Detail::Brief,
        ..TextOptions::default()
    };
    let text = render_summary(&profile, &analysis, brief);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains(" ms of 36 without 3 slow ones at the start (1.7 s) |"),
        "{text}"
    );
}

/// Twelve epochs of 3.6 s, the first of which takes twice as long, while memory grows by 2 MB a
/// second.
#[test]
fn growth_by_epoch_is_of_the_epochs_in_which_it_was_seen() {
    let mut run = Run::new();
    let optimizer = run.optimizer();
    for epoch in 0..12 {
        let loader = run.loader("Photos");
        for step in 0..20 {
            if epoch == 0 && step > 0 {
                run.ticks(20, &forward(), &[loader, optimizer]);
            }
            run.batch(loader, optimizer, true, 1);
        }
    }
    let end_ns = run.now_ns;
    let grows = track(&mut run.builder, TrackKind::Anonymous, None, 100);
    for at in (0..end_ns).step_by(500_000_000) {
        put(&mut run.builder, grows, at, at, 1_000_000_000 + at / 500);
    }
    let profile = run.profile();
    let analysis = analyze(&profile);
    let [growth] = &analysis.growing[..] else {
        panic!("{:?}", analysis.growing);
    };
    let epoch = growth.per_epoch.unwrap();
    let epoch_s = epoch.value / growth.per_second.value;
    assert!((epoch_s - 3.6).abs() < 0.05, "{epoch_s}");
    let text = render_summary(&profile, &analysis, TextOptions::default());
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for said in ["kB a step (95 %: ", " MB an epoch (95 %: "] {
        assert!(words.contains(said), "{said}: {text}");
    }
}

/// 40 steps of 180 ms; in three of them, from the 21st on, torch.profiler runs, and each is 400 ms
/// longer.
fn profiled_run() -> Profile {
    let mut run = Run::new();
    let (optimizer, loader) = (run.optimizer(), run.loader("Photos"));
    let (mut from, mut to) = (0, 0);
    for step in 0..40 {
        if step == 20 {
            from = run.now_ns + TICK_NS;
        }
        if (20..23).contains(&step) {
            run.ticks(40, &forward(), &[loader, optimizer]);
        }
        run.batch(loader, optimizer, true, 1);
        if step == 22 {
            to = run.now_ns - 5 * TICK_NS;
        }
    }
    let mut profile = run.profile();
    let start_ns = profile.start_ns;
    profile.profiled = vec![(ProcessId(0), start_ns + from, start_ns + to)];
    profile
}

#[test]
fn steps_that_the_profiler_slowed_down_are_left_out_and_not_slow() {
    let profile = profiled_run();
    let known = progress(&profile);
    assert_eq!(known.left_out.profiled, 3, "{known:?}");
    assert_eq!(known.times.unwrap().mean_ns, 180e6);
    assert!(known.slow.is_empty(), "{:?}", known.slow);
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = "all but 1 whose start was not seen, 3 that torch.profiler slowed down";
    assert!(words.contains(said), "{text}");
    assert_eq!(json(&profile)["progress"]["left_out"]["profiled"], 3);
    // The same in a part, of which they are most, and without the window they are slow.
    let mut part = profile.clone();
    restrict_to(
        &mut part,
        19 * 180_000_000,
        23 * 180_000_000 + 1_200_000_000,
    )
    .unwrap();
    assert_eq!(progress(&part).left_out.profiled, 3);
    let mut other = profile.clone();
    other.profiled[0].0 = ProcessId(1);
    assert_eq!(progress(&other).slow.len(), 3);
    assert_eq!(progress(&other).left_out.profiled, 0);
}

#[test]
fn a_comparison_leaves_out_the_steps_that_the_profiler_slowed_down() {
    let (a, b) = (slow_at_the_start(40, 0), profiled_run());
    let run = |profile| {
        let (units, evaluation) = units_of(profile, ProcessId(0));
        diff::Run {
            name: "x.tspy".to_owned(),
            profile,
            process: ProcessId(0),
            units,
            evaluation,
        }
    };
    let diff = diff::compare(&[run(&a)], &[run(&b)], &diff::Options::default()).unwrap();
    assert_eq!((diff.a[0].profiled_steps, diff.b[0].profiled_steps), (0, 3));
    let step = diff.step.as_ref().unwrap();
    assert_eq!(step.verdict, diff::Verdict::Noise, "{step:?}");
    let text = render_diff(&diff, 10);
    let said = "Steps that torch.profiler slowed down are left out: A 0, B 3.";
    assert!(text.contains(said), "{text}");
}

/// As on a machine that is busy with other programs for a while.
#[test]
fn a_long_slow_start_is_no_warm_up() {
    let known = progress(&slow_at_the_start(63, 14));
    assert_eq!(known.left_out.start, 0, "{known:?}");
    let times = known.times.unwrap();
    let mean_ns = (62.0 * 180e6 + 13.0 * 400e6) / 62.0;
    assert_eq!((times.steps, times.mean_ns), (62, mean_ns));
}

#[test]
fn a_part_of_a_run_has_no_slow_start() {
    let mut run = Run::new();
    let (optimizer, loader) = (run.optimizer(), run.loader("Photos"));
    for step in 0..60 {
        if (20..23).contains(&step) {
            run.ticks(40, &forward(), &[loader, optimizer]);
        }
        run.batch(loader, optimizer, true, 1);
    }
    let mut profile = run.profile();
    // In the last step before the slow ones.
    restrict_to(&mut profile, 19 * 180_000_000 + 50_000_000, u64::MAX / 2).unwrap();
    let known = progress(&profile);
    assert_eq!(known.left_out.start, 0, "{known:?}");
    assert_eq!(known.times.unwrap().steps, known.steps - 1);
}

/// The start that an interval has depends on the run, not on the other steps of the interval.
#[test]
fn a_part_leaves_out_the_steps_that_the_whole_run_leaves_out() {
    let whole = slow_at_the_start(40, 4);
    let part = |from_ns: u64, to_ns: u64| {
        let mut part = whole.clone();
        restrict_to(&mut part, from_ns, to_ns).unwrap();
        progress(&part)
    };
    let ms = 1_000_000;
    // Eight steps: four slow ones would be too many of them.
    let known = part(0, 3200 * ms);
    assert_eq!((known.left_out.start, known.left_out.all), (3, false));
    assert_eq!(known.times.unwrap().mean_ns, 180e6);
    // From within the second one on.
    let known = part(700 * ms, 8000 * ms);
    assert_eq!((known.left_out.start, known.left_out.all), (2, false));
    assert_eq!(known.times.unwrap().mean_ns, 180e6);
}

#[test]
fn times_of_a_part_that_is_left_out_are_given_with_the_reason() {
    let mut part = slow_at_the_start(40, 4);
    restrict_to(&mut part, 0, 2_350_000_000).unwrap();
    let known = progress(&part);
    assert!(known.left_out.all, "{known:?}");
    assert_eq!((known.steps, known.left_out.start), (4, 3));
    assert_eq!(known.times.unwrap().mean_ns, 580e6);
    let analysis = analyze(&part);
    let brief = TextOptions {
        detail: Detail::Brief,
        ..TextOptions::default()
    };
    let text = render_summary(&part, &analysis, brief);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let wanted = "mean 580 ms of 3 | the run's mean leaves them out: 3 slow ones at the start \
                  (1.7 s) | too few steps for percentiles";
    assert!(
        words
            .replace(" | ", " ")
            .contains(&wanted.replace(" | ", " ")),
        "{text}"
    );
    let full = render_summary(&part, &analysis, TextOptions::default());
    let words = full.split_whitespace().collect::<Vec<_>>().join(" ");
    let wanted = "times are of 3 steps: all but 1 whose start was not seen; the run's mean leaves \
                  these out: 3 slow ones at the start (1.7 s)";
    assert!(words.contains(wanted), "{full}");
}

#[test]
fn the_table_of_steps_has_the_mean() {
    let profile = slow_at_the_start(40, 4);
    let analysis = analyze(&profile);
    let text = csv::render(&Sheet::new(
        table::STEPS,
        &table::steps(&profile, &analysis),
    ));
    let rows: Vec<Vec<&str>> = text.lines().map(|row| row.split(',').collect()).collect();
    let at = |key: &str| rows[0].iter().position(|each| *each == key).unwrap();
    let (ms, left_out) = (at("ms"), at("left_out"));
    let marked: Vec<&str> = rows[1..].iter().map(|row| row[left_out]).collect();
    assert_eq!(marked[..4], ["slow start", "slow start", "slow start", ""]);
    let timed: Vec<f64> = rows[1..]
        .iter()
        .filter(|row| row[left_out].is_empty())
        .map(|row| row[ms].parse().unwrap())
        .collect();
    let mean = timed.iter().sum::<f64>() / timed.len() as f64;
    assert!((mean - 180.0).abs() < 1e-6, "{mean}");
}

/// The speedup is of all time after start-up, and steps that are half of it need not gain as much.
#[test]
fn a_bound_gives_steps_only_if_they_are_nearly_all_of_the_time() {
    let bound = |more: u64| {
        let mut run = Run::new();
        let (optimizer, loader) = (run.optimizer(), run.loader("Photos"));
        for _ in 0..40 {
            run.ticks(20, &input(), &[loader, optimizer]);
            run.batch(loader, optimizer, true, 1);
        }
        run.ticks(more, &input(), &[loader, optimizer]);
        let profile = run.profile();
        let analysis = analyze(&profile);
        let text = render_summary(&profile, &analysis, TextOptions::default());
        (analysis.verdict.and_then(|verdict| verdict.bound), text)
    };
    let (all, text) = bound(0);
    let (now_ns, then_ns) = all.and_then(|bound| bound.step_ns).unwrap();
    assert_eq!(now_ns, 380e6);
    assert!((now_ns / then_ns - all.unwrap().speedup).abs() < 1e-9);
    assert!(text.contains("(380 -> "), "{text}");
    let (some, text) = bound(1000);
    assert_eq!(some.and_then(|bound| bound.step_ns), None);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("x over all time after start-up, not of each step"),
        "{text}"
    );
}

#[test]
fn some_of_the_steps() {
    let whole = two_epochs().profile();
    let mut part = whole.clone();
    let range = StepRange {
        skip: 5,
        count: Some(4),
    };
    assert_eq!(restrict(&mut part, range), Ok((6, 9)));
    let progress = progress(&part);
    assert_eq!(progress.steps, 4, "{progress:?}");
    let wall_ns: u64 = part.samples.iter().map(|sample| sample.weight_ns).sum();
    assert_eq!(wall_ns, 4 * 18 * TICK_NS);
    let (all, own) = (analyze(&whole), analyze(&part));
    assert!(all.quality.ticks > 0);
    assert_eq!(own.quality.rate_hz, all.quality.rate_hz);
    assert_eq!(own.quality.own_cpu, all.quality.own_cpu);
    let process = &own.processes[0];
    assert!(process.life_ns <= process.wall_ns, "{}", process.life_ns);
    assert!(process.cpu_ns <= process.wall_ns, "{}", process.cpu_ns);
    let mut none = whole.clone();
    let beyond = StepRange {
        skip: 24,
        count: None,
    };
    assert_eq!(restrict(&mut none, beyond), Err(WindowError::TooFew(24)));
    assert_eq!(none.samples, whole.samples);
    let mut silent = whole.clone();
    silent.sideband.points.clear();
    assert_eq!(restrict(&mut silent, range), Err(WindowError::NoSteps));
}

#[test]
fn what_is_not_known_is_absent() {
    let mut builder = Builder::trainer();
    builder.ticks(0, 50, S::Running, &forward());
    let profile = builder.profile();
    let report = json(&profile);
    assert_eq!(report["progress"], Value::Null);
    let conditions = report["conditions"].as_object().unwrap();
    let known: Vec<&str> = conditions.keys().map(String::as_str).collect();
    assert_eq!(known, ["python", "torch", "version"]);
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    assert!(text.contains("STEPS none"), "{text}");
}

#[test]
fn conditions_are_those_of_the_loader_that_trains() {
    let mut run = two_epochs();
    run.builder.sideband.conditions.push(Condition {
        process: ProcessId(0),
        name: facts::CPU_QUOTA.to_owned(),
        value: "4.00".to_owned(),
    });
    // The loader that evaluates has other batches.
    for counter in &mut run.builder.counters {
        if counter.fact(facts::DATASET) == Some("Tests") {
            counter.facts[0].1 = "64".to_owned();
        }
    }
    let profile = run.profile();
    let conditions = &json(&profile)["conditions"];
    assert_eq!(conditions["batch_size"], 8, "{conditions}");
    assert_eq!(conditions["dataset"], "Photos");
    assert_eq!(conditions["optimizer"], "AdamW");
    assert_eq!(conditions["cpu_quota"], 4.0);
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    let line = "batch 8 float32 AdamW | DataLoader workers 2 | cgroup 4 CPUs";
    assert!(text.contains(line), "{text}");
}

/// Readings may say anything.
#[test]
fn absurd_readings_are_survived() {
    for value in [0, 1, u64::MAX / 2, u64::MAX] {
        let mut run = two_epochs();
        for point in run.builder.sideband.points.iter_mut().step_by(3) {
            point.value = value;
            point.before_ns = value;
        }
        let profile = run.profile();
        let analysis = analyze(&profile);
        let text = render_summary(&profile, &analysis, TextOptions::default());
        let fits = |line: &str| line.chars().count() <= 80 && !line.contains("NaN");
        assert!(text.lines().all(fits), "{value}: {text}");
        // Time is in one row of the summary, whatever the counters say.
        let process = analysis.primary().unwrap();
        let wall_ns = profile.end_ns - profile.start_ns;
        assert!(process.wall_ns <= wall_ns, "{value}: {}", process.wall_ns);
        let listed = steps(&profile, ProcessId(0));
        assert!(listed.len() <= 1 << 19, "{value}: {}", listed.len());
        for pair in listed.windows(2) {
            assert!(pair[0].number <= pair[1].number, "{value}: {pair:?}");
        }
        for step in &listed {
            assert!(step.start_ns <= step.end_ns, "{value}: {step:?}");
        }
    }
}

/// A counter that is found long after the loader's: the batches that both were read over tell how
/// many go into a step.
#[test]
fn steps_before_a_counter_that_began_late_are_those_of_the_batches() {
    let mut run = Run::new();
    let (optimizer, loader) = (run.optimizer(), run.loader("Photos"));
    for batch in 1..=100 {
        let both = [loader, optimizer];
        let read = if batch > 60 { &both[..] } else { &both[..1] };
        run.ticks(1, &input(), read);
        run.add(loader, 1);
        run.ticks(3, &forward(), read);
        run.ticks(3, &backward(), read);
        run.add(optimizer, 1);
        run.ticks(1, &update(), read);
    }
    let progress = progress(&run.profile());
    assert_eq!((progress.steps, progress.batches), (100, 100));
    assert_eq!(progress.batches_per_step, Some(1));
    assert_eq!(progress.counted_from_ns, None);
}

/// Without a loader nothing tells how many steps there were before the counter was found.
#[test]
fn steps_of_a_counter_that_began_late_are_at_least_so_many() {
    let mut run = Run::new();
    let optimizer = run.optimizer();
    for step in 1..=100 {
        let read = if step > 5 { &[optimizer][..] } else { &[] };
        run.ticks(4, &forward(), read);
        run.ticks(4, &backward(), read);
        run.add(optimizer, 1);
        run.ticks(2, &update(), read);
    }
    let profile = run.profile();
    let progress = progress(&profile);
    assert_eq!(progress.steps, 95);
    let from_ns = progress.counted_from_ns.unwrap();
    assert!((490_000_000..520_000_000).contains(&from_ns), "{from_ns}");
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    assert!(
        text.contains("\nSTEPS 95 to 100 | counted from 0.5 s on"),
        "{text}"
    );
    let report = &json(&profile)["progress"];
    assert_eq!(report["counted_from_s"], 0.505);
    assert_eq!(report["steps_at_most"], 100);
    let modules = &analyze(&profile).processes[0].modules.modules;
    assert!(modules.iter().all(|module| module.per_step_ms.is_none()));
}

/// The loader that is seen first need not be the first: the parameter's version tells that there
/// were steps before, or how it was filled.
#[test]
fn steps_of_passes_that_nobody_saw_are_allowed_for() {
    let mut run = Run::new();
    let optimizer = run.optimizer();
    run.add(optimizer, 1);
    for epoch in 0..3 {
        let loader = run.loader("Photos");
        let both = [loader, optimizer];
        let read = if epoch == 2 { &both[..] } else { &[] };
        for _ in 0..8 {
            run.ticks(1, &input(), read);
            run.add(loader, 1);
            run.ticks(6, &backward(), read);
            run.add(optimizer, 1);
            run.ticks(1, &update(), read);
        }
    }
    let profile = run.profile();
    let progress = progress(&profile);
    assert_eq!((progress.steps, progress.steps_at_most), (8, Some(25)));
    assert_eq!(
        (progress.epochs, progress.epochs_at_most),
        (Some(1), Some(3))
    );
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    assert!(
        text.contains("\nSTEPS 8 to 25 | counted from 1.3 s on"),
        "{text}"
    );
    assert!(text.contains("epochs 1 to 3"), "{text}");
}

/// Whoever reads a counter for the last time in the middle of a step does not know whether that one
/// ended. What was read once more after the step is known.
#[test]
fn the_last_step_may_have_ended_unread() {
    for (reads_on, most) in [(false, Some(20)), (true, None)] {
        let mut run = Run::new();
        let (optimizer, loader) = (run.optimizer(), run.loader("Photos"));
        for _ in 0..19 {
            run.batch(loader, optimizer, true, 1);
        }
        let read = [loader, optimizer];
        if reads_on {
            run.ticks(3, &script(&[]), &read);
        } else {
            run.ticks(1, &input(), &read);
            run.add(loader, 1);
            run.ticks(4, &backward(), &read);
        }
        let (value, last_ns) = run.counters[optimizer].1.unwrap();
        run.builder.sideband.points.push(ProgressPoint {
            counter: CounterId::from_index(optimizer),
            thread: ThreadId(0),
            before_ns: last_ns,
            time_ns: last_ns,
            value,
        });
        let progress = progress(&run.profile());
        assert_eq!((progress.steps, progress.steps_at_most), (19, most));
    }
}

/// `next(iter(loader))` before each epoch evaluates nothing, and an epoch that was begun need not
/// have ended.
#[test]
fn a_look_at_the_first_batch_is_no_evaluation() {
    let mut run = Run::new();
    let optimizer = run.optimizer();
    for epoch in 0..3 {
        let peek = run.loader("Photos");
        run.ticks(1, &input(), &[peek, optimizer]);
        run.add(peek, 1);
        run.ticks(2, &script(&[]), &[peek, optimizer]);
        let train = run.loader("Photos");
        for _ in 0..if epoch == 2 { 3 } else { 12 } {
            run.batch(train, optimizer, true, 1);
        }
    }
    let profile = run.profile();
    let progress = progress(&profile);
    assert_eq!(progress.evaluation.passes, 0);
    assert_eq!(progress.epochs, Some(3));
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    assert!(!text.contains("evaluation"), "{text}");
    assert!(
        text.contains("epochs begun 3, 2 of them to their end"),
        "{text}"
    );
}

#[test]
fn a_part_of_an_epoch_is_none() {
    let mut run = Run::new();
    let (optimizer, loader) = (run.optimizer(), run.loader("Photos"));
    for _ in 0..12 {
        run.batch(loader, optimizer, true, 1);
    }
    let profile = run.profile();
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    assert!(text.contains("| epochs begun 1"), "{text}");
}

/// Every second loader lived between two polls: the steps that its batches made were counted.
#[test]
fn epochs_that_were_missed_are_told() {
    let mut run = Run::new();
    let optimizer = run.optimizer();
    for epoch in 0..20 {
        let train = run.loader("Photos");
        let read = [train, optimizer];
        let read = if epoch % 2 == 0 {
            &read[..]
        } else {
            &read[1..]
        };
        for _ in 0..8 {
            run.add(train, 1);
            run.ticks(2, &backward(), read);
            run.add(optimizer, 1);
            run.ticks(1, &update(), read);
        }
    }
    let profile = run.profile();
    assert!(progress(&profile).more_epochs);
    let text = render_summary(&profile, &analyze(&profile), TextOptions::default());
    assert!(text.contains("epochs 10 to 20"), "{text}");
    assert_eq!(json(&profile)["progress"]["epochs_at_most"], 20);
}
