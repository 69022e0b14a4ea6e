//! Which part the difference of a step comes from.

use super::keys::Key;
use super::{Row, Verdict};
use crate::model::category::Activity;

/// A part carries the step's difference if it has at least this share of it.
const MOST_OF_IT: f64 = 0.6;
/// The search descends to a submodule that has at least this share of a module's difference.
const PASSED_ON: f64 = 0.7;

/// The part that the step's difference comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Carrier {
    /// The part.
    pub key: Key,
    /// Its index in the rows.
    pub row: usize,
    /// Its difference as a share of the step's.
    pub share: f64,
}

/// The most specific part that has most of the step's difference and differs beyond noise by
/// itself: waiting for a CPU, which slows whatever code was to run; else the deepest such module, a
/// line, an operator, waiting at OpenMP barriers, a phase. `None` if the step does not differ, or
/// its difference is spread over many parts.
pub(super) fn carrier(step: &Row, rows: &[Row]) -> Option<Carrier> {
    if step.verdict == Verdict::Noise {
        return None;
    }
    let whole = step.difference_ns;
    let carries = |row: &&(usize, &Row)| {
        row.1.verdict == step.verdict && row.1.difference_ns / whole >= MOST_OF_IT
    };
    let of_kind = |kind: fn(&Key) -> bool| -> Option<(usize, &Row)> {
        rows.iter()
            .enumerate()
            .filter(|(_, row)| kind(&row.key))
            .filter(|row| carries(&row))
            .max_by(|one, other| {
                let size = |row: &Row| row.difference_ns.abs();
                size(one.1).total_cmp(&size(other.1))
            })
    };
    let root = of_kind(|key| matches!(key, Key::Module { path, .. } if path.is_empty()));
    let found = of_kind(|key| matches!(key, Key::Activity(Activity::CpuWait)))
        .or_else(|| root.map(|root| deepest(root, rows)))
        .or_else(|| of_kind(|key| matches!(key, Key::Module { .. })))
        .or_else(|| of_kind(|key| matches!(key, Key::Line { .. })))
        .or_else(|| of_kind(|key| matches!(key, Key::Operator(_))))
        .or_else(|| of_kind(|key| matches!(key, Key::Activity(Activity::OmpIdle))))
        .or_else(|| of_kind(|key| matches!(key, Key::Phase(_) | Key::Region(_))))?;
    Some(Carrier {
        key: found.1.key.clone(),
        row: found.0,
        share: found.1.difference_ns / whole,
    })
}

/// Descends from a module to the one that its difference comes from.
fn deepest<'r>(root: (usize, &'r Row), rows: &'r [Row]) -> (usize, &'r Row) {
    let mut at = root;
    loop {
        let below = rows
            .iter()
            .enumerate()
            .filter(|(_, row)| {
                row.verdict == at.1.verdict
                    && is_below(&row.key, &at.1.key)
                    && row.difference_ns / at.1.difference_ns >= PASSED_ON
            })
            .min_by_key(|(_, row)| depth(&row.key));
        match below {
            Some(row) => at = row,
            None => return at,
        }
    }
}

/// Whether a module is below another in the tree.
pub fn is_below(key: &Key, above: &Key) -> bool {
    let (
        Key::Module { root, number, path },
        Key::Module {
            root: above_root,
            number: above_number,
            path: above_path,
        },
    ) = (key, above)
    else {
        return false;
    };
    let inside = match (
        above_path.is_empty(),
        path.strip_prefix(above_path.as_str()),
    ) {
        (true, _) => !path.is_empty(),
        (false, Some(rest)) => rest.starts_with('.'),
        (false, None) => false,
    };
    (root, number) == (above_root, above_number) && inside
}

fn depth(key: &Key) -> usize {
    match key {
        Key::Module { path, .. } if !path.is_empty() => 1 + path.matches('.').count(),
        _ => 0,
    }
}
