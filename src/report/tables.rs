//! The tables of a report: for each a struct for a row, which is its JSON, and its columns, which
//! define its text and CSV.

pub mod backward;
pub mod by_group;
pub mod collectives;
pub mod compile;
pub mod diff;
pub mod energy;
pub mod functions;
pub mod gpu_idle;
pub mod input;
pub mod job;
pub mod memory;
pub mod modules;
pub mod operators;
pub mod processes;
pub mod scaling;
pub mod steps;
pub mod threads;
pub mod trace;
pub mod waits;

use super::table::Sheet;
use crate::analysis::Analysis;
use crate::model::facts::Line;
use crate::model::profile::{Function, Profile};

/// No limit.
const ALL: usize = usize::MAX;

/// Builds a table of a report.
pub type Make = fn(&Profile, &Analysis) -> Sheet;

/// All tables by name, which usually is their key in JSON. Tables without data have no rows.
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
    ("steps", |p, a| {
        Sheet::new(steps::STEPS, &steps::steps(p, a))
    }),
    ("compiled", |_, a| {
        Sheet::new(compile::FUNCTIONS, compile::functions(a))
    }),
    ("graph_breaks", |_, a| {
        Sheet::new(compile::GRAPH_BREAKS, compile::graph_breaks(a))
    }),
    ("gpu_idle", |p, a| {
        Sheet::new(gpu_idle::GPU_IDLE, &gpu_idle::gpu_idle(p, a))
    }),
    ("memory_lines", |p, a| {
        Sheet::new(memory::LINES, &memory::lines(p, &a.memory))
    }),
    ("memory_operators", |p, a| {
        Sheet::new(memory::OPERATORS, &memory::operators(p, &a.memory))
    }),
    ("memory_phases", |p, a| {
        Sheet::new(memory::PHASES, &memory::phases(p, &a.memory))
    }),
    ("device_memory_lines", |p, a| {
        Sheet::new(memory::LINES, &memory::lines(p, &a.allocated))
    }),
    ("device_memory_operators", |p, a| {
        Sheet::new(memory::OPERATORS, &memory::operators(p, &a.allocated))
    }),
    ("device_memory_phases", |p, a| {
        Sheet::new(memory::PHASES, &memory::phases(p, &a.allocated))
    }),
    ("energy", |p, a| {
        Sheet::new(energy::ENERGY, &energy::energy(p, a))
    }),
    ("processes", |p, a| {
        Sheet::new(processes::PROCESSES, &processes::processes(p, a))
    }),
    ("threads", |_, a| {
        Sheet::new(threads::THREADS, threads::threads(a))
    }),
];

/// The table of that name.
pub fn named(name: &str) -> Option<Make> {
    let mut tables = TABLES.iter();
    tables
        .find(|(each, _)| *each == name)
        .map(|&(_, make)| make)
}

/// The function of a line; `None` if the profile lacks it.
fn named_line(profile: &Profile, (function, line): Line) -> Option<(&Function, u32)> {
    Some((profile.function(function)?, line))
}
