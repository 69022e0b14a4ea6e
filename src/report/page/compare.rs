//! The page of a comparison: both runs' data, and the result as JSON. The three follow each other,
//! each compressed for itself, with a point between them.

use super::{PageOptions, data, head, write_page};
use crate::analysis::Analysis;
use crate::analysis::diff::Diff;
use crate::model::profile::Profile;
use crate::report::flamegraph::difference::{ComparedBox, Difference};
use crate::report::json::diff::{DiffReport, diff_report};
use crate::report::text::diff::render_diff;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use std::io::{self, Write};

/// Rows of each table of the text.
const ROWS: usize = 20;

#[derive(Serialize)]
struct Comparison<'a> {
    report: DiffReport,
    text: String,
    boxes: Vec<ComparedBox<'a>>,
}

/// Writes the page of a comparison. `sides` are a recording of A and one of B, whose timelines are
/// shown.
///
/// # Errors
/// Where `out` cannot be written.
pub fn render(
    sides: [(&Profile, &Analysis); 2],
    diff: &Diff,
    tree: &Difference,
    out: &mut dyn Write,
) -> io::Result<()> {
    let title = format!("diff: {}", head::title(sides[1].0));
    let comparison = Comparison {
        report: diff_report(diff),
        text: render_diff(diff, ROWS),
        boxes: tree.listed(),
    };
    let mut packed = GzEncoder::new(Vec::new(), Compression::new(6));
    serde_json::to_writer(&mut packed, &comparison)?;
    let packed = packed.finish()?;
    let options = PageOptions::default();
    let [a, b] = sides.map(|(profile, analysis)| data(profile, analysis, &options));
    write_page(&title, &[a?, b?, packed], out)
}
