//! Files that a session wrote one after another, read as one recording.

use crate::builder::{TorchProcess, run_info, write};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use torchspy::model::run::ClockPair;
use torchspy::model::segment::Segment;
use torchspy::recording::{OpenError, Piece, Recording};

const SECONDS: usize = 6;

/// A session of six seconds, as one recording and in files of two seconds each.
fn session() -> (TempDir, PathBuf, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut process = TorchProcess::new(12);
    let segments: Vec<Segment> = (0..SECONDS)
        .map(|second| process.second(second + 1 == SECONDS))
        .collect();
    let mut run = run_info();
    run.session = Some(ClockPair {
        monotonic_ns: run.started_ns,
        wall_ns: run.started_wall_ns,
    });
    let whole = path("whole.tspy");
    write(&whole, &run, &segments);
    let pieces = segments.chunks(2).enumerate().map(|(at, segments)| {
        let path = path(&format!("{at}.tspy"));
        let numbered = segments.iter().enumerate().map(|(index, segment)| Segment {
            index: index as u64,
            last: index == 1,
            ..segment.clone()
        });
        run.started_ns = segments[0].start_ns;
        write(&path, &run, &numbered.collect::<Vec<_>>());
        path
    });
    let pieces = pieces.collect();
    (folder, whole, pieces)
}

/// Reads files as one recording; the last one may be growing.
fn read(paths: &[impl AsRef<Path>], growing: bool) -> Result<Recording, OpenError> {
    let files: Vec<File> = paths.iter().map(|path| File::open(path).unwrap()).collect();
    let pieces = files.iter().zip(paths).enumerate();
    let pieces = pieces.map(|(at, (file, path))| Piece {
        name: path.as_ref().file_name().unwrap().display().to_string(),
        file,
        growing: growing && at + 1 == paths.len(),
    });
    Recording::read_pieces(&pieces.collect::<Vec<_>>())
}

/// The length of all samples, ns.
fn total_ns(recording: &Recording) -> u64 {
    let samples = recording.samples.iter();
    samples.map(|sample| sample.weight_ns).sum()
}

#[test]
fn all_files_are_the_recording_that_one_file_would_be() {
    let (_folder, whole, pieces) = session();
    let (whole, joined) = (Recording::read(&whole).unwrap(), read(&pieces, false));
    let joined = joined.unwrap();
    assert_eq!(joined.missing, Vec::<String>::new());
    assert!(joined.gaps.is_empty() && !joined.growing);
    assert_eq!(joined.samples, whole.samples);
    assert_eq!(joined.tables, whole.tables);
    assert_eq!(joined.sideband, whole.sideband);
    assert_eq!(
        (joined.start_ns, joined.end_ns),
        (whole.start_ns, whole.end_ns)
    );
}

#[test]
fn a_file_that_is_not_there_is_a_gap() {
    let (_folder, _, pieces) = session();
    let joined = read(&[&pieces[0], &pieces[2]], false).unwrap();
    assert_eq!(joined.missing, ["2.tspy: 2.0 s before it are missing"]);
    assert_eq!(joined.gaps, [(3_000_000_000, 5_000_000_000)]);
    // The first files of a ring are removed: nothing is missing then.
    let joined = read(&pieces[1..], false).unwrap();
    assert!(joined.missing.is_empty() && joined.gaps.is_empty());
}

#[test]
fn the_time_of_a_copy_is_taken_once() {
    let (folder, whole, pieces) = session();
    let copy = folder.path().join("copy.tspy");
    fs::copy(&pieces[1], &copy).unwrap();
    let files = [&pieces[0], &pieces[1], &copy, &pieces[2]];
    let joined = read(&files, false).unwrap();
    assert_eq!(
        total_ns(&joined),
        total_ns(&Recording::read(&whole).unwrap())
    );
    assert_eq!(joined.missing.len(), 2, "{:?}", joined.missing);
    let starts = "copy.tspy: 2 segments are out of order and left out";
    assert!(
        joined.missing[0].starts_with(starts),
        "{:?}",
        joined.missing
    );
}

#[test]
fn what_is_damaged_is_named_and_the_rest_is_read() {
    let (folder, _, pieces) = session();
    // Its last segment is cut.
    let length = fs::metadata(&pieces[1]).unwrap().len();
    let file = File::options().write(true).open(&pieces[1]).unwrap();
    file.set_len(length - 100).unwrap();
    let joined = read(&pieces, false).unwrap();
    assert_eq!(joined.gaps, [(4_000_000_000, 5_000_000_000)]);
    let [end, before] = &joined.missing[..] else {
        panic!("{:?}", joined.missing);
    };
    assert!(end.starts_with("1.tspy: the end is missing"), "{end}");
    assert_eq!(before, "2.tspy: 1.0 s before it are missing");
    // Its head.
    let none = folder.path().join("none.tspy");
    fs::write(&none, b"no recording").unwrap();
    let joined = read(&[&none, &pieces[2]], false).unwrap();
    assert_eq!(joined.end_ns, 7_000_000_000);
    assert!(joined.missing[0].starts_with("none.tspy: it is not a recording"));
    let refused = read(&[&none], false);
    assert!(matches!(refused, Err(OpenError::NotARecording { .. })));
}

#[test]
fn a_file_that_has_only_begun_is_not_missing() {
    let (folder, _, pieces) = session();
    let next = folder.path().join("3.tspy");
    write(&next, &run_info(), &[]);
    let joined = read(&[&pieces[0], &pieces[1], &next], true).unwrap();
    assert!(joined.growing && joined.missing.is_empty());
    assert!(matches!(read(&[&next], true), Err(OpenError::NothingYet)));
    // One whose writer was killed before it wrote.
    let joined = read(&[&pieces[0], &pieces[1], &next], false).unwrap();
    assert!(!joined.growing && joined.missing[0].starts_with("3.tspy: the end is missing"));
}
