//! The tree of modules.

use super::{Both, MAX_ROWS, Row, Table, both, time_cells, time_columns, weight};
use crate::live::store::LiveProcess;
use crate::live::sums::ModuleKey;
use crate::report::text::format::printable;
use crate::top::state::{RowKey, Sort, State};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Levels of the tree that are open by themselves.
const OPEN_LEVELS: usize = 2;

/// The tree of modules. A branch's children are those whose path is one part longer.
pub(super) fn table(process: &LiveProcess, state: &State) -> Table {
    let all: FxHashMap<ModuleKey, Both> = both(&process.now.modules, &process.since.modules)
        .into_iter()
        .collect();
    let mut children: FxHashMap<Option<ModuleKey>, Vec<ModuleKey>> = FxHashMap::default();
    for key in all.keys() {
        let mut above = key.clone();
        let parent = above.path.pop().map(|_| above);
        // A module whose parents were never seen is shown at the top level.
        let parent = parent.filter(|parent| all.contains_key(parent));
        children.entry(parent).or_default().push(key.clone());
    }
    for list in children.values_mut() {
        list.sort_by_key(|key| {
            let both = all.get(key).copied().unwrap_or_default();
            (Reverse(weight(total_of(state.sort), &both)), key.clone())
        });
    }
    let mut rows = Vec::new();
    let mut open: Vec<(ModuleKey, usize)> = children
        .get(&None)
        .into_iter()
        .flatten()
        .rev()
        .map(|key| (key.clone(), 0))
        .collect();
    while let Some((key, depth)) = open.pop() {
        let below = children.get(&Some(key.clone()));
        let path = module_path(&key);
        let is_open = (depth + 1 < OPEN_LEVELS) != state.toggled.contains(&path);
        // A filter searches the whole tree.
        let shows = is_open || !state.filter.is_empty();
        let mut cells = time_cells(process, &all.get(&key).copied().unwrap_or_default());
        let sign = match (below.is_some(), shows) {
            (false, _) => ' ',
            (true, true) => '-',
            (true, false) => '+',
        };
        let class = process
            .since
            .classes
            .get(&key)
            .or_else(|| process.now.classes.get(&key))
            .filter(|_| !key.path.is_empty());
        let class = class.map_or_else(String::new, |class| format!(" ({})", printable(class)));
        let name = key.path.last().unwrap_or(&key.root.0);
        let number = match (key.path.is_empty(), key.root.1) {
            (true, 1..) => format!(" #{}", key.root.1 + 1),
            _ => String::new(),
        };
        let indent = "  ".repeat(depth);
        cells.push(format!("{indent}{sign} {}{number}{class}", printable(name)));
        rows.push(Row {
            cells,
            key: match below {
                Some(_) => RowKey::Branch(path, is_open),
                None => RowKey::None,
            },
            bold: false,
        });
        if let Some(below) = below.filter(|_| shows) {
            open.extend(below.iter().rev().map(|key| (key.clone(), depth + 1)));
        }
        if rows.len() > MAX_ROWS {
            break;
        }
    }
    Table {
        columns: time_columns(state.sort, "Module (forward only; + and - fold)"),
        rows,
        empty: "no nn.Module seen in a forward pass yet".to_owned(),
    }
}

/// A tree is in the order of totals: a branch has no less than what is below it.
fn total_of(sort: Sort) -> Sort {
    match sort {
        Sort::OwnNow | Sort::TotalNow => Sort::TotalNow,
        Sort::OwnSince | Sort::TotalSince => Sort::TotalSince,
    }
}

fn module_path(key: &ModuleKey) -> String {
    format!("{}#{}.{}", key.root.0, key.root.1, key.path.join("."))
}
