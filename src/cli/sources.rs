//! The text of the user's own files, for the page.

use super::messages;
use crate::model::category::FrameKind;
use crate::model::profile::Profile;
use crate::report::page::Source;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Maximum number of files.
const MOST_FILES: usize = 200;
/// Longest file, bytes.
const LONGEST: u64 = 1 << 20;

/// Reads the files in which the user's functions are. What cannot be read is left out, with a
/// warning.
pub(super) fn read(profile: &Profile) -> Vec<Source> {
    let functions = profile.functions.iter();
    let own = functions.filter(|each| each.is_python && each.kind == FrameKind::PythonUser);
    let files: BTreeSet<&str> = own.map(|function| function.file.as_str()).collect();
    let absolute = files.into_iter().filter(|file| file.starts_with('/'));
    let mut sources = Vec::new();
    for file in absolute.take(MOST_FILES) {
        match source(profile, file) {
            Ok(source) => sources.push(source),
            Err(error) => messages::warning(&format!("the source of {file} is not shown: {error}")),
        }
    }
    sources
}

fn source(profile: &Profile, file: &str) -> io::Result<Source> {
    let opened = File::open(Path::new(file))?;
    let data = opened.metadata()?;
    if !data.is_file() {
        return Err(io::Error::other("not a file"));
    }
    if data.len() > LONGEST {
        return Err(io::Error::other("longer than 1 MiB"));
    }
    let mut text = String::new();
    opened.take(LONGEST).read_to_string(&mut text)?;
    let modified = data.modified()?.duration_since(UNIX_EPOCH);
    let modified_ns = modified.map_or(0, |time| time.as_nanos());
    Ok(Source {
        file: file.to_owned(),
        text,
        changed: modified_ns > u128::from(profile.run.started_wall_ns),
    })
}
