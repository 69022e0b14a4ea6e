//! Functions that torch.compile compiled, and where it cut them in two.

use crate::analysis::Analysis;
use crate::analysis::compile::{BreakSite, CompileTable, CompiledFunction};
use crate::model::seconds::of as seconds;
use crate::report::label::count;
use crate::report::table::{Column, Cut, In, Kind, Value};
use crate::report::text::format::place_of;
use schemars::JsonSchema;
use serde::Serialize;

/// A graph break.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct GraphBreak {
    /// The file.
    pub file: String,
    /// The line.
    pub line: u32,
    /// The function.
    pub function: String,
}

type Col = Column<CompiledFunction>;
type BreakCol = Column<GraphBreak>;

/// Functions.
pub const FUNCTIONS: &[Col] = &[
    Col::new(Kind::Seconds, "compile_s", "compile s", |row| {
        seconds(row.compile_ns).into()
    })
    .width(11)
    .adds_up(),
    Col::new(Kind::Seconds, "run_s", "run s", |row| {
        seconds(row.run_ns).into()
    })
    .width(10)
    .adds_up(),
    Col::new(Kind::Share, "run_share", "run %", |row| {
        row.run_share.into()
    }),
    Col::new(Kind::Count, "", "times", seen).only(In::Text),
    Col::words(" function", shown).cut(Cut::End),
    Col::data(Kind::Text, "name", |row| (&row.name).into()),
    Col::data(Kind::Place, "at", |row| match row.file.as_str() {
        "" => Value::None,
        file => Value::Place(file.to_owned(), row.line),
    }),
    Col::data(Kind::Count, "compilations", |row| row.compilations.into()),
    Col::data(Kind::Count, "recompilations", |row| {
        row.recompilations.into()
    }),
    Col::data(Kind::Share, "compile_share", |row| row.compile_share.into()),
];
/// Graph breaks.
pub const GRAPH_BREAKS: &[BreakCol] = &[
    BreakCol::new(Kind::Place, "at", "graph break at", |row| {
        Value::Place(row.file.clone(), row.line)
    }),
    BreakCol::new(Kind::Text, "function", "in", |row| (&row.function).into()),
];

/// How often it was compiled, at least.
fn seen(row: &CompiledFunction) -> Value {
    match row.compilations {
        0 => "-".into(),
        seen => format!(">={}", count(u64::from(seen))).into(),
    }
}

fn shown(row: &CompiledFunction) -> Value {
    match row.file.as_str() {
        "" => format!(" {}", row.name).into(),
        file => format!(" {} ({})", row.name, place_of(file, row.line)).into(),
    }
}

fn table(analysis: &Analysis) -> Option<&CompileTable> {
    Some(&analysis.primary()?.compile)
}

/// Functions, those with the most time first.
pub fn functions(analysis: &Analysis) -> &[CompiledFunction] {
    table(analysis).map_or(&[], |table| &table.functions)
}

/// The first `most` graph breaks, by file and line.
pub fn graph_breaks(analysis: &Analysis, most: usize) -> Vec<GraphBreak> {
    let sites = table(analysis).into_iter();
    let sites = sites.flat_map(|table| &table.graph_breaks).take(most);
    sites.map(broken).collect()
}

fn broken(site: &BreakSite) -> GraphBreak {
    GraphBreak {
        file: site.file.clone(),
        line: site.at.line,
        function: site.at.function.clone(),
    }
}
