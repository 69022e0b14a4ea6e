//! Functions that torch.compile compiled, and graph breaks.

use crate::analysis::Analysis;
use crate::analysis::compile::{BreakSite, CompileTable, CompiledFunction};
use crate::model::seconds::of as seconds;
use crate::report::label::count;
use crate::report::table::{Column, Cut, In, Kind, Value};
use crate::report::text::format::place_of;

type Col = Column<CompiledFunction>;
type BreakCol = Column<BreakSite>;

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
    Col::data(Kind::Place, "at", |row| {
        Value::place(Some(&row.file), Some(row.line))
    }),
    Col::data(Kind::Count, "compilations", |row| row.compilations.into()),
    Col::data(Kind::Count, "recompilations", |row| {
        row.recompilations.into()
    }),
    Col::data(Kind::Share, "compile_share", |row| row.compile_share.into()),
];
pub const GRAPH_BREAKS: &[BreakCol] = &[
    BreakCol::new(Kind::Place, "at", "graph break at", |row| {
        Value::Place(row.file.clone(), row.at.line)
    }),
    BreakCol::new(Kind::Text, "function", "in", |row| {
        (&row.at.function).into()
    }),
];

/// Lower bound of the number of compilations.
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

/// Functions by descending time.
pub fn functions(analysis: &Analysis) -> &[CompiledFunction] {
    table(analysis).map_or(&[], |table| &table.functions)
}

/// Graph breaks, by file and line.
pub fn graph_breaks(analysis: &Analysis) -> &[BreakSite] {
    table(analysis).map_or(&[], |table| &table.graph_breaks)
}
