//! `torchspy report DIR` of the files that an agent's ring has of a trainer: a real recording, in
//! parts as the agent writes them.

use crate::faults::program;
use crate::installed::torch_python;
use crate::job::said;
use crate::{STEADY, torchspy};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use torchspy::model::run::{ClockPair, RunInfo};
use torchspy::model::segment::Segment;
use torchspy::model::sideband::Sideband;
use torchspy::model::track::CounterTracks;
use torchspy::recording::{Recording, RecordingWriter};

/// Files of a session.
const FILES: u64 = 5;

/// A recording of a rank that trains for some seconds.
fn record(path: &Path) -> Option<Recording> {
    let python = torch_python()?;
    let ran = torchspy()
        .arg("record")
        .args(STEADY)
        .arg("-o")
        .arg(path)
        .arg("--")
        .arg(python)
        .args([&program("train_mlp_noworkers.py"), "--seconds", "5"])
        .envs([("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "29500")])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
    Some(Recording::read(path).unwrap())
}

/// The part of a recording from one time to another, as a segment.
fn part(of: &Recording, from_ns: u64, to_ns: u64) -> Segment {
    let within = |at_ns: u64| (from_ns..to_ns).contains(&at_ns);
    let sideband = &of.sideband;
    let mut samples = of.samples.clone();
    samples.retain(|sample| within(sample.start_ns));
    samples.sort_by_key(|sample| (sample.start_ns, sample.thread));
    let points = sideband.points.iter();
    let tracks = sideband.tracks.points.iter();
    Segment {
        start_ns: from_ns,
        end_ns: to_ns,
        tables: of.tables.clone(),
        symbols: of.symbols.iter().cloned().collect(),
        samples,
        sideband: Sideband {
            points: points.filter(|it| within(it.time_ns)).copied().collect(),
            conditions: sideband.conditions.clone(),
            tracks: CounterTracks {
                points: tracks.filter(|it| within(it.start_ns)).copied().collect(),
                ..sideband.tracks.clone()
            },
            ..Sideband::default()
        },
        last: true,
        ..Segment::default()
    }
}

/// From when to when it trained: the first and the last reading of its counters.
fn trained(of: &Recording) -> (u64, u64) {
    let points = &of.sideband.points;
    (points[0].time_ns, points[points.len() - 1].time_ns)
}

/// Writes a recording as the files of a session that began so long after it, of the process with
/// this pid.
fn write(of: &Recording, folder: &Path, name: &str, later_s: u64, pid: i32) -> Vec<PathBuf> {
    fs::create_dir_all(folder).unwrap();
    let started_wall_ns = of.run.started_wall_ns + later_s * 1_000_000_000;
    let at = |file: u64| match file {
        0 => of.start_ns,
        FILES => of.end_ns,
        _ => trained(of).0 + (trained(of).1 - trained(of).0) * file / FILES,
    };
    let files = (0..FILES).map(|file| {
        let run = RunInfo {
            pid,
            // As of the whole recording, so that figures can be compared with its.
            started_ns: of.run.started_ns + file,
            started_wall_ns: started_wall_ns + file,
            session: Some(ClockPair {
                monotonic_ns: of.run.started_ns,
                wall_ns: started_wall_ns,
            }),
            ..of.run.clone()
        };
        let mut segment = part(of, at(file), at(file + 1));
        for process in &mut segment.tables.processes {
            if process.pid == of.run.pid {
                process.pid = pid;
            }
        }
        let path = folder.join(format!("ring-{name}-{file}.tspy"));
        let created = File::create_new(&path).unwrap();
        let mut writer = RecordingWriter::from_file(created, &run).unwrap();
        writer.write_segment(&segment).unwrap();
        writer.finish().unwrap();
        path
    });
    files.collect()
}

fn report(folder: &Path) -> Value {
    let ran = torchspy()
        .arg("report")
        .arg(folder)
        .arg("--json")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// What a report says of its ranks, but for the names of files.
fn figures(report: &Value) -> Value {
    let mut ranks = report["ranks"].clone();
    for rank in ranks.as_array_mut().unwrap() {
        rank["file"].take();
    }
    ranks
}

fn text(folder: &Path, command: &str, more: &[&str]) -> String {
    let ran = torchspy()
        .arg(command)
        .arg(folder)
        .args(more)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
    String::from_utf8(ran.stdout).unwrap()
}

fn kept(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".parquet")).collect()
}

#[test]
fn files_of_a_process_are_one_recording_of_its_rank() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (single, ring) = (folder.join("single"), folder.join("ring"));
    fs::create_dir(&single).unwrap();
    let Some(recording) = record(&single.join("ring-a-0.tspy")) else {
        return;
    };
    let pid = recording.run.pid;
    let files = write(&recording, &ring, "a", 0, pid);

    // All of it: as the recording that was cut.
    let (whole, joined) = (report(&single), report(&ring));
    let name = &joined["recordings"][0]["file"];
    assert_eq!(name, "ring-a-0.tspy and 4 more", "{joined:#}");
    assert_eq!(joined["ranks"].as_array().map(Vec::len), Some(1));
    assert_eq!(figures(&joined), figures(&whole));
    assert_eq!(joined["recordings"].as_array().map(Vec::len), Some(1));
    assert_eq!(kept(&ring), ["ring-a-0.reduced.parquet"]);
    let again = report(&ring);
    assert_eq!(again, joined);

    // One that is missing: its time is in no figure, and what was kept is not used.
    fs::remove_file(&files[2]).unwrap();
    let with_gap = report(&ring);
    let missing = with_gap["recordings"][0]["missing"].as_array().unwrap();
    let (from_ns, to_ns) = trained(&recording);
    let length_s = (to_ns - from_ns) as f64 / 1e9 / FILES as f64;
    let expected = format!("ring-a-3.tspy: {length_s:.1} s before it are missing");
    assert_eq!(missing[..], [Value::from(expected.clone())], "{with_gap:#}");
    for (command, options) in [("report", &["--full"][..]), ("convert", &["-o", "-"])] {
        let text = text(&ring, command, options);
        assert!(text.contains("before it are missing"), "{text}");
    }
    let number = |report: &Value, key: &str| report["ranks"][0][key].as_f64().unwrap();
    let seconds = |report: &Value| number(report, "steps") * number(report, "step_ms") / 1e3;
    let left_out_s = seconds(&whole) - seconds(&with_gap);
    assert!(
        seconds(&with_gap) > 0.0 && left_out_s > length_s - 0.01,
        "{left_out_s} of {length_s}: {with_gap:#}"
    );

    // One that is damaged: it is named, and the rest is answered.
    fs::write(&files[4], b"no recording").unwrap();
    let damaged = report(&ring);
    assert_eq!(
        damaged["left_out"][0]["file"], "ring-a-4.tspy",
        "{damaged:#}"
    );
    assert_eq!(damaged["ranks"].as_array().map(Vec::len), Some(1));

    // The rank was started again: another process.
    write(&recording, &ring, "b", 3600, pid + 1);
    let restarted = report(&ring);
    assert_eq!(restarted["ranks"].as_array().map(Vec::len), Some(1));
    assert_eq!(restarted["ranks"][0]["pid"], pid + 1, "{restarted:#}");
    let left_out = restarted["left_out"].as_array().unwrap();
    let older = left_out
        .iter()
        .find(|each| each["file"] == "ring-a-0.tspy and 2 more");
    let why = older.unwrap()["why"].as_str().unwrap();
    assert!(why.contains("later or longer recording"), "{restarted:#}");
}
