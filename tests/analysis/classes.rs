//! Real stacks of training threads, labelled without torchspy's help, are classified again. Phases
//! were told by the scripts' own clocks, activities by hand; tests/fixtures/classes/README.md says
//! how.

use std::collections::BTreeMap;
use torchspy::model::category::{Activity, Phase};
use torchspy::model::module::ModuleKind;
use torchspy::model::sample::ThreadState;
use torchspy::torch::classify::{FunctionClass, Situation, activity, phase};
use torchspy::torch::rules::RuleSet;

const STACKS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/classes/stacks.txt"
);
/// A phase or an activity with less time than this, of all runs together, is too seldom to be
/// judged: of 1,680 labelled moments some 17.
const LEAST_PHASE: f64 = 0.003;
const LEAST_ACTIVITY: f64 = 0.01;

/// A labelled stack of one run.
struct Labelled {
    run: usize,
    label: String,
    weight: f64,
    situation: Situation,
    /// Leaf first.
    classes: Vec<FunctionClass>,
    shown: String,
}

/// A run: its name, and the time of it that stands behind activities and behind phases.
struct Run {
    name: String,
    whole: [f64; 2],
}

#[derive(Default)]
struct Fixture {
    runs: Vec<Run>,
    activities: Vec<Labelled>,
    phases: Vec<Labelled>,
}

fn class_of(kind: &str, file: &str, name: &str) -> FunctionClass {
    let named = (!name.is_empty()).then_some(name);
    let rules = RuleSet::built_in();
    let of = match kind {
        "py" => rules.python(file, name),
        "file" => rules.native(ModuleKind::File, file, named),
        "anonymous" => rules.native(ModuleKind::Anonymous, file, named),
        "vdso" => rules.native(ModuleKind::Vdso, file, named),
        other => panic!("no kind of frame: {other}"),
    };
    of.class
}

fn state_of(name: &str) -> ThreadState {
    match name {
        "running" => ThreadState::Running,
        "sleeping" => ThreadState::Sleeping,
        "uninterruptible" => ThreadState::Uninterruptible,
        "stopped" => ThreadState::Stopped,
        _ => ThreadState::Unknown,
    }
}

fn read() -> Fixture {
    let text = std::fs::read_to_string(STACKS).unwrap();
    let mut fixture = Fixture::default();
    let mut frames: Vec<(FunctionClass, String)> = Vec::new();
    let mut nodes: Vec<(Option<usize>, usize)> = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["frame", kind, file, name] => {
                let shown = format!("{name} [{}]", file.rsplit('/').next().unwrap());
                frames.push((class_of(kind, file, name), shown));
            }
            ["node", parent, frame] => nodes.push((parent.parse().ok(), frame.parse().unwrap())),
            ["run", name, all, phased] => fixture.runs.push(Run {
                name: name.replace('_', " "),
                whole: [all.parse().unwrap(), phased.parse().unwrap()],
            }),
            [what, label, weight, state, syscall, node] => {
                let mut classes = Vec::new();
                let mut shown = Vec::new();
                let mut next: Option<usize> = node.parse().ok();
                while let Some(at) = next {
                    let (parent, frame) = nodes[at];
                    classes.push(frames[frame].0);
                    shown.push(frames[frame].1.as_str());
                    next = parent;
                }
                let labelled = Labelled {
                    run: fixture.runs.len() - 1,
                    label: label.to_owned(),
                    weight: weight.parse().unwrap(),
                    situation: Situation::new("x86_64", state_of(state), syscall.parse().ok()),
                    shown: shown[..shown.len().min(8)].join(" < "),
                    classes,
                };
                match what {
                    "activity" => fixture.activities.push(labelled),
                    "phase" => fixture.phases.push(labelled),
                    other => panic!("no such line: {other}"),
                }
            }
            _ => panic!("no such line: {line}"),
        }
    }
    fixture
}

/// Time by label and answer, each run with the same say.
type Matrix = BTreeMap<(String, &'static str), f64>;

fn matrix(
    runs: &[Run],
    axis: usize,
    stacks: &[Labelled],
    answer: impl Fn(&Labelled) -> &'static str,
) -> Matrix {
    let mut matrix = Matrix::new();
    let mut wrong: Vec<(f64, String)> = Vec::new();
    for stack in stacks {
        let share = stack.weight / runs[stack.run].whole[axis] / runs.len() as f64;
        let reported = answer(stack);
        *matrix.entry((stack.label.clone(), reported)).or_default() += share;
        if reported != stack.label {
            let run = &runs[stack.run].name;
            let text = format!(
                "{run}: {} classified as {reported}: {}",
                stack.label, stack.shown
            );
            wrong.push((share, text));
        }
    }
    wrong.sort_by(|left, right| right.0.total_cmp(&left.0));
    for (share, text) in wrong.iter().take(12) {
        println!("  wrong {:.3} % {text}", 100.0 * share);
    }
    matrix
}

fn print(matrix: &Matrix, names: &[&'static str]) {
    let seen = |name: &&&str| matrix.keys().any(|key| key.0 == ***name || key.1 == **name);
    let names: Vec<&&str> = names.iter().filter(seen).collect();
    print!("    {:<18}", "true, classified as");
    for name in &names {
        print!("{:>10}", &name[..name.len().min(9)]);
    }
    println!();
    for label in &names {
        print!("    {label:<18}");
        for reported in &names {
            match matrix.get(&((**label).to_owned(), **reported)) {
                Some(share) => print!("{:>10.2}", 100.0 * share),
                None => print!("{:>10}", "-"),
            }
        }
        println!();
    }
}

/// Prints precision and recall of each category, and gives those that fall short.
fn judge(matrix: &Matrix, names: &[&'static str], least: f64) -> Vec<String> {
    let mut short = Vec::new();
    let sum = |wanted: &dyn Fn(&(String, &'static str)) -> bool| -> f64 {
        let cells = matrix.iter().filter(|(key, _)| wanted(key));
        cells.map(|(_, share)| share).sum()
    };
    for &name in names {
        let labelled = sum(&|key| key.0 == name);
        let reported = sum(&|key| key.1 == name);
        let both = sum(&|key| key.0 == name && key.1 == name);
        if labelled.max(reported) < least {
            continue;
        }
        let (precision, recall) = (100.0 * both / reported, 100.0 * both / labelled);
        let line = format!(
            "{name} {:.2} %: precision {precision:.1} %, recall {recall:.1} %",
            100.0 * labelled
        );
        println!("    {line}");
        // Not at least: what is never told has no precision, and is short.
        if !(precision >= 95.0 && recall >= 95.0) {
            short.push(line);
        }
    }
    short
}

fn activity_of(stack: &Labelled) -> &'static str {
    activity(stack.classes.iter().copied(), stack.situation).name()
}

#[test]
fn activities_are_what_a_reader_of_the_stacks_says() {
    let fixture = read();
    let names: Vec<&str> = Activity::ALL.iter().map(|each| each.name()).collect();
    for stack in &fixture.activities {
        assert!(names.contains(&stack.label.as_str()), "{}", stack.label);
    }
    let matrix = matrix(&fixture.runs, 0, &fixture.activities, activity_of);
    print(&matrix, &names);
    let short = judge(&matrix, &names, LEAST_ACTIVITY);
    assert!(short.is_empty(), "{short:#?}");
}

#[test]
fn nearly_nothing_is_unclassified() {
    let fixture = read();
    for (number, run) in fixture.runs.iter().enumerate() {
        let of_run = || {
            fixture
                .activities
                .iter()
                .filter(|stack| stack.run == number)
        };
        let labelled: f64 = of_run().map(|stack| stack.weight).sum();
        let unknown = of_run().filter(|stack| activity_of(stack) == "unclassified");
        let unknown: f64 = unknown.map(|stack| stack.weight).sum();
        let (covered, unknown) = (labelled / run.whole[0], unknown / run.whole[0]);
        println!(
            "    {}: {:.1} % of its time labelled, {:.2} % unclassified",
            run.name,
            100.0 * covered,
            100.0 * unknown.abs()
        );
        assert!(covered >= 0.90, "{}: labels cover {covered}", run.name);
        assert!(unknown <= 0.03, "{}: {unknown}", run.name);
    }
    assert_eq!(fixture.runs.len(), 7, "six kinds of runs, one of two ranks");
}

#[test]
fn phases_are_what_the_scripts_say() {
    let fixture = read();
    let names: Vec<&str> = Phase::ALL.iter().map(|each| each.name()).collect();
    let matrix = matrix(&fixture.runs, 1, &fixture.phases, |stack| {
        // The scripts' clocks do not tell a framework's own work from the user's.
        match phase(stack.classes.iter().copied()) {
            None | Some(Phase::Framework) => Phase::User.name(),
            Some(phase) => phase.name(),
        }
    });
    print(&matrix, &names);
    let short = judge(&matrix, &names, LEAST_PHASE);
    assert!(short.is_empty(), "{short:#?}");
}
