//! One HTML page: the answer, a timeline, a flamegraph and tables of any interval of time.
//!
//! The page is one file that makes no request. Its script is built from `web/` into `page.html`,
//! which is compiled in; here its data are written. They are one gzip stream as base64: the length
//! of a JSON head in bytes, little-endian, four bytes; the head; and columns of integers, whose
//! places in the rest are named by the head. The head has the report that `--json` prints, so the
//! page's figures of the whole run are those of the report. What the page computes for an interval
//! follows the same rules as [`analysis`](crate::analysis), and `scripts/check-page` compares both.
//!
//! | file | content |
//! |---|---|
//! | [`columns`] | integers as bytes |
//! | [`samples`] | samples, and what they have in common |
//! | [`stacks`] | stacks, functions, and facts about stacks |
//! | [`tracks`] | counter tracks, steps, epochs |
//! | [`traced`] | a trace of torch.profiler |
//! | [`head`] | the head |
//! | [`compare`] | the page of two recordings |
//! | [`under_way`] | the page before there is anything to show |

mod columns;
pub mod compare;
mod head;
mod samples;
mod stacks;
mod traced;
mod tracks;
pub mod under_way;

use crate::analysis::Analysis;
use crate::model::profile::Profile;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use columns::Columns;
use flate2::Compression;
use flate2::write::GzEncoder;
use samples::{MOST_SAMPLES, Samples};
use serde::Serialize;
use std::io::{self, Write};

/// The page without data, as `scripts/test.d/page --write` builds it.
const PAGE: &str = include_str!("page.html");
/// Where the title goes.
const TITLE: &str = "@torchspy-title@";
/// Where the data go.
const DATA: &str = "@torchspy-data@";

/// What files that the page names open in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Editor {
    /// An editor on the reader's machine: `vscode`, `idea`, `vim`.
    Local(String),
    /// A web page of a repository. A file's path in it is what follows the folder of that `name`.
    Repository {
        url: String,
        name: String,
        revision: String,
    },
}

/// The text of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Source {
    pub file: String,
    pub text: String,
    /// Whether the file was changed after the recording began: lines may not be those that ran.
    pub changed: bool,
}

/// What a page has besides the profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageOptions {
    /// `None`: what the reader chose before.
    pub editor: Option<Editor>,
    /// `None`: no source text was asked for.
    pub sources: Option<Vec<Source>>,
}

/// Writes the page of a profile.
///
/// # Errors
/// Where `out` cannot be written.
pub fn render(
    profile: &Profile,
    analysis: &Analysis,
    options: &PageOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let data = data(profile, analysis, options)?;
    write_page(&head::title(profile), &[data], out)
}

/// Writes the page with a title and parts of data, with a point between them.
fn write_page(title: &str, parts: &[Vec<u8>], out: &mut dyn Write) -> io::Result<()> {
    let (before, rest) = split(PAGE, TITLE)?;
    let (between, after) = split(rest, DATA)?;
    let parts: Vec<String> = parts
        .iter()
        .map(|part| BASE64_STANDARD.encode(part))
        .collect();
    for text in [before, &escaped(title), between, &parts.join("."), after] {
        out.write_all(text.as_bytes())?;
    }
    Ok(())
}

fn split<'p>(page: &'p str, place: &str) -> io::Result<(&'p str, &'p str)> {
    let parts = page.split_once(place);
    parts.ok_or_else(|| io::Error::other(format!("the page has no place for {place}")))
}

/// The data, compressed.
fn data(profile: &Profile, analysis: &Analysis, options: &PageOptions) -> io::Result<Vec<u8>> {
    let mut columns = Columns::default();
    let samples = Samples::of(profile, MOST_SAMPLES);
    let (leaves, functions) = stacks::write(profile, &samples.contexts, &mut columns);
    samples.contexts.write(&mut columns, &leaves);
    samples.write(&mut columns, profile.threads.len());
    let tracks = tracks::write(profile, analysis, &mut columns);
    let traced = traced::write(profile, analysis, &mut columns);
    let parts = head::Parts {
        samples: &samples,
        functions,
        tracks,
        traced,
        options,
    };
    let head = head::head(profile, analysis, parts, &mut columns)?;
    let mut packed = GzEncoder::new(Vec::new(), Compression::new(6));
    let length = u32::try_from(head.len()).map_err(io::Error::other)?;
    packed.write_all(&length.to_le_bytes())?;
    packed.write_all(&head)?;
    packed.write_all(&columns.bytes)?;
    packed.finish()
}

/// A text between tags.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
