//! Who holds how much: rows for the modules of a process, repeated ones as one.

use crate::analysis::module_groups::{Member, group};
use crate::model::held::{Held, HeldPart, add_part};

/// A module, or several that are alike, with all that is inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRow {
    /// Number of rows that contain it.
    pub depth: usize,
    /// Its name below the row that contains it: `transformer.h.*`.
    pub name: String,
    pub class: String,
    /// Number of modules.
    pub count: usize,
    /// What they hold, with all that is inside.
    pub parts: Vec<HeldPart>,
}

impl HeldRow {
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

struct Node {
    parent: Option<usize>,
    name: String,
    class: String,
    count: usize,
    own: u64,
    parts: Vec<HeldPart>,
    inside: Vec<usize>,
}

/// Rows with less than one in this many bytes are left out.
const LEAST: u64 = 100;

/// The `most` rows that hold most, each below the one that contains it. Modules with less than a
/// hundredth of all have none.
pub fn held_rows(held: &Held, most: usize) -> Vec<HeldRow> {
    let nodes = nodes(held);
    let bytes = |node: &Node| -> u64 { node.parts.iter().map(|part| part.bytes).sum() };
    let roots = nodes.iter().filter(|node| node.parent.is_none());
    let least = (roots.map(bytes).sum::<u64>() / LEAST).max(1);
    let mut order: Vec<usize> = (0..nodes.len())
        .filter(|&at| nodes.get(at).is_some_and(|node| bytes(node) >= least))
        .collect();
    // A container holds no less than what is inside, and comes first.
    order.sort_by_key(|&at| std::cmp::Reverse(nodes.get(at).map_or(0, bytes)));
    order.retain(|&at| nodes.get(at).is_some_and(|node| !passes_through(node)));
    order.truncate(most);
    let mut rows = Vec::new();
    let mut roots: Vec<usize> = (0..nodes.len())
        .filter(|&at| nodes.get(at).is_some_and(|node| node.parent.is_none()))
        .collect();
    roots.sort_by_key(|&at| std::cmp::Reverse(nodes.get(at).map_or(0, bytes)));
    let mut open: Vec<(usize, usize, String)> = roots
        .into_iter()
        .rev()
        .map(|at| (at, 0, String::new()))
        .collect();
    while let Some((at, depth, above)) = open.pop() {
        let Some(node) = nodes.get(at) else { continue };
        let name = match (above.is_empty(), node.name.is_empty()) {
            (true, _) => node.name.clone(),
            (_, true) => above,
            _ => format!("{above}.{}", node.name),
        };
        let is_shown = order.contains(&at);
        let (depth_inside, above) = match (is_shown, passes_through(node)) {
            (true, _) => (depth + 1, String::new()),
            (false, true) => (depth, name.clone()),
            (false, false) => continue,
        };
        if is_shown {
            rows.push(HeldRow {
                depth,
                name,
                class: node.class.clone(),
                count: node.count,
                parts: node.parts.clone(),
            });
        }
        let inside = node.inside.iter().rev();
        open.extend(inside.map(|&at| (at, depth_inside, above.clone())));
    }
    rows
}

/// Number of modules, or groups of modules, that [`held_rows`] could show.
pub fn rows_in_all(held: &Held) -> usize {
    let nodes = nodes(held);
    let rows = nodes
        .iter()
        .filter(|node| node.parts.iter().any(|part| part.bytes > 0) && !passes_through(node));
    rows.count()
}

/// Whether it holds nothing but one part: a wrapper, a list of layers.
fn passes_through(node: &Node) -> bool {
    node.own == 0 && node.inside.len() == 1
}

fn nodes(held: &Held) -> Vec<Node> {
    let members: Vec<Member<'_>> = held
        .modules
        .iter()
        .map(|module| Member {
            parent: module.parent,
            name: &module.name,
            class: &module.class,
        })
        .collect();
    let groups = group(&members);
    let mut nodes: Vec<Node> = Vec::with_capacity(groups.groups.len());
    for (at, group) in groups.groups.iter().enumerate() {
        if let Some(parent) = group.parent.and_then(|parent| nodes.get_mut(parent)) {
            parent.inside.push(at);
        }
        let first = held.modules.get(group.first);
        nodes.push(Node {
            parent: group.parent,
            name: group.name.clone(),
            class: first.map_or_else(String::new, |module| module.class.clone()),
            count: group.count,
            own: 0,
            parts: Vec::new(),
            inside: Vec::new(),
        });
    }
    for (module, &at) in held.modules.iter().zip(&groups.of) {
        if let Some(node) = nodes.get_mut(at) {
            node.own += module.parts.iter().map(|part| part.bytes).sum::<u64>();
        }
        let mut at = Some(at);
        while let Some(node) = at.and_then(|at| nodes.get_mut(at)) {
            for part in &module.parts {
                add_part(&mut node.parts, part);
            }
            at = node.parent;
        }
    }
    // Parts that hold nothing are no rows, and do not keep a container from passing through.
    let empty: Vec<bool> = nodes
        .iter()
        .map(|node| node.parts.iter().all(|part| part.bytes == 0))
        .collect();
    for node in &mut nodes {
        node.inside
            .retain(|&at| !empty.get(at).copied().unwrap_or(true));
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::held::{HeldModule, Holding};

    fn module(parent: Option<usize>, name: &str, class: &str, bytes: u64) -> HeldModule {
        let part = HeldPart {
            holding: Holding::Parameters,
            dtype: "float32".into(),
            device: "cpu".to_owned(),
            bytes,
            tensors: 1,
        };
        HeldModule {
            parent,
            name: name.to_owned(),
            class: class.to_owned(),
            parts: if bytes == 0 { Vec::new() } else { vec![part] },
        }
    }

    #[test]
    fn layers_are_one_row_and_wrappers_and_lists_none() {
        let held = Held {
            modules: vec![
                module(None, "ddp", "DistributedDataParallel", 0),
                module(Some(0), "", "Net", 0),
                module(Some(1), "stem", "Linear", 100),
                module(Some(1), "layers", "ModuleList", 0),
                module(Some(3), "0", "Block", 300),
                module(Some(3), "1", "Block", 500),
                module(Some(1), "drop", "Dropout", 0),
                module(Some(1), "tiny", "Linear", 2),
                module(None, "only in SGD", "", 50),
            ],
            ..Held::default()
        };
        let rows = held_rows(&held, 10);
        let shown: Vec<_> = rows
            .iter()
            .map(|row| (row.depth, row.name.as_str(), row.count, row.bytes()))
            .collect();
        assert_eq!(
            shown,
            [
                (0, "ddp", 1, 902),
                (1, "stem", 1, 100),
                (1, "layers.*", 2, 800),
                (0, "only in SGD", 1, 50),
            ]
        );
        assert_eq!(rows_in_all(&held), 5);
        assert_eq!(held_rows(&held, 2).len(), 2);
    }
}
