//! Processes whose memory grows: which are named, and in which words.

use crate::analysis_builder::{Builder, S, fetch, user};
use crate::track_builder::{put, track};
use torchspy::analysis::analyze;
use torchspy::model::track::TrackKind;
use torchspy::report::text::{Detail, TextOptions, render_summary};

/// Two readings a second.
const READING_NS: u64 = 500_000_000;
const SECONDS: u64 = 60;

/// A trainer and a worker of a minute, with the anonymous memory of both.
fn job(trainer: impl Fn(f64) -> f64, worker: impl Fn(f64) -> f64) -> String {
    let mut builder = Builder::trainer();
    builder.ticks(0, 100 * SECONDS, S::Running, &[user("main", 90)]);
    let process = builder.process(110, 100, &["python", "train.py"]);
    let thread = builder.thread(process, 110, "pt_data_worker", true);
    builder.ticks(
        thread,
        100 * SECONDS,
        S::Running,
        &fetch(&[user("load", 7)]),
    );
    let mut put_all = |kind, pid, level: &dyn Fn(f64) -> f64| {
        let track = track(&mut builder, kind, None, pid);
        for at in (0..SECONDS * 1_000_000_000).step_by(READING_NS as usize) {
            put(&mut builder, track, at, at, level(at as f64 / 1e9) as u64);
        }
    };
    put_all(TrackKind::Anonymous, 100, &trainer);
    put_all(TrackKind::Anonymous, 110, &worker);
    let profile = builder.profile();
    let options = TextOptions {
        detail: Detail::Brief,
        ..TextOptions::default()
    };
    let text = render_summary(&profile, &analyze(&profile), options);
    let from = text.find("MEMORY").unwrap_or(text.len());
    let memory = text[from..].lines().take_while(|line| !line.is_empty());
    memory.map(str::trim).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_trainer_that_allocates_is_named_with_its_rate() {
    let text = job(|at| 1e9 + 2e6 * at, |_| 5e8);
    assert!(
        text.starts_with("MEMORY  trainer grows by 2.0 MB a second (95 %: 2.0 MB to 2.0 MB)"),
        "{text}"
    );
    assert_eq!(text.matches("MEMORY").count(), 1, "{text}");
}

#[test]
fn memory_that_does_not_grow_is_not_mentioned() {
    assert_eq!(job(|_| 1e9, |at| 5e8 + 1e7 * (at % 3.0)), "");
}
