//! The stacks of the samples, with their frames, functions and facts. Only what occurs is written.

use super::columns::{Column, Columns};
use super::samples::Contexts;
use crate::model::facts::Line;
use crate::model::ids::{ChainId, FunctionId, StackId};
use crate::model::operator::OperatorMark;
use crate::model::profile::Profile;
use crate::model::stack_table::StackTable;
use crate::report::label::{LONG, clean, is_start};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::hash::Hash;

/// Numbers of ids, in the order in which they were first asked for.
#[derive(Debug)]
struct Numbers<I> {
    list: Vec<I>,
    index: FxHashMap<I, usize>,
}

impl<I: Copy + Eq + Hash> Numbers<I> {
    fn new() -> Self {
        Self {
            list: Vec::new(),
            index: FxHashMap::default(),
        }
    }

    fn of(&mut self, id: I) -> usize {
        let list = &mut self.list;
        *self.index.entry(id).or_insert_with(|| {
            list.push(id);
            list.len() - 1
        })
    }
}

/// Functions as JSON, a list for each field.
#[derive(Debug, Default, Serialize)]
pub(super) struct Functions {
    name: Vec<String>,
    /// The short name where it differs, else empty.
    short: Vec<String>,
    /// Into `files`.
    file: Vec<usize>,
    files: Vec<String>,
    line: Vec<u32>,
    kind: Vec<usize>,
    /// 1 Python, 2 plumbing, 4 start code, 8 calls an `nn.Module`.
    flags: Vec<u32>,
}

/// Writes stacks and facts, and returns the number of each stack that a context has, and the
/// functions.
pub(super) fn write(
    profile: &Profile,
    contexts: &Contexts,
    columns: &mut Columns,
) -> (FxHashMap<StackId, usize>, Functions) {
    let known = profile.stacks.stacks().len();
    let mut leaves = Numbers::new();
    let used = contexts.list.iter().filter_map(|context| context.stack);
    for stack in used.filter(|stack| stack.index() < known) {
        leaves.of(stack);
    }
    let mut functions = Numbers::new();
    let numbers = frames(profile, &leaves.list, &mut functions, columns);
    facts(profile, &leaves.list, &numbers, &mut functions, columns);
    chains(profile, columns);
    (leaves.index, described(profile, &functions.list))
}

/// Writes the stacks with all that they are made of, parents first, and the frames; returns the
/// numbers of the stacks.
fn frames(
    profile: &Profile,
    leaves: &[StackId],
    functions: &mut Numbers<FunctionId>,
    columns: &mut Columns,
) -> FxHashMap<StackId, usize> {
    let mut wanted = vec![false; profile.stacks.stacks().len()];
    for &leaf in leaves {
        let mut next = Some(leaf);
        while let Some(stack) = next
            && let Some(wanted) = wanted.get_mut(stack.index())
            && !*wanted
        {
            *wanted = true;
            next = profile.stacks.parent(stack);
        }
    }
    let mut frames = Numbers::new();
    let mut numbers = FxHashMap::default();
    let (mut parents, mut of_stack) = (Column::default(), Column::default());
    for (at, (parent, frame)) in profile.stacks.stacks().iter().enumerate() {
        if wanted.get(at) != Some(&true) {
            continue;
        }
        let number = numbers.len();
        let parent = parent.and_then(|parent| numbers.get(&parent));
        parents.push(parent.map_or(0, |&parent: &usize| (number - parent) as u64));
        of_stack.push(frames.of(*frame) as u64);
        numbers.insert(StackId::from_index(at), number);
    }
    columns.add("stack.parent", &parents);
    columns.add("stack.frame", &of_stack);
    let (mut function, mut line) = (Column::default(), Column::default());
    let (mut module, mut marks) = (Column::default(), Column::default());
    for &id in &frames.list {
        let frame = profile.stacks.frame(id);
        function.push(functions.of(frame.function) as u64);
        line.push(u64::from(frame.line));
        module.push_option(frame.nn_module.map(|module| module.index()));
        let guessed = frame.trust.is_some_and(|trust| trust.is_guess());
        let partial = frame.partial.map_or(0, |reason| reason as u64 + 1);
        marks.push(u64::from(guessed) | partial << 1);
    }
    columns.add("frame.function", &function);
    columns.add("frame.line", &line);
    columns.add("frame.module", &module);
    columns.add("frame.marks", &marks);
    numbers
}

/// Writes what is known about each stack that a context has.
fn facts(
    profile: &Profile,
    leaves: &[StackId],
    numbers: &FxHashMap<StackId, usize>,
    functions: &mut Numbers<FunctionId>,
    columns: &mut Columns,
) {
    let facts = &profile.facts;
    let mut stack = Column::default();
    let (mut user, mut near) = (Lines::default(), Lines::default());
    let mut python = Lines::default();
    let (mut native, mut flags) = (Column::default(), Column::default());
    let mut operators = Column::default();
    let (mut nodes, mut modules) = (Column::default(), Column::default());
    for id in leaves {
        let of_stack = facts.of(Some(*id));
        stack.push(numbers.get(id).map_or(0, |&number| number as u64));
        user.push(of_stack.user_line, functions);
        near.push(of_stack.line(), functions);
        python.push(of_stack.python_leaf, functions);
        native.push_option(of_stack.native_leaf.map(|id| functions.of(id)));
        let index = |chain: Option<ChainId>| chain.map(|chain| chain.index());
        operators.push_option(index(of_stack.operators));
        nodes.push_option(index(of_stack.nodes));
        modules.push_option(index(of_stack.modules));
        flags.push(u64::from(of_stack.is_in_operator));
    }
    columns.add("leaf.stack", &stack);
    for (name, lines) in [("user", user), ("near", near), ("python", python)] {
        columns.add(format!("leaf.{name}.function"), &lines.function);
        columns.add(format!("leaf.{name}.line"), &lines.line);
    }
    columns.add("leaf.native", &native);
    columns.add("leaf.operators", &operators);
    columns.add("leaf.nodes", &nodes);
    columns.add("leaf.modules", &modules);
    columns.add("leaf.flags", &flags);
}

/// Lines of functions: one more than the function's number, 0 for none.
#[derive(Debug, Default)]
struct Lines {
    function: Column,
    line: Column,
}

impl Lines {
    fn push(&mut self, line: Option<Line>, functions: &mut Numbers<FunctionId>) {
        let number = line.map(|(function, _)| functions.of(function));
        self.function.push_option(number);
        self.line.push(line.map_or(0, |(_, line)| u64::from(line)));
    }
}

/// Writes the chains of operators, nodes and modules, whose numbers are their ids.
fn chains(profile: &Profile, columns: &mut Columns) {
    let facts = &profile.facts;
    chain(columns, "operators", &facts.operator_chains, |site| {
        site.name.index()
    });
    chain(columns, "nodes", &facts.node_chains, |name| name.index());
    chain(columns, "modules", &facts.module_chains, |id| id.index());
}

/// Each has its parent, which lies outward, and what it adds.
fn chain<F>(
    columns: &mut Columns,
    name: &str,
    table: &StackTable<F, ChainId>,
    value: impl Fn(&F) -> usize,
) {
    let (mut parents, mut values) = (Column::default(), Column::default());
    for (parent, frame) in table.stacks() {
        parents.push_option(parent.map(|parent| parent.index()));
        values.push(table.frames().get(frame.index()).map_or(0, &value) as u64);
    }
    columns.add(format!("chain.{name}.parent"), &parents);
    columns.add(format!("chain.{name}.value"), &values);
}

fn described(profile: &Profile, used: &[FunctionId]) -> Functions {
    let mut functions = Functions::default();
    let mut files: FxHashMap<&str, usize> = FxHashMap::default();
    for &id in used {
        let Some(function) = profile.function(id) else {
            functions.push_unknown(&mut files);
            continue;
        };
        let file = functions.file_number(&mut files, &function.file);
        let short = match function.short_name == function.name {
            true => String::new(),
            false => clean(&function.short_name, LONG),
        };
        functions.name.push(clean(&function.name, LONG));
        functions.short.push(short);
        functions.file.push(file);
        functions.line.push(function.first_line);
        functions.kind.push(function.kind as usize);
        let start = !function.is_python && is_start(&function.file, &function.name);
        functions.flags.push(
            u32::from(function.is_python)
                | u32::from(function.plumbing) << 1
                | u32::from(start) << 2
                | u32::from(function.operator == OperatorMark::ModuleCall) << 3,
        );
    }
    functions
}

impl Functions {
    fn file_number<'p>(&mut self, known: &mut FxHashMap<&'p str, usize>, file: &'p str) -> usize {
        let files = &mut self.files;
        *known.entry(file).or_insert_with(|| {
            files.push(clean(file, LONG));
            files.len() - 1
        })
    }

    fn push_unknown(&mut self, known: &mut FxHashMap<&str, usize>) {
        let file = self.file_number(known, "");
        self.name.push("[unknown function]".to_owned());
        self.short.push(String::new());
        self.file.push(file);
        self.line.push(0);
        self.kind
            .push(crate::model::category::FrameKind::Marker as usize);
        self.flags.push(0);
    }
}
