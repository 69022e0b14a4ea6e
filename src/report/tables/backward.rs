//! Backward on the training thread: the lines that called it, its nodes, and the modules that they
//! belong to.

use super::named_line;
use crate::analysis::Analysis;
use crate::analysis::backward::{BackwardLine, BackwardTable, ModuleBackward, NodeTime};
use crate::analysis::forward::{ForwardOrigin, of_nets};
use crate::analysis::intervals::Share;
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use crate::report::table::{Column, Kind, Value};
use crate::report::text::format::place_of;
use schemars::JsonSchema;
use serde::Serialize;

/// A line that called backward.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Line {
    /// The nearest file of the user's own code; null if there is none.
    pub file: Option<String>,
    pub function: Option<String>,
    pub line: Option<u32>,
    /// Time of backward under it.
    pub total_s: f64,
    /// As a share of the thread's wall time.
    pub share: Share,
}

/// A kind of node.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Node {
    /// `ConvolutionBackward0`.
    pub name: String,
    /// Time in which it was the innermost node.
    pub self_s: f64,
    /// Time in which it was on the stack.
    pub total_s: f64,
    /// Own time as a share of the thread's wall time.
    pub self_share: Share,
    /// How its modules are known: `module` (a single one), `class` (several of one class), `nets`
    /// (of several outermost modules, in each of one class), or why they are not: `outside` (its
    /// operator was called outside of modules), `several` (by modules of several classes), `seldom`
    /// (in too few ticks), `not_seen`.
    pub matched: &'static str,
    /// The classes of modules that called its operator.
    pub classes: Vec<String>,
    /// The module, if it is a single one.
    pub path: Option<String>,
    /// The modules as text; empty if none is known.
    #[serde(skip)]
    of: String,
}

/// A module, or all modules of a class.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Module {
    /// The class.
    pub class: String,
    /// Class of the outermost module; null if only the class is known.
    pub root: Option<String>,
    /// As in `named_modules()`; null if only the class is known.
    pub path: Option<String>,
    /// Own time of its nodes.
    pub self_s: f64,
    /// As a share of the thread's wall time.
    pub self_share: Share,
    /// The module or class as text.
    #[serde(skip)]
    of: String,
}

type LineCol = Column<Line>;
type NodeCol = Column<Node>;
type ModuleCol = Column<Module>;

/// Lines that called backward; their total has the column of the nodes' total.
pub const LINES: &[LineCol] = &[
    LineCol::new(Kind::Seconds, "total_s", "total s", |row| {
        row.total_s.into()
    })
    .width(18),
    LineCol::new(Kind::Share, "share", "share", |row| row.share.into()),
    LineCol::words("called at", shown_line),
    LineCol::data(Kind::Place, "at", |row| {
        Value::place(row.file.as_ref(), row.line)
    }),
    LineCol::data(Kind::Text, "function", |row| row.function.as_ref().into()),
];
pub const NODES: &[NodeCol] = &[
    NodeCol::new(Kind::Seconds, "self_s", "self s", |row| row.self_s.into()).adds_up(),
    NodeCol::new(Kind::Seconds, "total_s", "total s", |row| {
        row.total_s.into()
    }),
    NodeCol::new(Kind::Share, "self_share", "self %", |row| {
        row.self_share.into()
    }),
    NodeCol::words("node, and whose forward made it", |row| {
        match row.of.as_str() {
            "" => (&row.name).into(),
            of => format!("{} < {of}", row.name).into(),
        }
    }),
    NodeCol::data(Kind::Text, "name", |row| (&row.name).into()),
    NodeCol::data(Kind::Text, "matched", |row| row.matched.into()),
    NodeCol::data(Kind::Text, "classes", |row| row.classes.join(" ").into()),
    NodeCol::data(Kind::Text, "path", |row| row.path.as_ref().into()),
];
/// Modules, below the nodes: with a gap for the total, which they do not have.
pub const MODULES: &[ModuleCol] = &[
    ModuleCol::new(Kind::Seconds, "self_s", "self s", |row| row.self_s.into()),
    ModuleCol::words("", |_| "".into()).width(7),
    ModuleCol::new(Kind::Share, "self_share", "self %", |row| {
        row.self_share.into()
    }),
    ModuleCol::words("module", |row| format!("of {}", row.of).into()),
    ModuleCol::data(Kind::Text, "class", |row| (&row.class).into()),
    ModuleCol::data(Kind::Text, "root", |row| row.root.as_ref().into()),
    ModuleCol::data(Kind::Text, "path", |row| row.path.as_ref().into()),
];

fn shown_line(row: &Line) -> Value {
    match (&row.file, &row.function) {
        (Some(file), Some(function)) => {
            format!("{} {function}", place_of(file, row.line.unwrap_or(0))).into()
        }
        _ => "no line of your code".into(),
    }
}

fn table(analysis: &Analysis) -> Option<&BackwardTable> {
    Some(&analysis.primary()?.backward)
}

/// The first `most` lines that called backward, by descending time.
pub fn lines(profile: &Profile, analysis: &Analysis, most: usize) -> Vec<Line> {
    let lines = table(analysis).into_iter().flat_map(|table| &table.lines);
    lines.take(most).map(|each| line(profile, each)).collect()
}

/// The first `most` nodes, by descending own time.
pub fn nodes(profile: &Profile, analysis: &Analysis, most: usize) -> Vec<Node> {
    let nodes = table(analysis).into_iter().flat_map(|table| &table.nodes);
    nodes.take(most).map(|each| node(profile, each)).collect()
}

/// The first `most` modules that the nodes belong to, by descending time.
pub fn modules(profile: &Profile, analysis: &Analysis, most: usize) -> Vec<Module> {
    let modules = table(analysis).into_iter().flat_map(|table| &table.modules);
    modules
        .take(most)
        .map(|each| module(profile, each))
        .collect()
}

fn line(profile: &Profile, line: &BackwardLine) -> Line {
    let at = line.line.and_then(|line| named_line(profile, line));
    Line {
        file: at.map(|(function, _)| function.file.clone()),
        function: at.map(|(function, _)| function.name.clone()),
        line: at.map(|(_, line)| line),
        total_s: seconds(line.ns),
        share: line.share,
    }
}

fn node(profile: &Profile, node: &NodeTime) -> Node {
    let (matched, classes, id) = match &node.origin {
        ForwardOrigin::Module { id, class } => ("module", vec![class.clone()], Some(*id)),
        ForwardOrigin::Class(class) => ("class", vec![class.clone()], None),
        ForwardOrigin::Nets(nets) => {
            let mut classes: Vec<String> = nets.iter().map(|(class, _)| class.clone()).collect();
            classes.dedup();
            ("nets", classes, None)
        }
        ForwardOrigin::Outside => ("outside", Vec::new(), None),
        ForwardOrigin::Several(classes) => ("several", classes.clone(), None),
        ForwardOrigin::Seldom => ("seldom", Vec::new(), None),
        ForwardOrigin::NotSeen => ("not_seen", Vec::new(), None),
    };
    let info = id.and_then(|id| profile.nn_module(id));
    let of = match &node.origin {
        ForwardOrigin::Module { .. } => info.map_or(String::new(), |info| info.label()),
        ForwardOrigin::Class(class) => class.clone(),
        ForwardOrigin::Nets(nets) => of_nets(nets),
        ForwardOrigin::Several(classes) if classes.len() < 2 => {
            format!("{} and outside", classes.join(""))
        }
        ForwardOrigin::Several(classes) => classes.join(" or "),
        ForwardOrigin::Outside => "no module".to_owned(),
        ForwardOrigin::Seldom | ForwardOrigin::NotSeen => String::new(),
    };
    Node {
        name: node.name.clone(),
        self_s: seconds(node.self_ns),
        total_s: seconds(node.total_ns),
        self_share: node.share,
        matched,
        classes,
        path: info.map(|info| info.path.clone()),
        of,
    }
}

fn module(profile: &Profile, module: &ModuleBackward) -> Module {
    let info = module.module.and_then(|id| profile.nn_module(id));
    Module {
        class: module.class.clone(),
        root: info.map(|info| info.root.clone()),
        path: info.map(|info| info.path.clone()),
        self_s: seconds(module.ns),
        self_share: module.share,
        of: info.map_or_else(|| format!("all {}", module.class), |info| info.label()),
    }
}
