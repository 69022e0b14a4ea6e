//! Processes whose memory grows: which are named, and in which words.

use crate::analysis_builder::{Builder, S, fetch, user};
use crate::track_builder::{gpu, put, track};
use torchspy::analysis::ends::Reason;
use torchspy::analysis::memory_growth::Cause;
use torchspy::analysis::tracks::series_of_sum;
use torchspy::analysis::{Analysis, analyze};
use torchspy::model::containers::{GrowingContainer, KeptContainers};
use torchspy::model::ids::ProcessId;
use torchspy::model::profile::Profile;
use torchspy::model::progress::{Condition, facts};
use torchspy::model::track::{TrackInfo, TrackKind};
use torchspy::report::text::{By, Detail, TextOptions, render_summary};

/// Two readings a second.
const READING_NS: u64 = 500_000_000;
const SECONDS: u64 = 60;

/// A trainer and a worker, of a minute.
fn trainer_and_worker() -> Builder {
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
    builder
}

/// The `MEMORY` lines of [`trainer_and_worker`] with the anonymous memory of both.
fn job(trainer: impl Fn(f64) -> f64, worker: impl Fn(f64) -> f64) -> String {
    let mut builder = trainer_and_worker();
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

/// A trainer of a minute whose memory grows by 2 MB a second, and what was read of its containers.
fn trainer_with(containers: Vec<GrowingContainer>) -> String {
    let mut builder = Builder::trainer();
    builder.ticks(0, 100 * SECONDS, S::Running, &[user("main", 90)]);
    let track = track(&mut builder, TrackKind::Anonymous, None, 100);
    for at in (0..SECONDS * 1_000_000_000).step_by(READING_NS as usize) {
        let level = 1e9 + 2e6 * (at as f64 / 1e9);
        put(&mut builder, track, at, at, level as u64);
    }
    builder.sideband.conditions.push(Condition {
        process: ProcessId(0),
        name: facts::GROWING_CONTAINERS.to_owned(),
        value: KeptContainers::text(containers),
    });
    let profile = builder.profile();
    let options = TextOptions {
        by: Some(By::Memory),
        ..TextOptions::default()
    };
    let text = render_summary(&profile, &analyze(&profile), options);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn container(name: &str, items: u64, item_bytes: u64) -> GrowingContainer {
    GrowingContainer {
        name: name.to_owned(),
        class: "list".to_owned(),
        file: "/home/a/train.py".to_owned(),
        function: "main".to_owned(),
        line: 90,
        first_ns: 0,
        first_length: 100,
        last_ns: SECONDS * 1_000_000_000,
        last_length: 100 + items,
        item_class: "Tensor".to_owned(),
        item_bytes: Some(item_bytes),
        item_device_bytes: Some(0),
        items_keep_graphs: false,
    }
}

#[test]
fn a_list_whose_tensors_keep_their_graphs_is_named_without_a_share() {
    let losses = GrowingContainer {
        items_keep_graphs: true,
        ..container("losses", 6000, 32)
    };
    let text = trainer_with(vec![losses.clone(), container("names", 9000, 32)]);
    let expected = "perhaps it is in graphs: losses, a list of main (train.py:90): it gets 100 items a second (Tensor) that keep what computed them";
    assert!(text.contains(expected), "{text}");
    // What is known to hold it comes first.
    let text = trainer_with(vec![losses, container("kept", 600, 190_000)]);
    assert!(text.contains(" % of it is held by kept"), "{text}");
    assert!(!text.contains("losses"), "{text}");
}

#[test]
fn a_list_whose_items_are_what_grows_is_named() {
    let text = trainer_with(vec![
        container("losses", 6000, 32),
        container("kept", 600, 190_000),
    ]);
    let expected = " % of it is held by kept, a list of main (train.py:90): it gets 10 items a second, of 190 kB each (Tensor), and never gets shorter";
    assert!(text.contains(expected), "{text}");
    assert!(!text.contains("losses"), "{text}");
}

#[test]
fn lists_that_explain_too_little_or_too_much_are_not_named() {
    for bytes in [32, 90_000, 900_000] {
        let text = trainer_with(vec![container("kept", 600, bytes)]);
        assert!(text.contains("trainer grows by 2.0 MB"), "{text}");
        assert!(!text.contains("held by"), "{text}");
    }
}

/// A worker whose own memory stays as it is, and shares ever less of it with its trainer.
#[test]
fn a_worker_that_copies_what_it_shares_is_named_with_its_line() {
    let mut builder = trainer_and_worker();
    for (kind, rate) in [(TrackKind::Anonymous, 0.0), (TrackKind::Private, 2e6)] {
        let track = track(&mut builder, kind, None, 110);
        for at in (0..SECONDS * 1_000_000_000).step_by(READING_NS as usize) {
            let level = 3e8 + rate * (at as f64 / 1e9);
            put(&mut builder, track, at, at, level as u64);
        }
    }
    let profile = builder.profile();
    let analysis = analyze(&profile);
    assert_eq!(analysis.growing.len(), 1, "{:?}", analysis.growing);
    let growth = &analysis.growing[0];
    assert_eq!(growth.pid, 110);
    assert!((80e6..95e6).contains(&growth.bytes), "{growth:?}");
    assert!(
        matches!(&growth.cause, Some(Cause::Copied(Some(((_, 7), _))))),
        "{growth:?}"
    );
}

#[test]
fn memory_that_does_not_grow_is_not_mentioned() {
    assert_eq!(job(|_| 1e9, |at| 5e8 + 1e7 * (at % 3.0)), "");
}

const GB: u64 = 1_000_000_000;

/// Kind, pid, path, window in seconds, and value.
type Reading<'a> = (TrackKind, i32, &'a str, (u64, u64), u64);

/// A trainer (pid 100) and a worker (pid 110) of a minute with readings.
fn run(readings: &[Reading<'_>]) -> Analysis {
    analyze(&profile_of(readings))
}

fn profile_of(readings: &[Reading<'_>]) -> Profile {
    let mut builder = Builder::trainer();
    builder.ticks(0, 100 * SECONDS, S::Running, &[user("main", 90)]);
    builder.process(110, 100, &["python", "train.py"]);
    for &(kind, pid, path, (from_s, to_s), value) in readings {
        let info = TrackInfo {
            kind,
            gpu: None,
            pid,
            process: path.to_owned(),
        };
        let track = builder.sideband.tracks.tracks.intern(&info);
        put(&mut builder, track, from_s * GB, to_s * GB, value);
    }
    builder.profile()
}

const SIGKILL: u64 = 9;
const SIGBUS: u64 = 7;

fn reasons(readings: &[Reading<'_>]) -> Vec<Option<Reason>> {
    run(readings)
        .ends
        .into_iter()
        .map(|end| end.reason)
        .collect()
}

#[test]
fn the_kernel_kills_as_many_as_its_counter_says() {
    use TrackKind::{CgroupLimit, CgroupLimitHits, EndingSignal, OomKills};
    // Version 2: the job's own cgroup has no limit, its parent has; all counters count the kill.
    let mut readings = vec![
        (CgroupLimit, 0, "/pod", (1, 1), 4 * GB),
        (OomKills, 0, "/pod/job", (30, 31), 1),
        (OomKills, 0, "/pod", (30, 31), 1),
        (OomKills, 0, "", (30, 31), 1),
        (CgroupLimitHits, 0, "/pod", (30, 31), 3),
        (EndingSignal, 100, "", (34, 34), SIGKILL),
        // Of the rest of the job a launcher makes an end.
        (EndingSignal, 110, "", (35, 35), SIGKILL),
    ];
    let limit = Reason::CgroupLimit {
        path: "/pod".to_owned(),
        limit_bytes: 4 * GB,
    };
    assert_eq!(reasons(&readings), [Some(limit), None]);
    // Without an event at a limit that is known.
    readings.remove(4);
    let path = "/pod/job".to_owned();
    assert_eq!(
        reasons(&readings),
        [Some(Reason::OutOfMemory { path }), None]
    );
    // Only the machine's counter rose.
    readings.drain(1..3);
    assert_eq!(reasons(&readings), [Some(Reason::MachinePerhaps), None]);
    // Long before, and afterwards.
    for at in [(1, 2), (40, 41)] {
        readings[1] = (OomKills, 0, "", at, 1);
        assert_eq!(reasons(&readings), [None, None]);
    }
}

#[test]
fn a_bus_error_is_put_down_to_dev_shm_if_that_was_full() {
    use TrackKind::{DevShmSize, DevShmUsed, EndingSignal};
    let full = |used: u64, at: u64| {
        let readings = [
            (DevShmSize, 0, "", (1, 1), 64),
            (DevShmUsed, 0, "", (at, at), used),
            (EndingSignal, 110, "", (30, 30), SIGBUS),
        ];
        match reasons(&readings)[..] {
            [Some(Reason::DevShm { perhaps, .. })] => Some(!perhaps),
            _ => None,
        }
    };
    assert_eq!(full(63, 29), Some(true));
    assert_eq!(full(40, 29), Some(false));
    assert_eq!(full(3, 29), None);
    assert_eq!(full(64, 10), None);
}

#[test]
fn the_limit_with_least_left_is_told_with_the_time_to_it() {
    use TrackKind::{Anonymous, CgroupLimit, CgroupUsed, MachineAvailable, MachineMemory};
    let mut readings = vec![
        (MachineMemory, 0, "", (1, 1), 64 * GB),
        (MachineAvailable, 0, "", (50, 50), 30 * GB),
        (CgroupLimit, 0, "/job", (1, 1), 4 * GB),
        (CgroupUsed, 0, "/job", (59, 59), 4 * GB - 400_000_000),
    ];
    readings.extend((0..SECONDS).map(|at| (Anonymous, 100, "", (at, at), GB + at * 2_000_000)));
    let profile = profile_of(&readings);
    let analysis = analyze(&profile);
    let [binding, machine] = &analysis.limits[..] else {
        panic!("{:?}", analysis.limits);
    };
    assert_eq!(
        (binding.path.as_str(), binding.limit_bytes),
        ("/job", 4 * GB)
    );
    assert_eq!(machine.peak_bytes, 34 * GB);
    // 400 MB at 2 MB a second.
    let left = binding.seconds_left.expect("it grows");
    assert!(
        left.low <= 200.0 && 200.0 <= left.high && left.high < 210.0,
        "{left:?}"
    );
    let options = TextOptions {
        detail: Detail::Brief,
        ..TextOptions::default()
    };
    let text = render_summary(&profile, &analysis, options);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let limit = "MEMORY of the limit of cgroup /job at most 3.6 GB of 4.0 GB were in use (90.0 %)";
    assert!(text.contains(limit), "{text}");
    let time =
        "MEMORY at this rate the limit of cgroup /job (4.0 GB) is reached 3 min after the end";
    assert!(text.contains(time), "{text}");
}

/// Which processes are in which cgroup is not recorded.
#[test]
fn the_time_to_a_limit_is_told_only_if_all_processes_are_below_it() {
    use TrackKind::{Anonymous, CgroupLimit, CgroupUsed};
    let left = |other: &str| {
        let mut readings = vec![
            (CgroupLimit, 0, "/job/a", (1, 1), 4 * GB),
            (CgroupUsed, 0, "/job/a", (59, 59), 4 * GB - 400_000_000),
            (CgroupUsed, 0, other, (59, 59), GB),
        ];
        readings.extend((0..SECONDS).map(|at| (Anonymous, 100, "", (at, at), GB + at * 2_000_000)));
        let analysis = run(&readings);
        assert_eq!(analysis.limits[0].path, "/job/a");
        analysis.limits[0].seconds_left.is_some()
    };
    assert!(left("/job/a/worker") && left("/job"));
    assert!(!left("/job/b") && !left("/job/ab"));
}

#[test]
fn an_allocator_that_was_not_read_is_named_with_the_reason() {
    let text = |kind| {
        let mut builder = Builder::trainer();
        builder.ticks(0, 100 * SECONDS, S::Running, &[user("main", 90)]);
        let track = track(&mut builder, kind, None, 100);
        put(&mut builder, track, 1, 1, GB);
        builder.sideband.conditions.push(Condition {
            process: ProcessId(0),
            name: facts::ALLOCATOR_UNREAD.to_owned(),
            value: "it is not torch's own".to_owned(),
        });
        let profile = builder.profile();
        let options = TextOptions {
            by: Some(By::Memory),
            ..TextOptions::default()
        };
        let text = render_summary(&profile, &analyze(&profile), options);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let said = "its allocator of device memory was not read: it is not torch's own";
    let with = text(TrackKind::ProcessMemory);
    assert!(with.contains(said), "{with}");
    // Without memory of a device there is nothing to be read.
    let without = text(TrackKind::Resident);
    assert!(!without.contains(said), "{without}");
}

/// A minute on a device whose tensors grow by 20 MB a second, and take and give back 2 GB in each
/// second; the driver says of the process 500 MB more than its allocator held.
#[test]
fn tensors_that_grow_on_a_device_are_named_with_what_is_left_of_it() {
    let mut builder = Builder::trainer();
    builder.ticks(0, 100 * SECONDS, S::Running, &[user("main", 90)]);
    let device = gpu(&mut builder, &[]);
    let of_driver = track(&mut builder, TrackKind::ProcessMemory, Some(device), 100);
    let used = track(&mut builder, TrackKind::MemoryUsed, Some(device), 0);
    let sampled = track(&mut builder, TrackKind::SampledAllocated, None, 100);
    let cpu = track(&mut builder, TrackKind::Cpu, None, 100);
    let allocator = |kind| TrackInfo {
        kind,
        gpu: None,
        pid: 100,
        process: "python cuda:0".to_owned(),
    };
    let kinds = [
        TrackKind::AllocatorReserved,
        TrackKind::AllocatorAllocated,
        TrackKind::AllocatorActive,
        TrackKind::AllocatorInactiveSplit,
        TrackKind::AllocatorPeak,
        TrackKind::AllocatorReservedPeak,
    ];
    let tracks = kinds.map(|kind| builder.sideband.tracks.tracks.intern(&allocator(kind)));
    let retries = allocator(TrackKind::AllocatorRetries);
    let retries = builder.sideband.tracks.tracks.intern(&retries);
    let base = |at: u64| 10_000_000_000 + at / 50;
    let second = 1_000_000_000;
    for at in (0..SECONDS * second).step_by(100_000_000) {
        let in_step = (at % second) * 2;
        put(&mut builder, sampled, at, at, base(at) + in_step);
        if at % second == 0 {
            let peak = base(at) + 2 * second;
            let held = peak + 3 * second;
            let most = held + second;
            let figures = [held, base(at), base(at), held / 10, peak, most];
            for (track, value) in tracks.into_iter().zip(figures) {
                put(&mut builder, track, at, at, value);
            }
            put(&mut builder, of_driver, at, at, held + 500_000_000);
            put(&mut builder, used, at, at, held + 700_000_000);
            put(&mut builder, cpu, at, at + 1, 0);
        }
    }
    put(&mut builder, retries, 5 * second, 6 * second, 3);
    let all = &mut builder.sideband.tracks.points;
    all.sort_by_key(|point| (point.track, point.start_ns));
    let profile = builder.profile();
    let analysis = analyze(&profile);
    let [memory] = &analysis.device_memory[..] else {
        panic!("{:?}", analysis.device_memory);
    };
    assert_eq!(memory.beside_bytes, Some(500_000_000));
    // As torch counts it: more than at any reading.
    assert_eq!(memory.reserved_peak_bytes, memory.reserved_bytes + second);
    assert_eq!((memory.retries, memory.failures), (3, 0));
    assert!((memory.inactive_split_share - 0.1).abs() < 1e-6);
    // Of 80 GiB others and what is beside have 0.7 GB, and at the end tensors at most 13.18.
    let left = memory.seconds_left.unwrap();
    let expected = ((80_u64 << 30) as f64 - 0.7e9 - 13.18e9) / 20e6;
    assert!(
        (left.value / expected - 1.0).abs() < 0.02,
        "{left:?} {expected}"
    );
    let options = TextOptions {
        detail: Detail::Brief,
        ..TextOptions::default()
    };
    let text = render_summary(&profile, &analysis, options);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for expected in [
        "trainer's tensors on devices grow by 20 MB a second",
        "3 allocations found no memory on the device",
        "none failed",
        "at this rate the device has no memory left",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

/// Workers that live one after another, as those of a loader that starts new ones for each pass.
#[test]
fn memory_of_processes_that_come_and_go_counts_for_as_long_as_they_live() {
    let mut builder = Builder::trainer();
    builder.ticks(0, 100 * SECONDS, S::Running, &[user("main", 90)]);
    let mut tracks = Vec::new();
    for (pid, from, to) in [
        (100, 0, SECONDS),
        (201, 0, SECONDS / 2),
        (202, SECONDS / 2, SECONDS),
    ] {
        let own = track(&mut builder, TrackKind::Resident, None, pid);
        tracks.push(own);
        for at in (from * 1_000_000_000..to * 1_000_000_000).step_by(READING_NS as usize) {
            put(&mut builder, own, at, at, 1_000_000);
        }
    }
    let profile = builder.profile();
    let sum = series_of_sum(&profile, tracks.iter().copied(), 1)[0].unwrap();
    assert!((sum / 2e6 - 1.0).abs() < 0.05, "{sum}");
    let each = series_of_sum(&profile, tracks.iter().copied(), 4);
    let each: Vec<f64> = each.into_iter().flatten().collect();
    assert!(
        each.iter().all(|sum| (sum / 2e6 - 1.0).abs() < 0.1),
        "{each:?}"
    );
}
