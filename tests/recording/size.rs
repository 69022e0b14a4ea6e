//! The size of a recording of a torch process, and the time that writing and reading it take.

use crate::builder::{TorchProcess, create, run_info};
use std::time::Instant;
use torchspy::recording::Recording;

/// Issue: a minute at 100 Hz of a script with 160 threads is at most 2 MB.
const MOST_BYTES_PER_MINUTE: u64 = 2_000_000;

#[test]
fn a_minute_of_160_threads_is_at_most_two_megabytes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.tspy");
    let mut writer = create(&path, &run_info());
    let mut process = TorchProcess::new(160);
    let segments: Vec<_> = (0..60).map(|second| process.second(second == 59)).collect();
    let some = &segments[30];
    println!(
        "a segment: {} samples, {} stacks, {} frames, {} symbols of {} bytes on average, {} code objects",
        some.samples.len(),
        some.tables.stacks.stacks().len(),
        some.tables.stacks.frames().len(),
        some.symbols.len(),
        some.symbols
            .iter()
            .map(|symbol| symbol.name.len())
            .sum::<usize>()
            / some.symbols.len(),
        some.tables.codes.len(),
    );
    // What the bar is about: a lighter load would prove nothing.
    assert!(
        some.samples.len() >= 450 && some.symbols.len() >= 600 && some.tables.codes.len() >= 250
    );
    let began = Instant::now();
    for segment in &segments {
        writer.write_segment(segment).unwrap();
    }
    let took = began.elapsed();
    let bytes = writer.length();
    writer.finish().unwrap();
    println!(
        "{bytes} bytes a minute, written in {:.1} ms a segment",
        took.as_secs_f64() * 1e3 / 60.0
    );
    assert!(bytes <= MOST_BYTES_PER_MINUTE, "{bytes} bytes a minute");

    let recording = Recording::read(&path).unwrap();
    let written: usize = segments.iter().map(|segment| segment.samples.len()).sum();
    assert_eq!(recording.samples.len(), written);
    assert_eq!(recording.missing, Vec::<String>::new());
}

/// Prints how long reading takes; the machine's load decides, so there is no limit here.
#[test]
fn ten_minutes_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.tspy");
    let mut writer = create(&path, &run_info());
    let mut process = TorchProcess::new(160);
    let mut written = 0;
    for second in 0..600 {
        let segment = process.second(second == 599);
        written += segment.samples.len();
        writer.write_segment(&segment).unwrap();
    }
    println!("{} bytes", writer.length());
    writer.finish().unwrap();
    let began = Instant::now();
    let recording = Recording::read(&path).unwrap();
    println!(
        "read in {:.3} s: {} samples, {} stacks, {} frames",
        began.elapsed().as_secs_f64(),
        recording.samples.len(),
        recording.tables.stacks.stacks().len(),
        recording.tables.stacks.frames().len(),
    );
    assert_eq!(recording.samples.len(), written);
    assert_eq!(recording.tables.threads.len(), 160);
}
