//! A prefix tree of stacks: where ranks part.

use super::verdict::doing;
use crate::model::dump::{DumpedFrame, DumpedThread};
use rustc_hash::FxHashMap;

/// A node of the tree: a frame, and the stacks that have it and all that lead to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub label: Label,
    /// Indices of the stacks, ascending.
    pub stacks: Vec<usize>,
    /// What they call next: fewest stacks first.
    pub children: Vec<Node>,
}

/// What a node is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Label {
    #[default]
    Root,
    /// A Python function, and its line.
    Frame {
        function: String,
        file: String,
        line: u32,
    },
    /// The end of a stack: what the thread does there.
    Doing(String),
}

/// The deepest stack that is drawn: frames nearer to the root.
const MAX_DEPTH: usize = 128;

/// The tree of the Python frames of `threads`, root first; without Python of their native frames.
pub fn tree<'d>(threads: impl Iterator<Item = Option<&'d DumpedThread>>) -> Node {
    let mut nodes = vec![Building::default()];
    for (stack, thread) in threads.enumerate() {
        let Some(thread) = thread else {
            continue;
        };
        let mut at = 0;
        for label in labels(thread) {
            at = match nodes[at].children.get(&label) {
                Some(&child) => child,
                None => {
                    nodes.push(Building::default());
                    let child = nodes.len() - 1;
                    nodes[at].children.insert(label, child);
                    child
                }
            };
            nodes[at].stacks.push(stack);
        }
    }
    let label = Label::Root;
    built(&nodes, 0, label)
}

/// A node by its index, while the tree grows.
#[derive(Default)]
struct Building {
    stacks: Vec<usize>,
    children: FxHashMap<Label, usize>,
}

fn labels(thread: &DumpedThread) -> Vec<Label> {
    let has_python = thread.frames.iter().any(|frame| frame.is_python);
    let of = |frame: &DumpedFrame| Label::Frame {
        function: frame.name.clone(),
        file: frame.file.clone(),
        line: frame.line,
    };
    let frames = thread.frames.iter().rev();
    let mut labels: Vec<Label> = frames
        .filter(|frame| frame.is_python || !has_python)
        .take(MAX_DEPTH)
        .map(of)
        .collect();
    labels.push(Label::Doing(doing(thread)));
    labels
}

/// At most [`MAX_DEPTH`] deep.
fn built(nodes: &[Building], at: usize, label: Label) -> Node {
    let Some(node) = nodes.get(at) else {
        return Node::default();
    };
    let mut children: Vec<Node> = node
        .children
        .iter()
        .map(|(label, &child)| built(nodes, child, label.clone()))
        .collect();
    children.sort_by_key(|child| (child.stacks.len(), child.stacks.first().copied()));
    Node {
        label,
        stacks: node.stacks.clone(),
        children,
    }
}

#[cfg(test)]
mod tests {
    use super::super::built::{thread, waiting};
    use super::*;
    use crate::model::wait::WaitKind;

    #[test]
    fn stacks_part_where_they_differ_and_the_odd_one_comes_first() {
        let waits = waiting(
            1,
            &["backward:7", "main:3"],
            WaitKind::Collective,
            "all_reduce",
        );
        let reads = waiting(1, &["next:8", "main:2"], WaitKind::Io, "read");
        let other = waiting(1, &["next:8", "main:3"], WaitKind::Io, "read");
        let threads = [Some(&waits), Some(&other), None, Some(&waits), Some(&reads)];
        let tree = tree(threads.into_iter());
        let shape = |node: &Node| -> Vec<Vec<usize>> {
            node.children
                .iter()
                .map(|child| child.stacks.clone())
                .collect()
        };
        assert_eq!(shape(&tree), [vec![4], vec![0, 1, 3]]);
        assert_eq!(shape(&tree.children[1]), [vec![1], vec![0, 3]]);
        let leaf = &tree.children[1].children[1].children[0];
        assert_eq!(leaf.label, Label::Doing("all_reduce".to_owned()));
        let deep: Vec<String> = (0..5000).map(|number| format!("f:{number}")).collect();
        let deep: Vec<&str> = deep.iter().map(String::as_str).collect();
        let deep = thread(1, &deep);
        let deep = super::tree(std::iter::once(Some(&deep)));
        assert_eq!(deep.children.len(), 1);
    }
}
