//! Writing: what is readable while it is written, what is refused, and a disk that is full.

use crate::builder::{TorchProcess, create, run_info, small_segments};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use torchspy::recording::{OpenError, Recording, RecordingWriter, WriteError};

#[test]
fn what_was_written_is_readable_while_more_is_being_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.tspy");
    let mut writer = create(&path, &run_info());
    assert_eq!(Recording::read(&path).unwrap().missing.len(), 1);
    let mut expected = 0;
    for segment in small_segments() {
        writer.write_segment(&segment).unwrap();
        expected += segment.samples.len();
        assert_eq!(Recording::read(&path).unwrap().samples.len(), expected);
    }
}

/// A reader sees what the kernel has of a write that is under way: any part of it.
#[test]
fn of_a_recording_that_grows_a_part_of_a_segment_is_neither_missing_nor_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.tspy");
    let mut writer = create(&path, &run_info());
    let mut ends = vec![writer.length()];
    let segments = small_segments();
    for segment in &segments {
        writer.write_segment(segment).unwrap();
        ends.push(writer.length());
    }
    drop(writer);
    let bytes = std::fs::read(&path).unwrap();
    for length in 0..=bytes.len() {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let file = File::open(&path).unwrap();
        let complete = ends.iter().filter(|&&end| end <= length as u64).count();
        match Recording::read_file(&file, true) {
            Err(OpenError::NothingYet) => assert!(complete < 2, "{length}"),
            Err(error) => panic!("{length}: {error}"),
            Ok(recording) => {
                assert_eq!(recording.missing, Vec::<String>::new(), "{length}");
                let samples = segments[..complete - 1]
                    .iter()
                    .map(|each| each.samples.len());
                assert_eq!(recording.samples.len(), samples.sum::<usize>(), "{length}");
                // The last segment says that it is the last.
                assert_eq!(recording.growing, complete < ends.len(), "{length}");
            }
        }
    }
}

#[test]
fn a_segment_that_is_not_valid_costs_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.tspy");
    let mut writer = create(&path, &run_info());
    let [good, last] = small_segments().try_into().unwrap();
    let mut bad = good.clone();
    bad.tables.threads.clear();
    assert!(matches!(
        writer.write_segment(&bad),
        Err(WriteError::Segment(_))
    ));
    writer.write_segment(&good).unwrap();
    writer.write_segment(&last).unwrap();
    writer.finish().unwrap();
    assert_eq!(
        Recording::read(&path).unwrap().missing,
        Vec::<String>::new()
    );
}

#[test]
fn a_device_that_is_always_full_is_an_error_at_once() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    match RecordingWriter::from_file(full, &run_info()) {
        Err(WriteError::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::StorageFull),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pipe_can_be_written_to() {
    let (reader, writer) = io::pipe().unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(writer));
    let mut recorder = RecordingWriter::from_file(file, &run_info()).unwrap();
    let segments = small_segments();
    for segment in &segments {
        recorder.write_segment(segment).unwrap();
    }
    recorder.finish().unwrap();
    let bytes: Vec<u8> = io::Read::bytes(reader).collect::<Result<_, _>>().unwrap();
    let recording = Recording::read_bytes(&bytes).unwrap();
    assert_eq!(recording.missing, Vec::<String>::new());
}

/// A small file system that can be filled; unmounted when it goes.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    fn mount(path: &Path) -> Result<Self, String> {
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=128k", "tmpfs"])
            .arg(path)
            .output()
            .map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(Self { path: path.into() })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.path).status();
    }
}

#[test]
fn a_full_disk_costs_only_what_did_not_fit() {
    let directory = tempfile::tempdir().unwrap();
    let disk = match SmallDisk::mount(directory.path()) {
        Ok(disk) => disk,
        Err(reason) => {
            println!("skipped: no tmpfs can be mounted here: {reason}");
            return;
        }
    };
    let path = disk.path.join("run.tspy");
    let ballast = disk.path.join("ballast");
    std::fs::write(&ballast, vec![0; 40 << 10]).unwrap();
    let mut writer = create(&path, &run_info());
    let mut process = TorchProcess::new(160);
    let mut samples = 0;
    let mut segments = Vec::new();
    let error = loop {
        let segment = process.second(false);
        match writer.write_segment(&segment) {
            Ok(()) => samples += segment.samples.len(),
            Err(error) => {
                segments.push(segment);
                break error;
            }
        }
    };
    match error {
        WriteError::Io(error) => assert_eq!(error.kind(), io::ErrorKind::StorageFull),
        other => panic!("{other}"),
    }
    assert!(samples > 0, "the disk was full before anything was written");
    let whole = std::fs::metadata(&path).unwrap().len();
    assert_eq!(whole, writer.length(), "the failed part was not removed");
    assert_eq!(Recording::read(&path).unwrap().samples.len(), samples);
    // Where space comes back, writing goes on.
    std::fs::remove_file(&ballast).unwrap();
    writer.write_segment(&segments[0]).unwrap();
    samples += segments[0].samples.len();
    let recording = Recording::read(&path).unwrap();
    assert_eq!(recording.samples.len(), samples);
    assert_eq!(recording.missing.len(), 1, "{:?}", recording.missing);
    drop(writer);
}

#[test]
fn a_disk_that_is_full_from_the_start_leaves_an_empty_file() {
    let directory = tempfile::tempdir().unwrap();
    let disk = match SmallDisk::mount(directory.path()) {
        Ok(disk) => disk,
        Err(reason) => {
            println!("skipped: no tmpfs can be mounted here: {reason}");
            return;
        }
    };
    let path = disk.path.join("run.tspy");
    std::fs::write(&path, "").unwrap();
    // Fills the disk to the last byte, and fails.
    assert!(std::fs::write(disk.path.join("ballast"), vec![0; 256 << 10]).is_err());
    let file = File::create(&path).unwrap();
    assert!(RecordingWriter::from_file(file, &run_info()).is_err());
    assert!(matches!(Recording::read(&path), Err(OpenError::Empty)));
}
