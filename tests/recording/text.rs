//! The text form, which is also the golden test of the format: a file of version 1 reads as it
//! always did.

use crate::builder::{full_segments, run_info, small_segments, write};
use std::path::{Path, PathBuf};
use torchspy::model::frame::Frame;
use torchspy::model::ids::NnModuleId;
use torchspy::model::nn_module::NnModuleInfo;
use torchspy::model::region::Region;
use torchspy::recording::{InspectOptions, Recording, render_text};

fn everything(recording: &Recording) -> String {
    let options = InspectOptions {
        stacks: true,
        samples: true,
        demangle: None,
    };
    render_text(recording, &options)
}

fn fixture() -> PathBuf {
    fixture_of("v1.tspy")
}

fn fixture_of(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recording");
    fixtures.join(name)
}

fn write_small(path: &Path) {
    write(path, &run_info(), &small_segments());
}

#[test]
fn a_recording_of_version_1_reads_as_ever() {
    if !fixture().exists() && std::env::var_os("TORCHSPY_BLESS").is_some() {
        write_small(&fixture());
    }
    let recording = Recording::read(&fixture()).unwrap();
    insta::assert_snapshot!("v1", everything(&recording));
}

#[test]
fn what_is_written_today_reads_as_the_fixture() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("now.tspy");
    write_small(&path);
    let now = Recording::read(&path).unwrap();
    let then = Recording::read(&fixture()).unwrap();
    assert_eq!(everything(&now), everything(&then));
}

/// The tables of a recording's segments, as they are before compression.
fn payloads(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let mut at = 20 + word(12);
    let mut payloads = Vec::new();
    while at < bytes.len() {
        let (length, raw_length) = (word(at + 20), word(at + 24));
        let payload = &bytes[at + 36..at + 36 + length];
        payloads.push(zstd::bulk::decompress(payload, raw_length).unwrap());
        at += 36 + length;
    }
    payloads
}

#[test]
fn what_is_written_today_has_the_bytes_of_the_version_before() {
    let before = fixture_of("v2.tspy");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("now.tspy");
    let mut run = run_info();
    run.regions = vec![Region::parse("loss=train.py:Net.loss").unwrap()];
    write(&path, &run, &full_segments());
    assert_eq!(payloads(&path), payloads(&before));
    let head = |path: &Path| std::fs::read(path).unwrap()[..200].to_vec();
    assert_eq!(head(&path), head(&before));
    let [now, before] = [&path, &before].map(|path| everything(&Recording::read(path).unwrap()));
    assert_eq!(now, before);
}

#[test]
fn options_choose_what_is_shown() {
    let recording = Recording::read(&fixture()).unwrap();
    let demangle = |name: &str| format!("<{name}>");
    let options = InspectOptions {
        stacks: true,
        samples: false,
        demangle: Some(&demangle),
    };
    let text = render_text(&recording, &options);
    assert!(text.contains("na <_ZN2at6native3addEv>+0x10"), "{text}");
    assert!(!text.contains("\n  at "), "{text}");
    let bare = InspectOptions {
        stacks: false,
        ..InspectOptions::default()
    };
    assert!(!render_text(&recording, &bare).contains("    py "));
}

#[test]
fn control_bytes_of_the_target_do_not_reach_the_text() {
    let mut segments = small_segments();
    let evil = "\x1b]0;owned\x07\u{202e}\r";
    for segment in &mut segments {
        segment.tables.processes[0].command = vec![evil.into()];
        segment.tables.processes[0].exe = evil.into();
        segment.tables.processes[0].note = evil.into();
        segment.tables.processes[0].environment = vec![(evil.into(), evil.into())];
        let tables = &mut segment.tables;
        tables
            .threads
            .values_mut()
            .for_each(|thread| thread.name = evil.into());
        tables
            .modules
            .values_mut()
            .iter_mut()
            .for_each(|module| module.path = evil.into());
        segment
            .symbols
            .iter_mut()
            .for_each(|symbol| symbol.name = evil.into());
        segment
            .sideband
            .losses
            .iter_mut()
            .for_each(|loss| loss.reason = evil.into());
        for code in segment.tables.codes.values_mut() {
            code.name = evil.into();
            code.file = evil.into();
        }
    }
    let mut run = run_info();
    run.command = vec![evil.into()];
    run.host = evil.into();
    run.notes = vec![evil.into()];
    run.threads = Some(evil.into());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("evil.tspy");
    write(&path, &run, &segments);
    let text = everything(&Recording::read(&path).unwrap());
    assert!(text.contains("owned"));
    let unsafe_character = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!text.contains(unsafe_character));
}

#[test]
fn modules_come_back_and_are_printed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("modules.tspy");
    let mut segment = small_segments().remove(0);
    segment.tables.nn_modules.intern(&NnModuleInfo {
        root: "Net".into(),
        number: 1,
        path: "layer1.0".into(),
        class: "Block".into(),
        training: Some(false),
    });
    let stacks = &mut segment.tables.stacks;
    let frame = stacks.intern_frame(Frame::NnModule(NnModuleId(0)));
    let stack = stacks.intern_stack(segment.samples[0].stack, frame);
    segment.samples[0].stack = Some(stack);
    segment.last = true;
    write(&path, &run_info(), std::slice::from_ref(&segment));
    let recording = Recording::read(&path).unwrap();
    assert_eq!(recording.tables.nn_modules, segment.tables.nn_modules);
    let text = everything(&recording);
    assert!(
        text.contains("  N0 Net #1 \"layer1.0\" Block, eval\n"),
        "{text}"
    );
    assert!(
        text.contains("    nn N0 layer1.0 (Block, eval)\n"),
        "{text}"
    );
}
