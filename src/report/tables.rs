//! The tables of a report: a struct for a row, which is its JSON, and its columns, which are its
//! text and CSV.

pub mod backward;
pub mod collectives;
pub mod compile;
pub mod functions;
pub mod gpu_idle;
pub mod modules;
pub mod operators;
pub mod threads;
pub mod waits;

use super::table::Sheet;
use crate::analysis::Analysis;
use crate::model::facts::Line;
use crate::model::profile::{Function, Profile};

/// No limit.
const ALL: usize = usize::MAX;

/// Makes a table of a report.
pub type Make = fn(&Profile, &Analysis) -> Sheet;

/// All tables by name, which mostly is their key in JSON. Without what they are about they have no
/// rows.
pub const TABLES: &[(&str, Make)] = &[
    ("functions", |p, a| {
        Sheet::new(functions::FUNCTIONS, &functions::functions(p, a, ALL))
    }),
    ("lines", |p, a| {
        Sheet::new(functions::LINES, &functions::lines(p, a, ALL))
    }),
    ("user_lines", |p, a| {
        Sheet::new(functions::USER_LINES, &functions::user_lines(p, a, ALL))
    }),
    ("native_functions", |p, a| {
        Sheet::new(functions::NATIVE, &functions::native(p, a, ALL))
    }),
    ("operators", |p, a| {
        Sheet::new(operators::OPERATORS, &operators::operators(p, a, ALL, 0))
    }),
    ("operator_sites", |p, a| {
        Sheet::new(operators::SITES, &operators::sites(p, a))
    }),
    ("modules", |_, a| {
        Sheet::new(modules::MODULES, &modules::each_alone(a))
    }),
    ("module_groups", |_, a| {
        Sheet::new(modules::MODULES, &modules::groups(a, ALL))
    }),
    ("nodes", |p, a| {
        Sheet::new(backward::NODES, &backward::nodes(p, a, ALL))
    }),
    ("backward_lines", |p, a| {
        Sheet::new(backward::LINES, &backward::lines(p, a, ALL))
    }),
    ("backward_modules", |p, a| {
        Sheet::new(backward::MODULES, &backward::modules(p, a, ALL))
    }),
    ("waits", |p, a| {
        Sheet::new(waits::WAITS, &waits::waits(p, a, ALL))
    }),
    ("collectives", |p, a| {
        Sheet::new(
            collectives::COLLECTIVES,
            &collectives::collectives(p, a, ALL),
        )
    }),
    ("compiled", |_, a| {
        Sheet::new(compile::FUNCTIONS, compile::functions(a))
    }),
    ("graph_breaks", |_, a| {
        Sheet::new(compile::GRAPH_BREAKS, &compile::graph_breaks(a, ALL))
    }),
    ("gpu_idle", |p, a| {
        Sheet::new(gpu_idle::GPU_IDLE, &gpu_idle::gpu_idle(p, a))
    }),
    ("threads", |p, a| {
        Sheet::new(threads::THREADS, &threads::threads(p, a))
    }),
];

/// The table of that name.
pub fn named(name: &str) -> Option<Make> {
    let mut tables = TABLES.iter();
    tables
        .find(|(each, _)| *each == name)
        .map(|&(_, make)| make)
}

/// The function of a line, which the profile may lack.
fn named_line(profile: &Profile, (function, line): Line) -> Option<(&Function, u32)> {
    Some((profile.functions.get(function.index())?, line))
}
