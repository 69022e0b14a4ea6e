//! What stands in for the page while its recording is under way.

use super::escaped;
use crate::model::run::RunInfo;
use crate::report::command::shown_command;
use crate::report::label::{LONG, clean};
use crate::report::naming::utc_time;

/// Width of the command line, characters.
const COMMAND: usize = 400;
const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:44em;margin:3em auto;padding:0 1em;color-scheme:light dark}\
    pre{padding:.6em 1em;border:1px solid;border-radius:6px;overflow:auto}";

/// When the page that takes this place is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// It is rewritten while recording, and not only at the end.
    pub is_rewritten: bool,
    /// The names of the recording and of the page; `None` without a recording that has a name.
    pub files: Option<(String, String)>,
}

/// A page that says that the recording is under way, since when, and how to get a page now.
pub fn render(run: &RunInfo, expected: &Expected) -> String {
    let text = |text: &str| escaped(&clean(text, LONG));
    let command = escaped(&clean(&shown_command(&run.command, COMMAND), LONG));
    let when = match expected.is_rewritten {
        true => {
            "The page takes this place with the first snapshot, and is rewritten until the recording ends"
        }
        false => "The page takes this place when the recording ends",
    };
    let pid = run.pid;
    let lost = match &expected.files {
        Some((recording, page)) => format!(
            "<p>If the recording has ended, and this is still here, torchspy was killed. This makes the page:</p>\n\
             <pre>torchspy convert {} -o {} --force</pre>\n",
            text(recording),
            text(page)
        ),
        None => String::new(),
    };
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>under way: {command} - torchspy</title>\n\
         <style>{STYLE}</style>\n<h1>This recording is under way</h1>\n\
         <p>torchspy records <b>{command}</b> (process {pid} on {}) since {}. {when}: reload it then.</p>\n\
         <p>For a page of what there is so far:</p>\n<pre>torchspy snapshot {pid}</pre>\n{lost}</html>\n",
        text(&run.host),
        utc_time(run.started_wall_ns)
    )
}
