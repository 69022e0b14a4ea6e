//! Two profiles compared: what is said of them, in text, JSON, folded stacks and a drawing.

use crate::analysis_builder::*;
use serde_json::Value;
use std::slice::from_ref;
use torchspy::analysis::diff::keys::Key;
use torchspy::analysis::diff::steps::BetweenSteps;
use torchspy::analysis::diff::subject::{ranks, subject};
use torchspy::analysis::diff::units::{Unit, Units};
use torchspy::analysis::diff::{Diff, DiffError, Options, Row, Run, Verdict, compare};
use torchspy::model::category::Activity;
use torchspy::model::facts::{Line, OperatorSite};
use torchspy::model::ids::ProcessId;
use torchspy::model::nn_module::NnModuleInfo;
use torchspy::model::profile::{Profile, ProfileFrame};
use torchspy::model::stack_table::StackTable;
use torchspy::report::diff_folded;
use torchspy::report::flamegraph::difference::{self, Difference};
use torchspy::report::json::diff::render_diff_json;
use torchspy::report::text::diff::render_diff;
use torchspy::report::view::ViewOptions;

fn module(path: &str, class: &str) -> NnModuleInfo {
    NnModuleInfo {
        root: "Net".to_owned(),
        number: 0,
        path: path.to_owned(),
        class: class.to_owned(),
        training: Some(true),
    }
}

/// A training script: what differs between two of its runs.
#[derive(Clone)]
struct Script {
    file: &'static str,
    /// Every so many steps `layers.2` takes a tick more; 0 for never.
    slower_every: u64,
    /// A function that only this run calls.
    own_function: Option<&'static str>,
    steps: u64,
}

const PLAIN: Script = Script {
    file: "/home/u/train.py",
    slower_every: 0,
    own_function: None,
    steps: 300,
};

impl Script {
    fn at(&self, function: &str, line: u32) -> F {
        py(self.file, function, line)
    }

    fn forward(&self, info: NnModuleInfo, more: &[F]) -> Vec<F> {
        let mut frames = vec![
            self.at("<module>", 90),
            F::Module(module("", "Net")),
            lib("torch/nn/modules/module.py", "Module._wrapped_call_impl"),
            lib("torch/nn/modules/module.py", "Module._call_impl"),
            self.at("Net.forward", 30),
            F::Module(info),
            lib("torch/nn/modules/module.py", "Module._wrapped_call_impl"),
            lib("torch/nn/modules/module.py", "Module._call_impl"),
            self.at("Block.forward", 20),
        ];
        frames.extend_from_slice(more);
        frames
    }

    /// The profile, and its steps: 100 ms each, and a tick more where it is slower.
    fn run(&self) -> (Profile, Vec<(u64, u64)>) {
        let mut builder = Builder::trainer();
        builder.run.command = vec!["python".to_owned(), self.file.to_owned()];
        builder.processes[0].command = builder.run.command.clone();
        let op = |name: &str| torch(&format!("at::_ops::{name}::call(at::Tensor const&)"));
        let kernel = [op("relu"), torch("at::native::relu(at::Tensor const&)")];
        let first = self.forward(module("layers.0", "Block"), &kernel);
        let slow = self.forward(
            module("layers.2", "Block"),
            &[op("mm"), native("libmkl.so", "mkl_gemm")],
        );
        let backward = [
            self.at("<module>", 91),
            lib("torch/autograd/graph.py", "_engine_run_backward"),
            torch("torch::autograd::Engine::execute()"),
        ];
        let optimizer = [
            self.at("<module>", 92),
            lib("torch/optim/sgd.py", "SGD.step"),
        ];
        let own = self
            .own_function
            .map(|name| [self.at("<module>", 93), self.at(name, 50)]);
        let (mut steps, mut now) = (Vec::new(), 0);
        for step in 0..self.steps {
            let longer = self.slower_every > 0 && step % self.slower_every == 0;
            builder.ticks(0, 2, S::Running, &first);
            builder.ticks(0, 2 + u64::from(longer), S::Running, &slow);
            builder.ticks(0, 4, S::Running, &backward);
            builder.ticks(0, 1, S::Running, &optimizer);
            match &own {
                Some(frames) => builder.ticks(0, 1, S::Running, frames),
                None => builder.ticks(0, 1, S::Running, &optimizer),
            }
            let end = now + (10 + u64::from(longer)) * TICK_NS;
            steps.push((now, end));
            now = end;
        }
        (builder.profile(), steps)
    }
}

fn named<'p>(name: &str, profile: &'p Profile, steps: &[(u64, u64)]) -> Run<'p> {
    Run {
        name: name.to_owned(),
        profile,
        process: ProcessId(0),
        units: Units::Steps(steps.to_vec()),
        evaluation: BetweenSteps::default(),
    }
}

fn compared(a: &Script, b: &Script) -> Diff {
    let (a, b) = (a.run(), b.run());
    let (a, b) = (named("a.tspy", &a.0, &a.1), named("b.tspy", &b.0, &b.1));
    compare(&[a], &[b], &Options::default()).unwrap()
}

fn find<'d>(diff: &'d Diff, kind: &str, is_it: impl Fn(&Key) -> bool) -> &'d Row {
    diff.rows
        .iter()
        .find(|row| row.key.kind() == kind && is_it(&row.key))
        .unwrap_or_else(|| panic!("no such {kind} in {:#?}", diff.rows))
}

fn slower() -> Script {
    Script {
        slower_every: 2,
        ..PLAIN
    }
}

#[test]
fn a_slower_module_is_found_and_named() {
    let diff = compared(&PLAIN, &slower());
    let step = diff.step.as_ref().unwrap();
    assert_eq!((step.a.mean_ns, step.b.mean_ns), (1e8, 1.05e8));
    assert_eq!(step.verdict, Verdict::Slower);
    let carrier = diff.carrier.as_ref().unwrap();
    let layer = find(
        &diff,
        "module",
        |key| matches!(key, Key::Module { path, .. } if path == "layers.2"),
    );
    assert_eq!(carrier.key, layer.key);
    assert!((carrier.share - 1.0).abs() < 1e-9);
    assert_eq!(layer.difference_ns, 5e6);
    assert!(layer.half_ns > 0.0 && layer.half_ns < 2e6, "{layer:?}");
    let first = find(
        &diff,
        "module",
        |key| matches!(key, Key::Module { path, .. } if path == "layers.0"),
    );
    assert_eq!((first.difference_ns, first.verdict), (0.0, Verdict::Noise));
    let operator = find(
        &diff,
        "operator",
        |key| matches!(key, Key::Operator(name) if name == "aten::mm"),
    );
    assert_eq!(operator.verdict, Verdict::Slower);
}

#[test]
fn the_text_says_the_verdict_first() {
    let text = render_diff(&compared(&PLAIN, &slower()), 10);
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    insta::assert_snapshot!("text_of_a_slower_module", text);
}

#[test]
fn equal_runs_differ_in_nothing() {
    let diff = compared(&PLAIN, &PLAIN);
    assert!(diff.beyond_noise().is_empty());
    assert!(diff.discrepancies.is_empty(), "{:?}", diff.discrepancies);
    let text = render_diff(&diff, 10);
    assert!(
        text.starts_with(
            "No difference beyond noise: B takes 100.0 ms per step, A 100.0 (+0.0 % ±"
        ),
        "{text}"
    );
}

/// Another checkout of the script: nothing of it is new.
#[test]
fn a_script_in_another_folder_is_the_same_script() {
    let moved = Script {
        file: "/home/other/checkout/train.py",
        ..PLAIN
    };
    let diff = compared(&PLAIN, &moved);
    assert!(diff.beyond_noise().is_empty(), "{:#?}", diff.beyond_noise());
    let function = find(
        &diff,
        "function",
        |key| matches!(key, Key::Function { name, .. } if name == "Block.forward"),
    );
    assert_eq!((function.a.samples, function.b.samples), (1200, 1200));
    let differs: Vec<&str> = diff
        .discrepancies
        .iter()
        .map(|each| each.what.as_str())
        .collect();
    assert_eq!(differs, ["command line"]);
}

/// Lines were added above a function: its own lines are still the same lines.
#[test]
fn lines_go_by_their_place_in_the_function() {
    let (a, steps) = PLAIN.run();
    let mut b = a.clone();
    for function in b.functions.iter_mut().filter(|each| each.is_python) {
        function.first_line += 40;
    }
    let mut stacks = StackTable::default();
    for &(parent, frame) in b.stacks.stacks() {
        let old = *b.stacks.frame(frame);
        let line = if old.line > 0 { old.line + 40 } else { 0 };
        let frame = stacks.intern_frame(ProfileFrame { line, ..old });
        stacks.push_stack(parent, frame);
    }
    b.stacks = stacks;
    // What was found of these stacks is of their lines, too.
    let moved = |line: Option<Line>| line.map(|(function, line)| (function, line + 40));
    for facts in &mut b.facts.stacks {
        facts.user_line = moved(facts.user_line);
        facts.package_line = moved(facts.package_line);
        facts.python_leaf = moved(facts.python_leaf);
        facts.backward_line = moved(facts.backward_line);
    }
    let mut chains = StackTable::default();
    for &(parent, site) in b.facts.operator_chains.stacks() {
        let old = *b.facts.operator_chains.frame(site);
        let line = moved(old.line);
        let site = chains.intern_frame(OperatorSite { line, ..old });
        chains.intern_stack(parent, site);
    }
    b.facts.operator_chains = chains;
    let diff = compare(
        &[named("a", &a, &steps)],
        &[named("b", &b, &steps)],
        &Options::default(),
    )
    .unwrap();
    assert!(diff.beyond_noise().is_empty(), "{:#?}", diff.beyond_noise());
    let line = find(
        &diff,
        "line",
        |key| matches!(key, Key::Line { function, .. } if function == "Block.forward"),
    );
    assert_eq!((line.a.samples, line.b.samples), (1200, 1200));
    assert_eq!(line.about.line, 60, "B's");
}

#[test]
fn what_only_one_side_has_is_compared_and_gone_from_the_drawing() {
    let with = Script {
        own_function: Some("log_everything"),
        ..PLAIN
    };
    let (a, b) = (with.run(), PLAIN.run());
    let (a, b) = ([named("a", &a.0, &a.1)], [named("b", &b.0, &b.1)]);
    let options = Options::default();
    let diff = compare(&a, &b, &options).unwrap();
    let function = find(
        &diff,
        "function",
        |key| matches!(key, Key::Function { name, .. } if name == "log_everything"),
    );
    assert_eq!(function.verdict, Verdict::Faster);
    assert_eq!(
        (function.a.mean_ns, function.b.mean_ns, function.b.samples),
        (1e7, 0.0, 0)
    );
    assert_eq!(diff.step.as_ref().unwrap().verdict, Verdict::Noise);
    let text = render_diff(&diff, 10);
    assert!(
        text.contains("<0.1"),
        "seen too seldom in B to be stated: {text}"
    );
    let tree = Difference::new(&diff, &a, &b, &ViewOptions::default(), &options).unwrap();
    let mut svg = Vec::new();
    difference::render(&tree, &diff, &mut svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    assert!(svg.contains("Gone in B: log_everything train.py:"), "{svg}");
    assert!(!svg.contains("<title>log_everything"), "{svg}");
    let mut folded = Vec::new();
    diff_folded::render(&tree, &mut folded).unwrap();
    let folded = String::from_utf8(folded).unwrap();
    let gone = folded
        .lines()
        .find(|line| line.contains("log_everything"))
        .unwrap();
    assert!(gone.ends_with(" 10000000 0"), "{gone}");
    let whole: u64 = folded
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(whole, 100_000_000, "B's step");
}

#[test]
fn a_drawing_is_red_where_b_is_slower_and_grey_elsewhere() {
    let (a, b) = (PLAIN.run(), slower().run());
    let (a, b) = ([named("a", &a.0, &a.1)], [named("b", &b.0, &b.1)]);
    let options = Options::default();
    let diff = compare(&a, &b, &options).unwrap();
    let view = ViewOptions {
        by: torchspy::report::view::By::Module,
        ..ViewOptions::default()
    };
    let tree = Difference::new(&diff, &a, &b, &view, &options).unwrap();
    let mut svg = Vec::new();
    difference::render(&tree, &diff, &mut svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    let fill = |name: &str| {
        let (_, rest) = svg.split_once(&format!("<title>{name}")).unwrap();
        let (_, rest) = rest.split_once("fill=\"").unwrap();
        rest.split_once('"').unwrap().0.to_owned()
    };
    assert_eq!(
        fill("layers.2 (Block)"),
        "rgb(244,165,130)",
        "a quarter slower"
    );
    assert_eq!(fill("layers.0 (Block)"), "rgb(236,236,236)");
    assert!(svg.contains("slower by up to 50 %") && svg.contains("no difference beyond noise"));
    assert!(svg.contains("105.0 against 100.0 ms per step"), "{svg}");
    assert!(!svg.contains("threads side by side"));
}

#[test]
fn json_says_the_same() {
    let diff = compared(&PLAIN, &slower());
    let report: Value = serde_json::from_str(&render_diff_json(&diff).unwrap()).unwrap();
    assert_eq!(
        (&report["schema"], &report["unit"]),
        (&1.into(), &"step".into())
    );
    assert_eq!(report["step"]["verdict"], "slower");
    assert_eq!(report["step"]["difference_s"], 0.005);
    assert_eq!(report["carrier"]["name"], "Net.layers.2");
    assert_eq!(report["run_to_run"]["measured"], false);
    let parts = report["parts"].as_array().unwrap();
    assert_eq!(parts.len(), diff.rows.len());
    let layer = parts
        .iter()
        .find(|part| part["kind"] == "module" && part["name"] == "Net.layers.2")
        .unwrap();
    assert_eq!(layer["class"], "Block");
    assert_eq!(layer["a"]["samples"], 600);
    assert_eq!(layer["beyond_noise"], true);
}

#[test]
fn without_steps_shares_of_time_are_compared_and_that_is_said() {
    let (a, b) = (PLAIN.run().0, slower().run().0);
    let run = |profile| Run {
        name: "x".to_owned(),
        profile,
        process: ProcessId(0),
        units: Units::Seconds,
        evaluation: BetweenSteps::default(),
    };
    let diff = compare(&[run(&a)], &[run(&b)], &Options::default()).unwrap();
    assert_eq!((diff.unit, diff.step.is_none()), (Unit::Second, true));
    let text = render_diff(&diff, 10);
    assert!(
        text.starts_with("No steps are known, so it is unknown whether B is faster."),
        "{text}"
    );
    assert!(text.contains("larger share"), "{text}");
    assert!(!text.contains(" slower "), "{text}");
}

#[test]
fn few_steps_are_no_steps_and_few_samples_are_nothing() {
    let (profile, steps) = PLAIN.run();
    let few = named("few", &profile, &steps[..4]);
    let diff = compare(from_ref(&few), from_ref(&few), &Options::default()).unwrap();
    assert_eq!((diff.unit, diff.few_steps), (Unit::Second, true));
    let short = Script { steps: 4, ..PLAIN }.run();
    let run = named("short.tspy", &short.0, &short.1);
    let result = compare(from_ref(&run), from_ref(&run), &Options::default());
    assert_eq!(
        result.unwrap_err(),
        DiffError::TooShort("short.tspy".to_owned())
    );
}

#[test]
fn steps_out_of_order_or_overlapping_are_left_out() {
    let (profile, mut steps) = PLAIN.run();
    steps.push((5, 10));
    steps.insert(1, (steps[0].0, u64::MAX));
    steps.push((7, 3));
    let run = named("x", &profile, &steps);
    let diff = compare(from_ref(&run), from_ref(&run), &Options::default()).unwrap();
    assert_eq!(diff.a[0].units, 300.0);
}

/// Waiting for a CPU slows whatever code was to run: that, and not the code, carries the
/// difference.
#[test]
fn waiting_for_a_cpu_carries_it() {
    let (a, steps) = PLAIN.run();
    let (mut b, slower_steps) = Script {
        slower_every: 1,
        ..PLAIN
    }
    .run();
    for sample in &mut b.samples {
        // The last of the three ticks in `layers.2`.
        if sample.start_ns % (11 * TICK_NS) == 4 * TICK_NS {
            sample.queue_ns = sample.weight_ns;
        }
    }
    let diff = compare(
        &[named("a", &a, &steps)],
        &[named("b", &b, &slower_steps)],
        &Options::default(),
    )
    .unwrap();
    let carrier = diff.carrier.unwrap();
    assert_eq!(carrier.key, Key::Activity(Activity::CpuWait));
}

#[test]
fn what_else_differs_is_pointed_out() {
    let (mut a, steps) = PLAIN.run();
    let mut b = a.clone();
    a.run.host = "n1".to_owned();
    b.run.rate_hz = 200.0;
    b.run.gil_only = true;
    b.processes[0].info.torch = "2.14.0".to_owned();
    b.processes[0].info.has_cuda = true;
    b.processes[0].info.environment = vec![("OMP_NUM_THREADS".to_owned(), "1".to_owned())];
    b.end_ns *= 3;
    let diff = compare(
        &[named("a", &a, &steps)],
        &[named("b", &b, &steps)],
        &Options::default(),
    )
    .unwrap();
    let differs: Vec<&str> = diff
        .discrepancies
        .iter()
        .map(|each| each.what.as_str())
        .collect();
    assert_eq!(
        differs,
        [
            "host",
            "torch",
            "CUDA",
            "OMP_NUM_THREADS",
            "rate",
            "--gil",
            "length"
        ]
    );
    let text = render_diff(&diff, 10);
    assert!(
        text.contains("NOT THE SAME torch: A 2.15.0; B 2.14.0"),
        "{text}"
    );
}

#[test]
fn pooled_runs_measure_their_scatter() {
    let (a, b) = (PLAIN.run(), slower().run());
    let runs = |name: &str, (profile, steps): &'static (Profile, Vec<(u64, u64)>)| {
        [1, 2, 3].map(|number| named(&format!("{name}{number}"), profile, steps))
    };
    let (a, b) = (Box::leak(Box::new(a)), Box::leak(Box::new(b)));
    let diff = compare(&runs("a", a), &runs("b", b), &Options::default()).unwrap();
    assert_eq!(diff.step.as_ref().unwrap().verdict, Verdict::Slower);
    let text = render_diff(&diff, 10);
    assert!(
        text.contains("by how far runs of one side differ"),
        "{text}"
    );
    assert_eq!(diff.a.len(), 3);
}

#[test]
fn names_of_the_target_never_reach_the_terminal_raw() {
    let hostile = Script {
        own_function: Some("evil\x1b[2J\nname"),
        ..PLAIN
    };
    let diff = compared(&PLAIN, &hostile);
    let text = render_diff(&diff, 10);
    assert!(
        !text.contains('\x1b') && text.contains("\\x1b[2J\\n"),
        "{text}"
    );
}

#[test]
fn a_rank_is_found_by_its_number() {
    let mut builder = Builder::new();
    for rank in ["1", "0"] {
        let process = builder.process(
            100 + rank.parse::<i32>().unwrap(),
            1,
            &["python", "train.py"],
        );
        builder.environment(process, &[("RANK", rank), ("WORLD_SIZE", "2")]);
        let thread = builder.thread(process, 200, "python", true);
        builder.ticks(thread, 5, S::Running, &[user("main", 3)]);
    }
    let profile = builder.profile();
    assert_eq!(ranks(&profile), [0, 1]);
    assert_eq!(
        subject(&profile, None),
        Some(ProcessId(1)),
        "rank 0 stands for it"
    );
    assert_eq!(subject(&profile, Some(1)), Some(ProcessId(0)));
    assert_eq!(subject(&profile, Some(2)), None);
}
