//! Recordings of a job of many ranks, made from those of a real one: see `scripts/simulate-job`.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use torchspy::model::frame::Frame;
use torchspy::model::interner::Interner;
use torchspy::model::process::ProcessInfo;
use torchspy::model::run::RunInfo;
use torchspy::model::segment::Segment;
use torchspy::model::tables::Tables;
use torchspy::model::track::CounterTracks;
use torchspy::recording::{Recording, RecordingWriter};
use torchspy::torch::job::JobPlace;

/// What is made.
struct Options {
    from: PathBuf,
    to: PathBuf,
    ranks: u32,
    ranks_per_host: u32,
    /// The rank that the recording of the real job's slow rank becomes; others never do.
    straggler: Option<u32>,
    slow_rank: Option<u32>,
    /// Each rank becomes what it is in the real job.
    same: bool,
    /// Wall clocks of hosts are off by up to this, and drift by up to that.
    offset_ms: f64,
    drift_ppm: f64,
    missing: Vec<u32>,
    corrupt: Vec<u32>,
    newer: Vec<u32>,
    older: Vec<u32>,
}

/// A version that no torchspy reads yet, and the first one.
const NEWER: u32 = 99;
const OLDER: u32 = 1;

/// A clock of a host: times of the real job become times of the host's CLOCK_MONOTONIC.
#[derive(Clone, Copy)]
struct Clock {
    origin_ns: u64,
    booted_ns: u64,
    drift: f64,
    wall_offset_ns: i64,
}

impl Clock {
    fn time(&self, at_ns: u64) -> u64 {
        if at_ns == 0 {
            return 0;
        }
        let since = at_ns as i128 - i128::from(self.origin_ns);
        let drifted = since + (since as f64 * self.drift).round() as i128;
        u64::try_from(i128::from(self.booted_ns) + drifted).unwrap_or(0)
    }

    fn wall(&self, wall_ns: u64) -> u64 {
        wall_ns.saturating_add_signed(self.wall_offset_ns)
    }
}

fn main() {
    let options = options();
    fs::create_dir_all(&options.to).expect("a folder for the job");
    let mut files: Vec<PathBuf> = fs::read_dir(&options.from)
        .expect("a folder of recordings")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "tspy")
        })
        .collect();
    files.sort();
    let bases: Vec<(u32, Recording)> = files
        .iter()
        .map(|file| {
            let recording = Recording::read(file).expect("a recording");
            (rank_of(&recording).expect("a rank"), recording)
        })
        .collect();
    let slow = options.slow_rank;
    let is_slow = |rank: u32| Some(rank) == slow;
    let (slow_bases, plain): (Vec<_>, Vec<_>) = bases.iter().partition(|base| is_slow(base.0));
    let mut random = 7_u64;
    let mut truth = Vec::new();
    let first = &bases[0].1;
    let origin_wall_ns = first.run.started_wall_ns + first.start_ns - first.run.started_ns;
    for host in 0..options.ranks.div_ceil(options.ranks_per_host) {
        // The first host is not off: the truth is relative to it.
        let off = if host == 0 { 0.0 } else { 1.0 };
        let clock = Clock {
            origin_ns: first.start_ns,
            booted_ns: 1_000_000_000_000 + u64::from(host) * 77_000_000_000,
            drift: off * options.drift_ppm / 1e6 * signed(&mut random),
            wall_offset_ns: (off * options.offset_ms * 1e6 * signed(&mut random)) as i64,
        };
        truth.push(serde_json::json!({
            "host": format!("node{host:04}"),
            "origin_wall_ns": origin_wall_ns,
            "ahead_at_start_ms": clock.wall_offset_ns as f64 / 1e6,
            "drift_ppm": clock.drift * 1e6,
        }));
        for rank in (host * options.ranks_per_host..).take(options.ranks_per_host as usize) {
            if rank >= options.ranks || options.missing.contains(&rank) {
                continue;
            }
            let own = bases.iter().find(|base| options.same && base.0 == rank);
            let base = match (own, options.straggler == Some(rank)) {
                (Some(own), _) => &own.1,
                (None, true) => &slow_bases[0].1,
                (None, false) => &plain[rank as usize % plain.len()].1,
            };
            let path = options.to.join(format!("node{host:04}-{rank:05}.tspy"));
            write(&path, base, rank, &options, clock, host);
            if options.corrupt.contains(&rank) {
                let length = fs::metadata(&path).expect("a file").len();
                let file = OpenOptions::new().write(true).open(&path).expect("a file");
                file.set_len(length / 2).expect("a shorter file");
            }
            if options.newer.contains(&rank) {
                set_version(&path, NEWER);
            }
            if options.older.contains(&rank) {
                set_version(&path, OLDER);
            }
        }
    }
    let text = serde_json::to_string_pretty(&truth).expect("JSON");
    fs::write(options.to.join("clocks.json"), text).expect("the truth of clocks");
}

/// A number from -1 to 1.
fn signed(random: &mut u64) -> f64 {
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*random >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}

fn rank_of(recording: &Recording) -> Option<u32> {
    let mut processes = recording.tables.processes.iter();
    processes.find_map(|process| JobPlace::of(&process.environment, &process.command).rank)
}

fn set(process: &mut ProcessInfo, name: &str, value: u32) {
    for (key, old) in &mut process.environment {
        if key == name {
            *old = value.to_string();
        }
    }
}

/// Adds to all pids: ranks of a host with the same pid would count as one process.
fn set_pids(run: &mut RunInfo, segment: &mut Segment, by: i32) {
    let shift = |pid: &mut i32| {
        // 0 is none, and 1 is init.
        if *pid > 1 {
            *pid += by;
        }
    };
    shift(&mut run.pid);
    for process in &mut segment.tables.processes {
        shift(&mut process.pid);
        shift(&mut process.parent_pid);
    }
    for thread in segment.tables.threads.values_mut() {
        shift(&mut thread.tid);
    }
    for track in segment.sideband.tracks.tracks.values_mut() {
        shift(&mut track.pid);
    }
}

/// Writes a recording as that of another rank, on another host.
fn write(path: &Path, base: &Recording, rank: u32, options: &Options, clock: Clock, host: u32) {
    let mut run = base.run.clone();
    run.host = format!("node{host:04}");
    run.started_wall_ns = clock.wall(run.started_wall_ns);
    run.started_ns = clock.time(run.started_ns);
    let mut segment = Segment {
        index: 0,
        start_ns: clock.time(base.start_ns),
        end_ns: clock.time(base.end_ns),
        tables: base.tables.clone(),
        symbols: base.symbols.iter().cloned().collect(),
        samples: base.samples.clone(),
        sideband: base.sideband.clone(),
        last: true,
    };
    for process in &mut segment.tables.processes {
        set(process, "RANK", rank);
        set(process, "WORLD_SIZE", options.ranks);
        set(process, "LOCAL_RANK", rank % options.ranks_per_host);
        set(process, "LOCAL_WORLD_SIZE", options.ranks_per_host);
        process.first_seen_ns = clock.time(process.first_seen_ns);
        process.last_seen_ns = clock.time(process.last_seen_ns);
    }
    for thread in segment.tables.threads.values_mut() {
        thread.first_seen_ns = clock.time(thread.first_seen_ns);
        thread.last_seen_ns = clock.time(thread.last_seen_ns);
    }
    for sample in &mut segment.samples {
        let end_ns = clock.time(sample.start_ns + sample.weight_ns);
        sample.start_ns = clock.time(sample.start_ns);
        sample.weight_ns = end_ns - sample.start_ns;
    }
    segment
        .samples
        .sort_by_key(|sample| (sample.start_ns, sample.thread));
    for point in &mut segment.sideband.points {
        point.before_ns = clock.time(point.before_ns);
        point.time_ns = clock.time(point.time_ns);
    }
    for point in &mut segment.sideband.tracks.points {
        point.start_ns = clock.time(point.start_ns);
        point.end_ns = clock.time(point.end_ns);
    }
    for pair in &mut segment.sideband.clocks {
        pair.monotonic_ns = clock.time(pair.monotonic_ns);
        pair.wall_ns = clock.wall(pair.wall_ns);
    }
    if !options.same {
        let local = (rank % options.ranks_per_host) as i32;
        set_pids(&mut run, &mut segment, local * 1_000_000);
    }
    if options.older.contains(&rank) {
        forget_later_tables(&mut segment);
    }
    let file = File::create_new(path).expect("a new file");
    let mut writer = RecordingWriter::from_file(file, &run).expect("a head");
    writer.write_segment(&segment).expect("a segment");
}

/// Forgets what came with version 2 of the format. Its tables come after those of version 1, and
/// a reader of version 1 passes over what is left of them: that they are empty.
fn forget_later_tables(segment: &mut Segment) {
    let Tables {
        nn_modules,
        counters,
        stacks,
        ..
    } = &mut segment.tables;
    *nn_modules = Interner::default();
    *counters = Interner::default();
    let all = std::mem::take(stacks);
    for sample in &mut segment.samples {
        let frames = all.root_to_leaf(sample.stack).into_iter();
        let frames = frames.map(|frame| *all.frame(frame));
        sample.stack = stacks.intern(
            frames.filter(|frame| !matches!(frame, Frame::NnModule(_) | Frame::Compiles(_))),
        );
    }
    let sideband = &mut segment.sideband;
    sideband.points.clear();
    sideband.conditions.clear();
    sideband.tracks = CounterTracks::default();
}

/// Sets the format's version in a file's head.
fn set_version(path: &Path, version: u32) {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("a file");
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).expect("a recording");
    // Magic, version, length of the block, checksum of these and the block.
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    let length = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..16]);
    hasher.update(&bytes[20..20 + length]);
    bytes[16..20].copy_from_slice(&hasher.finalize().to_le_bytes());
    file.seek(SeekFrom::Start(0)).expect("its start");
    file.write_all(&bytes).expect("a recording");
}

fn options() -> Options {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).map(String::as_str)
    };
    let number = |name: &str| value(name).map(|text| text.parse::<f64>().expect(name));
    let list = |name: &str| {
        let texts = value(name).into_iter().flat_map(|text| text.split(','));
        texts.map(|text| text.parse().expect(name)).collect()
    };
    Options {
        from: value("--from").expect("--from DIR").into(),
        to: value("--to").expect("--to DIR").into(),
        ranks: number("--ranks").unwrap_or(1000.0) as u32,
        ranks_per_host: number("--ranks-per-host").unwrap_or(8.0) as u32,
        same: arguments.iter().any(|argument| argument == "--same"),
        straggler: number("--straggler").map(|rank| rank as u32),
        slow_rank: number("--slow-rank").map(|rank| rank as u32),
        offset_ms: number("--offset-ms").unwrap_or(30.0),
        drift_ppm: number("--drift-ppm").unwrap_or(20.0),
        missing: list("--missing"),
        corrupt: list("--corrupt"),
        newer: list("--newer"),
        older: list("--older"),
    }
}
