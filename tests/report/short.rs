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

fn sampler_of(change: impl FnOnce(&mut torchspy::model::quality::Quality)) -> String {
    let mut builder = Builder::trainer();
    builder.ticks(0, 1000, S::Running, &[user("main", 50)]);
    builder.sideband.quality.ticks = 1000;
    change(&mut builder.sideband.quality);
    let profile = builder.profile();
    let options = TextOptions {
        detail: Detail::Brief,
        ..TextOptions::default()
    };
    let text = render_summary(&profile, &analyze(&profile), options);
    text[text.find("SAMPLER").unwrap()..].replace("\n  ", " ")
}

#[test]
fn what_the_sampler_did_is_said_with_its_units_and_consequences() {
    let calm = sampler_of(|quality| {
        for _ in 0..120 {
            quality.stops.record(90_000);
        }
        quality.target_run_ns = 10_000_000_000;
    });
    assert!(
        calm.contains("SAMPLER 100 samples a second of 100 asked for"),
        "{calm}"
    );
    assert!(
        calm.contains("stops took 0.1 % of the program's running time, 99 of 100 less than"),
        "{calm}"
    );
    assert!(!calm.contains("WARNING"), "{calm}");
    // Also in the short report, where it is short of ten percent.
    let late = sampler_of(|quality| quality.own_queue_ns = 400_000_000);
    assert!(
        late.contains("WARNING: torchspy waited for a CPU 4.0 % of the time, so samples came late"),
        "{late}"
    );
    assert!(late.contains("may be some points off"), "{late}");
    let turns = sampler_of(|quality| quality.skipped_for_turn = 20);
    assert!(
        turns.contains(
            "some threads have fewer samples, since every CPU is taken and they are read in turns"
        ),
        "{turns}"
    );
}
