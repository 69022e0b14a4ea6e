//! `nn.Module`s of the training thread's forward passes.

use crate::analysis::Analysis;
use crate::analysis::intervals::Share;
use crate::analysis::modules::{ModuleGroup, ModuleTime};
use crate::analysis::summary::ProcessSummary;
use crate::model::seconds::of as seconds;
use crate::report::label::count;
use crate::report::table::{Column, Kind, Value};
use schemars::JsonSchema;
use serde::Serialize;
use std::cmp::Reverse;

/// Levels of the tree by which text is indented.
const MOST_INDENTED: usize = 12;

/// Modules that differ by a number alone.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Group {
    /// How many they are.
    pub count: usize,
    /// As of one of them; its path has `*` for the number.
    #[serde(flatten)]
    pub module: Module,
    /// The end of its path, from the module above it that is listed.
    #[serde(skip)]
    pub name: String,
}

/// One module.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Module {
    /// Class of the outermost module.
    pub root: String,
    /// Counts outermost modules of that class from 0.
    pub number: u32,
    /// As `named_modules()` has it, less wrappers; empty for the outermost module.
    pub path: String,
    /// Its class; null for a container that was indexed and never called.
    pub class: Option<String>,
    /// Time in which it was the innermost module.
    pub self_s: f64,
    /// Time in which it, or a module below it, was called.
    pub total_s: f64,
    /// The part of `total_s` in which the innermost module was in evaluation mode.
    pub eval_s: f64,
    /// Training time (`total_s` less `eval_s`; all of it where nothing is trained) per step, ms;
    /// null where no steps are known.
    pub per_step_ms: Option<f64>,
    /// Own time as a share of the thread's wall time.
    pub self_share: Share,
    /// Total time as a share of the thread's wall time.
    pub total_share: Share,
    /// 0 for the outermost module.
    #[serde(skip)]
    pub depth: usize,
}

type Col = Column<Group>;

/// Modules, or groups of them.
pub const MODULES: &[Col] = &[
    Col::new(Kind::Seconds, "self_s", "self s", |row| {
        row.module.self_s.into()
    }),
    Col::new(Kind::Seconds, "total_s", "total s", |row| {
        row.module.total_s.into()
    }),
    Col::new(Kind::Milliseconds, "per_step_ms", "ms/step", |row| {
        row.module.per_step_ms.into()
    }),
    Col::new(Kind::Share, "total_share", "total %", |row| {
        row.module.total_share.into()
    }),
    Col::words("module", shown),
    Col::data(Kind::Text, "root", |row| (&row.module.root).into()),
    Col::data(Kind::Count, "number", |row| row.module.number.into()),
    Col::data(Kind::Text, "path", |row| (&row.module.path).into()),
    Col::data(Kind::Text, "class", |row| row.module.class.as_ref().into()),
    Col::data(Kind::Count, "count", |row| row.count.into()),
    Col::data(Kind::Seconds, "eval_s", |row| row.module.eval_s.into()),
    Col::data(Kind::Share, "self_share", |row| {
        row.module.self_share.into()
    }),
];

/// Its name below what holds it, and what is known of it: `  conv (3 x Conv2d, 50 % eval)`.
fn shown(row: &Group) -> Value {
    let module = &row.module;
    let mut about = Vec::new();
    match (
        module.class.as_ref().filter(|_| module.depth > 0),
        row.count,
    ) {
        (Some(class), 1) => about.push(class.clone()),
        (Some(class), many) => about.push(format!("{} x {class}", count(many as u64))),
        (None, 1) => {}
        (None, many) => about.push(count(many as u64)),
    }
    if module.depth == 0 && module.number > 0 {
        about.push(format!("#{}", u64::from(module.number) + 1));
    }
    if module.eval_s > 0.0 && module.eval_s >= module.total_s {
        about.push("eval".to_owned());
    } else if module.eval_s > 0.0 {
        let share = module.eval_s / module.total_s.max(1e-9);
        about.push(format!("{:.0} % eval", share * 100.0));
    }
    let about = match about.is_empty() {
        true => String::new(),
        false => format!(" ({})", about.join(", ")),
    };
    let indent = 2 * module.depth.min(MOST_INDENTED);
    format!("{:indent$}{}{about}", "", row.name).into()
}

/// The modules of the primary process, each before those below it, siblings by total time: the
/// `most` with the most of it.
pub fn modules(analysis: &Analysis, most: usize) -> Vec<Module> {
    let Some(process) = analysis.primary() else {
        return Vec::new();
    };
    let shown = longest(&process.modules.modules, most, |module| module.total_ns);
    let shown = shown.into_iter();
    shown.map(|time| module(process, time)).collect()
}

/// Groups of them, likewise.
pub fn groups(analysis: &Analysis, most: usize) -> Vec<Group> {
    let Some(process) = analysis.primary() else {
        return Vec::new();
    };
    let shown = longest(&process.modules.groups, most, |group| group.time.total_ns);
    let group = |group: &ModuleGroup| Group {
        count: group.count,
        module: module(process, &group.time),
        name: group.name.clone(),
    };
    shown.into_iter().map(group).collect()
}

/// All modules, each a group of its own.
pub fn each_alone(analysis: &Analysis) -> Vec<Group> {
    let alone = |module: Module| Group {
        count: 1,
        name: module.path.clone(),
        module,
    };
    modules(analysis, usize::MAX)
        .into_iter()
        .map(alone)
        .collect()
}

/// Those with the most total time, in their order. What stands above one of them is among them: it
/// has no less time, and comes first.
fn longest<T>(rows: &[T], most: usize, total_ns: impl Fn(&T) -> u64) -> Vec<&T> {
    let mut ranked: Vec<(usize, &T)> = rows.iter().enumerate().collect();
    ranked.sort_by_key(|&(at, row)| (Reverse(total_ns(row)), at));
    ranked.truncate(most);
    ranked.sort_by_key(|&(at, _)| at);
    ranked.into_iter().map(|(_, row)| row).collect()
}

fn module(process: &ProcessSummary, time: &ModuleTime) -> Module {
    Module {
        root: time.root.clone(),
        number: time.number,
        path: time.path.clone(),
        class: (!time.class.is_empty()).then(|| time.class.clone()),
        self_s: seconds(time.self_ns),
        total_s: seconds(time.total_ns),
        eval_s: seconds(time.eval_ns),
        per_step_ms: process.per_step_ns(time).map(|ns| ns / 1e6),
        self_share: time.self_share,
        total_share: time.total_share,
        depth: time.depth,
    }
}
