//! One HTML page of a job: who arrives last, a heatmap of ranks and steps, the distributed view,
//! clocks.
//!
//! The page is one file that makes no request. The answer and the tables are HTML and are read
//! without a script; the heatmap and the bars are drawn by `page.js` from two parts of data: a JSON
//! head, and cells as gzip and base64. All names come from the targets: between tags and in the
//! head they are escaped, and the script only ever sets them as text.
//!
//! | file | content |
//! |---|---|
//! | [`rows`] | which ranks are rows of the heatmap, and which bars are shown |
//! | [`cells`] | figures by row and bin of steps |
//! | [`words`] | the answer, the tables |

mod cells;
mod rows;
mod words;

use crate::analysis::job::Job;
use crate::analysis::job::ranks::Class;
use crate::model::named::Named;
use crate::model::text::printable_json;
use crate::report::command::shown_command;
use crate::report::tables::job::{ranks, straggler};
use crate::report::text::job::rank_name;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cells::Cells;
use rows::{Bar, Row, bars, rows};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::io::{self, Write};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("page.js");

/// What the script needs besides the cells.
#[derive(Serialize)]
struct Head<'j> {
    /// By [`Class`].
    classes: Vec<&'static str>,
    rows: &'j [Row],
    bars: &'j [Bar],
    /// A column has `1 << shift` steps; the first begins with this step.
    shift: u32,
    first_step: u64,
    columns: usize,
    /// Names of planes of 16 bits, in the order of the data.
    planes: Vec<&'static str>,
    /// A value of 0 to 65,534 stands for `unit_ms * (exp(value / 65534 * log(1 + most_ms /
    /// unit_ms)) - 1)`; 65,535 for none.
    unit_ms: f64,
    most_ms: f64,
    /// What starts are counted from: ms since 1970 by the aligned clock.
    first_ms: i64,
    changes: Vec<ChangeMark>,
}

/// A change of a rank's speed, to be marked.
#[derive(Serialize)]
struct ChangeMark {
    text: String,
    /// Index of its row.
    row: usize,
    step: u64,
    low: u64,
    high: u64,
}

/// Writes the page of a job.
///
/// # Errors
/// Where `out` cannot be written.
pub fn render(job: &Job, out: &mut dyn Write) -> io::Result<()> {
    let facts = ranks(job);
    let rows = rows(job, &facts);
    let cells = Cells::new(job, &rows);
    let bars = bars(job, &facts);
    let head = Head {
        classes: Class::ALL.iter().map(|class| class.stable_name()).collect(),
        rows: &rows,
        bars: &bars,
        shift: cells.shift,
        first_step: cells.first_step(),
        columns: cells.columns,
        planes: cells::planes(),
        unit_ms: cells::UNIT_MS,
        most_ms: cells.most_ms,
        first_ms: cells.first_ms,
        changes: changes(job, &rows),
    };
    let head = in_script(&serde_json::to_string(&head)?);
    let cells = BASE64_STANDARD.encode(cells.packed()?);
    let command = job.recordings.first();
    let command = command.map_or(String::new(), |first| shown_command(&first.command, 100));
    let title = escaped(&command);
    let (script, style) = (hash(SCRIPT), hash(STYLE));
    let body = words::body(job, &facts, &rows, &bars);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src \
         '{script}'; style-src '{style}'; img-src data:; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{title} - job - torchspy</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\
         <script type=\"application/json\" id=\"head\">{head}</script>\n\
         <script type=\"text/plain\" id=\"cells\">{cells}</script>\n\
         <script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

fn changes(job: &Job, rows: &[Row]) -> Vec<ChangeMark> {
    let mut marks = Vec::new();
    for (_, each) in job.stragglers() {
        let row = rows.iter().position(|row| row.members == [each.rank]);
        let (Some(row), Some(late)) = (row, straggler(job, each)) else {
            continue;
        };
        marks.extend(late.changes.iter().map(|change| {
            let word = if change.began { "since" } else { "until" };
            ChangeMark {
                text: format!(
                    "{} {word} step {}",
                    rank_name(late.rank, late.pid),
                    change.step
                ),
                row,
                step: change.step,
                low: change.step_low,
                high: change.step_high,
            }
        }));
    }
    marks
}

/// JSON that is no markup within a script's tags.
fn in_script(json: &str) -> String {
    printable_json(json)
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
}

/// What a content security policy names an inline script or style by.
pub(super) fn hash(text: &str) -> String {
    format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(text)))
}

/// A text between tags or in an attribute, without characters that reorder others.
pub(super) fn escaped(text: &str) -> String {
    let text = crate::report::label::clean(text, crate::report::label::LONG);
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let text = text.replace('>', "&gt;").replace('"', "&quot;");
    text.replace('\'', "&#39;")
}
