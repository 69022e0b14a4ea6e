//! Memory, its limits and what it ended, in the page.

use crate::page::{column, data, page, trained};
use torchspy::model::profile::Profile;
use torchspy::model::track::{TrackInfo, TrackKind, TrackPoint};

const GIB: u64 = 1 << 30;
const SECOND: u64 = 1_000_000_000;

/// A run in a cgroup whose memory grows to `most` of its limit of 8 GiB.
fn limited(most: f64) -> Profile {
    use TrackKind::{
        Anonymous, CgroupAnonymous, CgroupCache, CgroupLimit, CgroupShared, CgroupUsed, DevShmSize,
        DevShmUsed, MachineAvailable, MachineMemory, Resident, Shared, Swap,
    };
    let mut profile = trained();
    let pid = profile.processes[0].info.pid;
    let seconds = (profile.end_ns - profile.start_ns) / SECOND;
    let path = "/kubepods/pod-1234/train-job-42";
    let grown = |at: u64| (8.0 * most * GIB as f64 * (at as f64 + 1.0) / seconds as f64) as u64;
    type Level<'a> = (TrackKind, i32, &'a str, &'a dyn Fn(u64) -> u64);
    let levels: [Level<'_>; 10] = [
        (CgroupUsed, 0, path, &grown),
        (CgroupCache, 0, path, &|_| GIB),
        (CgroupShared, 0, path, &|at| grown(at) / 8),
        (CgroupAnonymous, 0, path, &|at| grown(at) / 2),
        (DevShmUsed, 0, "", &|at| grown(at) / 8),
        (MachineAvailable, 0, "", &|at| 64 * GIB - grown(at)),
        (Resident, pid, "python", &|at| grown(at) / 2),
        (Anonymous, pid, "python", &|at| grown(at) / 3),
        (Shared, pid, "python", &|at| grown(at) / 8),
        (Swap, pid, "python", &|at| at * (GIB >> 6)),
    ];
    for (kind, pid, process, level) in levels {
        for at in 0..seconds {
            put(&mut profile, kind, pid, process, at * SECOND, level(at));
        }
    }
    // Read once, when it begins: they hold.
    put(&mut profile, CgroupLimit, 0, path, SECOND, 8 * GIB);
    put(&mut profile, DevShmSize, 0, "", SECOND, 4 * GIB);
    put(&mut profile, MachineMemory, 0, "", SECOND, 64 * GIB);
    profile
}

fn put(profile: &mut Profile, kind: TrackKind, pid: i32, process: &str, at_ns: u64, value: u64) {
    let info = TrackInfo {
        kind,
        gpu: None,
        pid,
        process: process.to_owned(),
    };
    let track = profile.sideband.tracks.tracks.intern(&info);
    let at_ns = profile.start_ns + at_ns;
    profile.sideband.tracks.points.push(TrackPoint {
        track,
        start_ns: at_ns,
        end_ns: at_ns,
        value,
    });
}

/// Its rank 1 is killed at 6 s, since the cgroup is at its limit.
fn killed() -> Profile {
    use TrackKind::{CgroupLimitHits, EndingSignal, OomKills};
    let mut profile = limited(0.97);
    let path = "/kubepods/pod-1234/train-job-42";
    let pid = profile.processes[1].info.pid;
    for (kind, of, process, value) in [
        (CgroupLimitHits, 0, path, 5),
        (OomKills, 0, path, 1),
        (EndingSignal, pid, "python", 9),
    ] {
        put(&mut profile, kind, of, process, 6 * SECOND, value);
    }
    for point in &mut profile.sideband.tracks.points {
        let kind = profile.sideband.tracks.tracks.get(point.track.index());
        if kind.is_some_and(|it| matches!(it.kind, CgroupLimitHits | OomKills)) {
            point.start_ns -= SECOND;
        }
    }
    profile
}

/// For the check in browsers.
pub(crate) fn killed_page() -> String {
    page(&killed())
}

#[test]
fn limits_hold_from_their_reading_to_the_end() {
    let profile = limited(0.5);
    let (head, bytes) = data(&page(&profile));
    let tracks = head["tracks"].as_array().unwrap();
    let find = |kind: &str| {
        tracks
            .iter()
            .position(|track| track["kind"] == kind)
            .unwrap()
    };
    let limit = find("cgroup_limit");
    assert_eq!(tracks[limit]["process"], "/kubepods/pod-1234/train-job-42");
    assert_eq!(
        tracks[find("cgroup_used")]["process"],
        tracks[limit]["process"]
    );
    // One span, of all the time.
    let lengths = column(&head, &bytes, &format!("track.{limit}.length"));
    assert_eq!(lengths, [head["length_us"].as_u64().unwrap()]);
    assert_eq!(head["ends"].as_array().unwrap().len(), 0);
    let share = head["limit_share"].as_f64().unwrap();
    assert!((0.45..0.55).contains(&share), "{share}");
}

#[test]
fn an_end_by_memory_is_a_mark_and_the_first_statement() {
    let profile = killed();
    let (head, _) = data(&page(&profile));
    let ends = head["ends"].as_array().unwrap();
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0]["at_us"], 6_000_000);
    assert_eq!(ends[0]["process"], 1);
    assert_eq!(head["verdict"][0][0], "ENDED");
    let text = head["verdict"][0][1].as_str().unwrap();
    assert!(
        text.contains("out of memory in cgroup /kubepods/pod-1234/train-job-42"),
        "{text}"
    );
    assert!(head["limit_share"].as_f64().unwrap() > 0.9);
}
