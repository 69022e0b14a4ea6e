//! `nn.Module`s of the training thread's forward passes.

use crate::analysis::Analysis;
use crate::analysis::modules::{ModuleGroup, ModuleTime, ModuleTree};
use crate::model::seconds::of as seconds;
use crate::report::label::count;
use crate::report::table::{Column, Kind, Value};
use std::cmp::Reverse;

/// Maximum number of levels by which text is indented.
const MOST_INDENTED: usize = 12;

type Col = Column<ModuleGroup>;

/// Modules, or groups of them.
pub const MODULES: &[Col] = &[
    Col::new(Kind::Seconds, "self_s", "self s", |row| {
        seconds(row.time.self_ns).into()
    }),
    Col::new(Kind::Seconds, "total_s", "total s", |row| {
        seconds(row.time.total_ns).into()
    }),
    Col::new(Kind::Milliseconds, "per_step_ms", "ms/step", |row| {
        row.time.per_step_ms.into()
    }),
    Col::new(Kind::Share, "total_share", "total %", |row| {
        row.time.total_share.into()
    }),
    Col::words("module", shown),
    Col::data(Kind::Text, "root", |row| (&row.time.root).into()),
    Col::data(Kind::Count, "number", |row| row.time.number.into()),
    Col::data(Kind::Text, "path", |row| (&row.time.path).into()),
    Col::data(Kind::Text, "class", |row| Value::text(&row.time.class)),
    Col::data(Kind::Count, "count", |row| row.count.into()),
    Col::data(Kind::Seconds, "eval_s", |row| {
        seconds(row.time.eval_ns).into()
    }),
    Col::data(Kind::Share, "self_share", |row| row.time.self_share.into()),
];

/// Its name relative to its parent, and its class and count: `  conv (3 x Conv2d, 50 % eval)`.
fn shown(row: &ModuleGroup) -> Value {
    let module = &row.time;
    let mut about = Vec::new();
    match (
        Some(&module.class).filter(|class| module.depth > 0 && !class.is_empty()),
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
    if module.eval_ns > 0 && module.eval_ns >= module.total_ns {
        about.push("eval".to_owned());
    } else if module.eval_ns > 0 {
        let share = module.eval_ns as f64 / module.total_ns.max(1) as f64;
        about.push(format!("{:.0} % eval", share * 100.0));
    }
    let about = match about.is_empty() {
        true => String::new(),
        false => format!(" ({})", about.join(", ")),
    };
    let indent = 2 * module.depth.min(MOST_INDENTED);
    format!("{:indent$}{}{about}", "", row.name).into()
}

fn tree(analysis: &Analysis) -> Option<&ModuleTree> {
    Some(&analysis.primary()?.modules)
}

/// The `most` modules of the primary process with the most total time, each before those below it,
/// siblings by total time.
pub fn modules(analysis: &Analysis, most: usize) -> Vec<ModuleTime> {
    let modules = tree(analysis).map_or(&[][..], |tree| &tree.modules);
    longest(modules, most, |module| module.total_ns)
}

/// The same for groups.
pub fn groups(analysis: &Analysis, most: usize) -> Vec<ModuleGroup> {
    let groups = tree(analysis).map_or(&[][..], |tree| &tree.groups);
    longest(groups, most, |group| group.time.total_ns)
}

/// All modules, each a group of its own.
pub fn each_alone(analysis: &Analysis) -> Vec<ModuleGroup> {
    let alone = |time: ModuleTime| ModuleGroup {
        count: 1,
        name: time.path.clone(),
        time,
    };
    modules(analysis, usize::MAX)
        .into_iter()
        .map(alone)
        .collect()
}

/// The rows with the most total time, in their order. A row's parents are included: they have no
/// less time, and come first.
fn longest<T: Clone>(rows: &[T], most: usize, total_ns: impl Fn(&T) -> u64) -> Vec<T> {
    let mut ranked: Vec<(usize, &T)> = rows.iter().enumerate().collect();
    ranked.sort_by_key(|&(at, row)| (Reverse(total_ns(row)), at));
    ranked.truncate(most);
    ranked.sort_by_key(|&(at, _)| at);
    ranked.into_iter().map(|(_, row)| row.clone()).collect()
}
