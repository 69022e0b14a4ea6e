//! The short report fits a screen, whatever was recorded.

use crate::analysis_builder::*;
use std::path::PathBuf;
use torchspy::analysis::analyze;
use torchspy::model::profile::Profile;
use torchspy::recording::reader::Recording;
use torchspy::report::text::{Detail, TextOptions, render_summary};
use torchspy::resolve::resolve;

const LINES: usize = 40;

/// Every recording of the fixtures: as it is, and cut off at several places.
fn recorded() -> Vec<(String, Profile)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recording");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let recordings = files.filter(|file| file.extension().is_some_and(|ending| ending == "tspy"));
    let mut found = Vec::new();
    for file in recordings {
        let bytes = std::fs::read(&file).unwrap();
        for tenths in [10, 9, 7, 5] {
            let Ok(recording) = Recording::read_bytes(&bytes[..bytes.len() * tenths / 10]) else {
                continue;
            };
            let name = format!("{}, {tenths} tenths", file.display());
            found.push((name, resolve(&recording, names())));
        }
    }
    assert!(found.len() >= 4, "fixtures are read");
    found
}

/// Four ranks that wait for each other, for CPUs and for data: each part of the report has
/// something to say.
fn ranks() -> Profile {
    let mut builder = Builder::new();
    for rank in 0..4_i32 {
        let process = builder.process(101 + rank, 1, &["python", "-u", "train.py"]);
        let (rank_text, world) = (rank.to_string(), "4");
        builder.environment(process, &[("RANK", &rank_text), ("WORLD_SIZE", world)]);
        builder.processes[process].has_cuda = true;
        builder.processes[process].note = "a note on this process".to_owned();
        let thread = builder.thread(process, 101 + rank, "python", true);
        let reduce = [
            user("main", 45),
            native(
                "libtorch_cpu.so",
                "c10d::ProcessGroupGloo::AsyncWork::wait(std::chrono::duration<long>)",
            ),
            libc("poll"),
        ];
        let launch = [
            user("main", 41),
            torch("at::native::add(at::Tensor const&)"),
            native("libcudart.so.13", "cudaLaunchKernel"),
        ];
        let copy = [
            user("main", 47),
            native("libcudart.so.13", "cudaMemcpyAsync"),
        ];
        for step in 0..40_i32 {
            let late = u64::from(step % 4 == rank);
            builder.ticks(thread, 8 * late + 1, S::Running, &[user("main", 50)]);
            builder.ticks(thread, 8 * (1 - late) + 1, S::Poll, &reduce);
            builder.ticks(thread, 3, S::Running, &launch);
            builder.ticks(thread, 3, S::Poll, &copy);
            let starved = builder.sample(thread, 4 * TICK_NS, S::Running, &[user("main", 52)]);
            starved.queue_ns = 3 * TICK_NS;
        }
    }
    builder.profile()
}

fn assert_fits(name: &str, profile: &Profile) {
    let analysis = analyze(profile);
    for detail in [Detail::Brief, Detail::VerdictLast] {
        let options = TextOptions {
            detail,
            ..TextOptions::default()
        };
        let text = render_summary(profile, &analysis, options);
        let lines = text.lines().count();
        assert!(lines <= LINES, "{name}: {lines} lines\n{text}");
        // With the table, the reason for none, or the command that prints it.
        let has_operators = text.contains("OPERATORS");
        let is_full = lines >= LINES - 4;
        assert!(
            has_operators || is_full || text.contains("NOTHING SAMPLED"),
            "{name}: OPERATORS is left out in silence\n{text}"
        );
        assert!(
            text.contains("SAMPLER") && text.contains("HOST WALL TIME")
                || text.contains("NOTHING SAMPLED"),
            "{name}: what matters is left out\n{text}"
        );
    }
}

#[test]
fn every_recording_fits_a_screen() {
    let mut profiles = recorded();
    profiles.push(("four ranks".to_owned(), ranks()));
    for (name, mut profile) in profiles {
        assert_fits(&name, &profile);
        profile.run.nonblocking = true;
        assert_fits(&format!("{name}, nonblocking"), &profile);
        profile.run.native = false;
        assert_fits(&format!("{name}, Python stacks only"), &profile);
        for number in 0..12 {
            let text = format!("{number}: something that takes a line or two of eighty columns");
            profile.run.notes.push(format!("{text} to be said"));
            profile.missing.push(format!("{text} is missing here"));
        }
        assert_fits(&format!("{name}, damaged"), &profile);
    }
}
