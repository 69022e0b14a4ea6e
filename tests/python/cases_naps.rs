//! Threads that wake for a moment and sleep on: a sleep is not read again where the stack is the
//! same, and is another one where only Python's frames differ.

use crate::faults::{How, Recorder};
use crate::on_each_engine;
use crate::stack_case::start;
use std::collections::BTreeMap;
use torchspy::model::frame::Frame;
use torchspy::model::sample::Capture;
use torchspy::recording::reader::Recording;

const PROGRAM: &str = include_str!("../programs/naps.py");
/// A short nap of the program, with what waking takes, s.
const SHORT_S: f64 = 0.0155;
/// What the program's long naps are of a thread's time; more where waking up takes long.
const LONG: std::ops::Range<f64> = 0.62..0.85;

/// Seconds of a place, and how often it was captured.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    seconds: f64,
    captures: u32,
}

/// What was seen of each function and line, wherever it is in a stack.
fn places(recording: &Recording) -> BTreeMap<(String, u32), Seen> {
    let mut places: BTreeMap<_, Seen> = BTreeMap::new();
    for sample in &recording.samples {
        for frame in recording.tables.stacks.leaf_to_root(sample.stack) {
            if let Frame::Python { code, line, .. } = *recording.tables.stacks.frame(frame) {
                let name = recording.tables.codes[code.index()].name.clone();
                let seen = places.entry((name, line)).or_default();
                seen.seconds += sample.weight_ns as f64 / 1e9;
                seen.captures += u32::from(sample.capture == Capture::Asleep);
            }
        }
    }
    places
}

fn naps_are_told_apart(version: &str, engine: &str) {
    let Some(mut target) = start(version, "naps.py", &[]) else {
        return;
    };
    target.ready();
    let how = How {
        options: &["--duration", "6s", "--engine", engine],
        fault: None,
    };
    let recorded = Recorder::attach(target.pid(), how)
        .finish()
        .expect_success();
    let places = places(&Recording::read(&recorded.path()).unwrap());
    let of = |function: &str, marked: &str| {
        let lines = PROGRAM.lines().zip(1..);
        let mut marked = lines.filter(|(text, _)| text.contains(marked));
        let line = marked.next().unwrap().1;
        let seen = places
            .iter()
            .find(|((name, at), _)| name == function && *at == line);
        *seen
            .unwrap_or_else(|| panic!("{version}, {function}: {places:#?}"))
            .1
    };
    let long = of("at_two_lines", "# long").seconds;
    let short = of("at_two_lines", "# short").seconds;
    let share = long / (long + short);
    assert!(LONG.contains(&share), "{version}, by line: {share}");
    let long = of("naps_long", "nap(LONG_S)").seconds;
    let short = of("naps_briefly", "nap(SHORT_S)").seconds;
    let share = long / (long + short);
    assert!(LONG.contains(&share), "{version}, by caller: {share}");
    let same = of("at_one_line", "time.sleep(SHORT_S)");
    println!("{version}, {engine}: {same:?}");
    // In Debian's 3.15 a register is missing, which a guess or a stop has to find each time.
    if version != "3.15" {
        assert!(
            f64::from(same.captures) < 0.5 * same.seconds / SHORT_S,
            "{version}: {same:?}"
        );
    }
}

on_each_engine!(naps_are_told_apart:
    naps_are_told_apart_on_3_10 "3.10",
    naps_are_told_apart_on_3_11 "3.11",
    naps_are_told_apart_on_3_12 "3.12",
    naps_are_told_apart_on_3_13 "3.13",
    naps_are_told_apart_on_3_14 "3.14",
    naps_are_told_apart_on_3_15 "3.15",
    naps_are_told_apart_on_3_13t "3.13t",
);
