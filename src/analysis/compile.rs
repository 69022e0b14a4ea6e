//! torch.compile: the time that compiling took, by stage and by function, and the time of the
//! compiled code.
//!
//! Compiling is the phase `compile` of the training thread, including the wait for C++ and Triton
//! compilers. The stage is that of the compiler's innermost function; the function is the one that
//! was passed to dynamo (read from its frame). Compiled code is attributed to the function that
//! called it. Backward's graph may be compiled when it is first called, and no frame of backward
//! names its function: that time, and that of its code, is attributed to a function only if no
//! other function was compiled.
//!
//! The number of compilations of a function is the number of intervals in which it was sampled,
//! with other samples between them. A compilation between two ticks is missed, and two without a
//! sample between them count as one: the number is a lower bound. After an attach the first one
//! seen may be a recompilation. A graph break is seen where the rest of the function ran or was
//! compiled.
//!
//! This module walks stacks, each once and only if something was compiled: the function that
//! compiled code belongs to follows from the frames between the code and its caller, which nothing
//! else needs.

use super::intervals::{Share, Shares};
use crate::model::as_json::{null_if_empty, null_if_zero, seconds_by_name};
use crate::model::category::Phase;
use crate::model::compile::{CompileMark, CompileStage, GraphBreak, Subject};
use crate::model::ids::StackId;
use crate::model::operator::OperatorMark;
use crate::model::profile::{Function, Profile, ProfileFrame, ProfileSample};
use crate::model::seconds;
use rustc_hash::{FxHashMap, FxHashSet};
use schemars::JsonSchema;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A function that was compiled, or whose compiled code ran.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct CompiledFunction {
    /// Its name; the class if an `nn.Module` was compiled as a whole.
    pub name: String,
    /// Its file; null where only the class of a module is known.
    #[serde(serialize_with = "null_if_empty")]
    #[schemars(with = "Option<String>")]
    pub file: String,
    /// Its first line; null if only the rest of it after a graph break was seen.
    #[serde(serialize_with = "null_if_zero")]
    #[schemars(with = "Option<u32>")]
    pub line: u32,
    /// Time in which it, or a part of it after a graph break, was compiled.
    #[serde(rename = "compile_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub compile_ns: u64,
    /// As a share of the thread's wall time.
    pub compile_share: Share,
    /// Number of times that it, or a part of it after a graph break, was seen being compiled: a
    /// lower bound.
    pub compilations: u32,
    /// Those of them that were not the first of their part.
    pub recompilations: u32,
    /// Time of its compiled code.
    #[serde(rename = "run_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub run_ns: u64,
    /// As a share of the thread's wall time.
    pub run_share: Share,
}

/// A graph break.
#[derive(Clone, Debug, JsonSchema, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[schemars(rename = "GraphBreak")]
pub struct BreakSite {
    /// The file.
    pub file: String,
    /// Line and function.
    #[serde(flatten)]
    pub at: GraphBreak,
}

/// What torch.compile did on the training thread.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct CompileTable {
    /// Time of compiling, the wait for compilers included: the phase `compile`.
    #[serde(rename = "compile_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub compile_ns: u64,
    /// As a share of the thread's wall time.
    pub compile_share: Share,
    /// The same by stage: `dynamo`, `aot_autograd`, `inductor`, `build`, `other`.
    #[serde(rename = "stages_s", serialize_with = "seconds_by_name")]
    #[schemars(with = "BTreeMap<String, f64>")]
    pub stages: Vec<(CompileStage, u64)>,
    /// The part of `compile_s` of which the function is not known.
    #[serde(rename = "unknown_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub unknown_ns: u64,
    /// Time of compiled code.
    #[serde(rename = "run_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub run_ns: u64,
    /// As a share of the thread's wall time.
    pub run_share: Share,
    /// The part of `run_s` in backward of which the function is not known.
    #[serde(rename = "backward_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub backward_ns: u64,
    /// Functions, those with the most time first.
    pub functions: Vec<CompiledFunction>,
    /// Graph breaks that were seen, by file and line.
    pub graph_breaks: Vec<BreakSite>,
}

impl CompileTable {
    /// Whether no compilation was seen. Dynamo's own functions also run without one.
    pub fn is_empty(&self) -> bool {
        let compiles = self.stages.iter().any(|&(stage, ns)| {
            ns > 0 && !matches!(stage, CompileStage::Dynamo | CompileStage::Other)
        });
        !compiles && self.run_ns == 0 && self.functions.is_empty() && self.graph_breaks.is_empty()
    }
}

/// A part of a function that is compiled by itself: the function, and the line of the graph break
/// before it, or 0.
type Part = (usize, u32);

/// What a stack shows of compiling.
#[derive(Clone, Default)]
struct CompileFacts {
    /// What is being compiled, innermost first.
    subjects: Vec<Part>,
    stage: Option<CompileStage>,
    runs: Option<Runs>,
    /// Called by the engine of backward.
    in_engine: bool,
    /// Part of the stack was not read.
    is_partial: bool,
}

/// Whose compiled code runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    Function(usize),
    /// Called by the engine of backward.
    Backward,
    /// Of none that is known.
    Unknown,
}

/// A function while it is summed up.
struct Sum<'p> {
    name: &'p str,
    file: &'p str,
    line: u32,
    compile_ns: u64,
    run_ns: u64,
    /// Stretches of compilation by part.
    intervals: FxHashMap<u32, u32>,
}

struct Builder<'p> {
    profile: &'p Profile,
    sums: Vec<Sum<'p>>,
    index: FxHashMap<(&'p str, &'p str), usize>,
    breaks: BTreeSet<BreakSite>,
}

impl<'p> Builder<'p> {
    fn function(&mut self, name: &'p str, file: &'p str, line: u32) -> usize {
        let sums = &mut self.sums;
        let at = *self.index.entry((name, file)).or_insert_with(|| {
            sums.push(Sum {
                name,
                file,
                line: 0,
                compile_ns: 0,
                run_ns: 0,
                intervals: FxHashMap::default(),
            });
            sums.len() - 1
        });
        if let Some(sum) = sums.get_mut(at)
            && sum.line == 0
        {
            sum.line = line;
        }
        at
    }

    fn broken(&mut self, function: &'p Function, at: &'p GraphBreak) -> usize {
        self.breaks.insert(BreakSite {
            file: function.file.clone(),
            at: at.clone(),
        });
        self.function(&at.function, &function.file, 0)
    }

    /// A function that only wraps the call of a module goes by the module's class.
    fn wrapped(&mut self, function: &'p Function, outward: &[&'p ProfileFrame]) -> usize {
        let modules = &self.profile.nn_modules;
        let module = outward
            .iter()
            .find_map(|frame| modules.get(frame.nn_module?.index()));
        match module {
            Some(module) => self.function(&module.class, "", 0),
            None => self.function("inner", &function.file, function.first_line),
        }
    }

    fn seen(&mut self, stack: StackId) -> CompileFacts {
        let profile = self.profile;
        let frames: Vec<&'p ProfileFrame> = profile
            .stacks
            .leaf_to_root(Some(stack))
            .map(|frame| profile.stacks.frame(frame))
            .collect();
        let mut seen = CompileFacts::default();
        let (mut graph, mut generated) = (false, false);
        for (at, frame) in frames.iter().enumerate() {
            seen.is_partial |= frame.partial.is_some();
            let Some(function) = profile.function(frame.function) else {
                continue;
            };
            let outward = frames.get(at + 1..).unwrap_or_default();
            seen.in_engine |= function.is_engine();
            if generated && seen.runs.is_none() {
                seen.runs = self.owner(function, outward);
            }
            match &function.compile {
                CompileMark::Stage(stage) => {
                    seen.stage = seen.stage.or(Some(*stage));
                    generated |= graph;
                }
                CompileMark::Generated => generated = true,
                CompileMark::Graph => graph = true,
                // A graph that a program makes and calls itself is no compiled code.
                CompileMark::None
                    if function.is_python && function.operator != OperatorMark::ModuleCall =>
                {
                    graph = false;
                }
                CompileMark::Resumed(place) => {
                    self.broken(function, place);
                }
                CompileMark::Compiles(subject) => {
                    let part = match subject {
                        Subject::Function(name) => {
                            let line = function.first_line;
                            (self.function(name, &function.file, line), 0)
                        }
                        Subject::Rest(place) => (self.broken(function, place), place.line),
                        Subject::Wrapper => (self.wrapped(function, outward), 0),
                    };
                    seen.subjects.push(part);
                }
                CompileMark::None
                | CompileMark::Between
                | CompileMark::Wrapper
                | CompileMark::Backward => {}
            }
        }
        if generated && seen.runs.is_none() {
            seen.runs = Some(Runs::Unknown);
        }
        seen
    }

    /// The owner of compiled code that `function` calls; `None` if it is nearer to the root.
    fn owner(&mut self, function: &'p Function, outward: &[&'p ProfileFrame]) -> Option<Runs> {
        if function.is_engine() {
            return Some(Runs::Backward);
        }
        if !function.is_python || function.operator == OperatorMark::ModuleCall {
            return None;
        }
        match &function.compile {
            CompileMark::None => {
                let line = function.first_line;
                Some(Runs::Function(self.function(
                    &function.name,
                    &function.file,
                    line,
                )))
            }
            CompileMark::Resumed(place) => Some(Runs::Function(self.broken(function, place))),
            CompileMark::Wrapper => Some(Runs::Function(self.wrapped(function, outward))),
            _ => None,
        }
    }
}

/// Times that are not of one function.
#[derive(Default)]
struct Totals {
    stages: FxHashMap<CompileStage, u64>,
    compile_ns: u64,
    /// Of compiling: in backward, and else, without a function.
    compile_backward_ns: u64,
    unknown_ns: u64,
    run_ns: u64,
    backward_ns: u64,
}

/// What torch.compile did in a thread's samples, which are sorted by start. `wall_ns` and `ticks`
/// are their sums.
pub fn compile(
    profile: &Profile,
    samples: &[&ProfileSample],
    wall_ns: u64,
    ticks: u64,
) -> CompileTable {
    if !has_compiler(profile) {
        return CompileTable::default();
    }
    let mut builder = Builder {
        profile,
        sums: Vec::new(),
        index: FxHashMap::default(),
        breaks: BTreeSet::new(),
    };
    let mut seen_on: FxHashMap<StackId, CompileFacts> = FxHashMap::default();
    let mut totals = Totals::default();
    let mut open: FxHashSet<Part> = FxHashSet::default();
    for sample in samples {
        let Some(stack) = sample.stack else {
            continue;
        };
        let seen = seen_on
            .entry(stack)
            .or_insert_with(|| builder.seen(stack))
            .clone();
        add(&mut builder, &mut totals, sample, &seen);
        // Deferred time counts for a later capture, whose stack did not exist yet at that time.
        if !sample.capture.is_fresh() {
            continue;
        }
        // A sample of compiling without its function, or one that was not read to its end, may be
        // of the same.
        let tells = sample.phase != Phase::Compile && !seen.is_partial;
        if tells || !seen.subjects.is_empty() {
            for part in &seen.subjects {
                if !open.contains(part)
                    && let Some(sum) = builder.sums.get_mut(part.0)
                {
                    *sum.intervals.entry(part.1).or_default() += 1;
                }
            }
            open = seen.subjects.iter().copied().collect();
        }
    }
    // Where one function alone was compiled, backward's graphs can be of no other.
    let only = match with_compiled_code(&builder.sums)[..] {
        [only] => Some(only),
        _ => None,
    };
    if let Some(sum) = only.and_then(|only| builder.sums.get_mut(only)) {
        sum.run_ns = sum.run_ns.saturating_add(totals.backward_ns);
        sum.compile_ns = sum.compile_ns.saturating_add(totals.compile_backward_ns);
        (totals.backward_ns, totals.compile_backward_ns) = (0, 0);
    }
    let shares = shares(samples, &seen_on, wall_ns, ticks, builder.sums.len(), only);
    table(builder, &totals, &shares)
}

/// Whether anything in the profile speaks of torch.compile: most do not, and are spared the rest.
fn has_compiler(profile: &Profile) -> bool {
    profile.functions.iter().any(|function| {
        matches!(
            function.compile,
            CompileMark::Generated | CompileMark::Compiles(_) | CompileMark::Stage(_)
        )
    })
}

fn add(
    builder: &mut Builder<'_>,
    totals: &mut Totals,
    sample: &ProfileSample,
    seen: &CompileFacts,
) {
    let ns = sample.weight_ns;
    if sample.phase == Phase::Compile {
        totals.compile_ns = totals.compile_ns.saturating_add(ns);
        let stage = seen.stage.unwrap_or(CompileStage::Other);
        let sum = totals.stages.entry(stage).or_default();
        *sum = sum.saturating_add(ns);
        match seen
            .subjects
            .first()
            .and_then(|&(at, _)| builder.sums.get_mut(at))
        {
            Some(sum) => sum.compile_ns = sum.compile_ns.saturating_add(ns),
            None if seen.in_engine => {
                totals.compile_backward_ns = totals.compile_backward_ns.saturating_add(ns);
            }
            None => totals.unknown_ns = totals.unknown_ns.saturating_add(ns),
        }
        return;
    }
    let Some(runs) = seen.runs else {
        return;
    };
    totals.run_ns = totals.run_ns.saturating_add(ns);
    match runs {
        Runs::Function(at) => {
            if let Some(sum) = builder.sums.get_mut(at) {
                sum.run_ns = sum.run_ns.saturating_add(ns);
            }
        }
        Runs::Backward => totals.backward_ns = totals.backward_ns.saturating_add(ns),
        Runs::Unknown => {}
    }
}

/// The functions that ran compiled code, or were compiled.
fn with_compiled_code(sums: &[Sum<'_>]) -> Vec<usize> {
    let known = sums.iter().enumerate();
    known
        .filter(|(_, sum)| sum.run_ns > 0 || sum.compile_ns > 0)
        .map(|(at, _)| at)
        .collect()
}

/// Shares by category: compiling, running, then compiling and running of each function.
fn shares(
    samples: &[&ProfileSample],
    seen_on: &FxHashMap<StackId, CompileFacts>,
    wall_ns: u64,
    ticks: u64,
    functions: usize,
    backward_of: Option<usize>,
) -> Shares {
    let mut shares = Shares::new(wall_ns, ticks, 2 + 2 * functions);
    let mut parts = Vec::with_capacity(2);
    for sample in samples {
        parts.clear();
        let seen = sample.stack.and_then(|stack| seen_on.get(&stack));
        if let Some(seen) = seen {
            if sample.phase == Phase::Compile {
                parts.push((0, sample.weight_ns));
                let subject = seen.subjects.first().map(|&(at, _)| at);
                let subject = subject.or(backward_of.filter(|_| seen.in_engine));
                parts.extend(subject.map(|at| (2 + 2 * at, sample.weight_ns)));
            } else if let Some(runs) = seen.runs {
                parts.push((1, sample.weight_ns));
                let function = match runs {
                    Runs::Function(at) => Some(at),
                    Runs::Backward => backward_of,
                    Runs::Unknown => None,
                };
                parts.extend(function.map(|at| (3 + 2 * at, sample.weight_ns)));
            }
        }
        // A sample of neither passes time, too.
        shares.add(sample.weight_ns, sample.ticks, &parts);
    }
    shares
}

fn table(builder: Builder<'_>, totals: &Totals, shares: &Shares) -> CompileTable {
    let mut functions: Vec<CompiledFunction> = builder
        .sums
        .iter()
        .enumerate()
        .filter(|(_, sum)| sum.compile_ns > 0 || sum.run_ns > 0)
        .map(|(at, sum)| CompiledFunction {
            name: sum.name.to_owned(),
            file: sum.file.to_owned(),
            line: sum.line,
            compile_ns: sum.compile_ns,
            compile_share: shares.share(2 + 2 * at),
            compilations: sum.intervals.values().sum(),
            recompilations: sum.intervals.values().map(|count| count - 1).sum(),
            run_ns: sum.run_ns,
            run_share: shares.share(3 + 2 * at),
        })
        .collect();
    functions.sort_by(|left, right| {
        let key = |each: &CompiledFunction| Reverse(each.compile_ns.saturating_add(each.run_ns));
        (key(left), &left.name, &left.file).cmp(&(key(right), &right.name, &right.file))
    });
    CompileTable {
        compile_ns: totals.compile_ns,
        compile_share: shares.share(0),
        stages: CompileStage::ALL
            .iter()
            .filter_map(|&stage| Some((stage, *totals.stages.get(&stage)?)))
            .collect(),
        unknown_ns: totals.unknown_ns.saturating_add(totals.compile_backward_ns),
        run_ns: totals.run_ns,
        run_share: shares.share(1),
        backward_ns: totals.backward_ns,
        functions,
        graph_breaks: builder.breaks.into_iter().collect(),
    }
}
