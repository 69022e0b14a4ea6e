//! Texts for the parts of a comparison: `Net.layers.2 (Block)`, `train.py:88 train`.

use super::label::short_file;
use crate::analysis::diff::keys::{About, Key};
use crate::analysis::diff::units::Unit;
use crate::model::category::SummaryRow;

/// The short name of a part, for use in a sentence. May contain control characters.
pub fn part_name(key: &Key, about: &About) -> String {
    match key {
        Key::Step => "step".to_owned(),
        Key::Row(row) => row_name(*row).to_owned(),
        Key::Phase(phase) => phase.name().to_owned(),
        Key::Activity(activity) => activity.name().to_owned(),
        Key::Module { root, number, path } | Key::ModuleSelf { root, number, path } => {
            let root = match number {
                0 => root.clone(),
                number => format!("{root} #{}", u64::from(*number) + 1),
            };
            if path.is_empty() {
                root
            } else {
                format!("{root}.{path}")
            }
        }
        Key::Operator(name) | Key::Region(name) => name.clone(),
        Key::Line { .. } => place(about),
        Key::Function { name, .. } => name.clone(),
        Key::Native { .. } => about.short_name.clone(),
    }
}

/// The name of a part with what distinguishes it from others: the class of a module, the file of a
/// function.
pub fn part_label(key: &Key, about: &About) -> String {
    let name = part_name(key, about);
    match key {
        Key::Module { path, .. } | Key::ModuleSelf { path, .. }
            if !path.is_empty() && !about.class.is_empty() =>
        {
            format!("{name} ({})", about.class)
        }
        Key::Line { function, .. } => format!("{name} {function}"),
        Key::Function { .. } => format!("{name} {}", place(about)),
        Key::Native { library, .. } => format!("{name} ({library})"),
        _ => name,
    }
}

fn place(about: &About) -> String {
    format!("{}:{}", short_file(&about.file), about.line)
}

/// A row of the summary for people.
pub(crate) fn row_name(row: SummaryRow) -> &'static str {
    match row {
        SummaryRow::HostComputation => "host computation or op dispatch",
        SummaryRow::Communication => "communication",
        SummaryRow::Input => "input",
        SummaryRow::GpuWait => "waiting for the GPU",
        SummaryRow::OmpBarrier => "OpenMP barriers",
        SummaryRow::Python => "Python",
        SummaryRow::CpuWait => "waiting for a CPU",
        SummaryRow::Compile => "torch.compile",
        SummaryRow::Startup => "start-up",
        SummaryRow::Shutdown => "exit",
        SummaryRow::Other => "other",
        SummaryRow::Unclassified => "unclassified",
    }
}

/// The unit of figures: `ms per step`.
pub fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Step => "ms per step",
        Unit::Second => "ms per second of wall time",
    }
}
