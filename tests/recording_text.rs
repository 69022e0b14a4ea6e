//! The text form, which is also the golden test of the format: a file of version 1 reads as it always did.
#![allow(clippy::unwrap_used)]

mod recording;

use recording::{run_info, small_segments};
use std::path::{Path, PathBuf};
use torchspy::model::frame::Frame;
use torchspy::model::ids::{FrameId, NnModuleId, StackId};
use torchspy::model::nn_module::NnModuleInfo;
use torchspy::recording::{InspectOptions, Recording, RecordingWriter, render_text};

fn everything(recording: &Recording) -> String {
    let options = InspectOptions {
        stacks: true,
        samples: true,
        demangle: None,
    };
    render_text(recording, &options)
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recording/v1.tspy")
}

fn write_small(path: &Path) {
    let mut writer = RecordingWriter::create(path, &run_info()).unwrap();
    for segment in small_segments() {
        writer.write_segment(&segment).unwrap();
    }
    writer.finish().unwrap();
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
        segment.processes[0].command = vec![evil.into()];
        segment.processes[0].exe = evil.into();
        segment.processes[0].note = evil.into();
        segment.processes[0].environment = vec![(evil.into(), evil.into())];
        segment
            .threads
            .iter_mut()
            .for_each(|thread| thread.name = evil.into());
        segment
            .modules
            .iter_mut()
            .for_each(|module| module.path = evil.into());
        segment
            .symbols
            .iter_mut()
            .for_each(|symbol| symbol.name = evil.into());
        segment
            .losses
            .iter_mut()
            .for_each(|loss| loss.reason = evil.into());
        for code in &mut segment.codes {
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
    let mut writer = RecordingWriter::create(&path, &run).unwrap();
    for segment in &segments {
        writer.write_segment(segment).unwrap();
    }
    writer.finish().unwrap();
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
    segment.nn_modules.push(NnModuleInfo {
        root: "Net".into(),
        number: 1,
        path: "layer1.0".into(),
        class: "Block".into(),
        training: Some(false),
    });
    segment.frames.push(Frame::NnModule(NnModuleId(0)));
    let frame = FrameId::from_index(segment.frames.len() - 1);
    segment.stacks.push((segment.samples[0].stack, frame));
    let stack = StackId::from_index(segment.stacks.len() - 1);
    segment.samples[0].stack = Some(stack);
    segment.last = true;
    let mut writer = RecordingWriter::create(&path, &run_info()).unwrap();
    writer.write_segment(&segment).unwrap();
    writer.finish().unwrap();
    let recording = Recording::read(&path).unwrap();
    assert_eq!(recording.nn_modules, segment.nn_modules);
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
