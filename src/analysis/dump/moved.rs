//! What moved between snapshots and what did not: in a hang nothing moves.

use super::verdict::doing;
use crate::model::dump::{Dump, DumpedThread, Place};
use crate::model::profile::Role;

/// A thread over several snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadMoves {
    /// Its process: an index of the first snapshot.
    pub process: usize,
    pub tid: i32,
    pub name: String,
    /// Whether it is a training thread.
    pub trains: bool,
    /// Number of successive pairs of snapshots between which its stack changed.
    pub moves: usize,
    /// Whether it was on a CPU between the first snapshot and the last; `None` if the kernel does
    /// not report it.
    pub ran: Option<bool>,
    /// What it did in the last snapshot, and the line.
    pub doing: String,
    pub at: Option<Place>,
}

/// A counter over several snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterMoves {
    /// Its process: an index of the first snapshot.
    pub process: usize,
    /// What is counted.
    pub what: String,
    /// In the first snapshot.
    pub first: u64,
    pub last: u64,
}

/// Whether a job hangs, judged by several snapshots of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standstill {
    /// It hangs: no training thread changed its stack, and none was on a CPU in between.
    Hang,
    /// No training thread changed its stack, but some ran: an endless loop, or a line that takes
    /// long or is executed often.
    SamePlace,
    /// No training thread changed its stack, but the time was too short to call it a hang.
    TooShort,
    /// A stack changed, or nothing is known about the training threads.
    No,
}

/// A shorter standstill is not a hang: a step, a batch or a pause may last that long, ns.
const SHORTEST_HANG_NS: u64 = 500_000_000;

/// The result of several snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Number of snapshots.
    pub snapshots: usize,
    /// Time between the first and the last.
    pub length_ns: u64,
    /// Threads that were in all snapshots.
    pub threads: Vec<ThreadMoves>,
    /// Counters that were read in the first snapshot and the last.
    pub counters: Vec<CounterMoves>,
    /// Processes of the first snapshot that have ended since: indices into it.
    pub ended: Vec<usize>,
}

impl Moved {
    /// Whether the job hangs.
    pub fn standstill(&self) -> Standstill {
        let training: Vec<&ThreadMoves> =
            self.threads.iter().filter(|thread| thread.trains).collect();
        let is_still = self.snapshots > 1
            && !training.is_empty()
            && training.iter().all(|thread| thread.moves == 0)
            && self.counters.iter().all(|each| each.first == each.last);
        if !is_still {
            Standstill::No
        } else if self.length_ns < SHORTEST_HANG_NS {
            Standstill::TooShort
        } else if training.iter().any(|thread| thread.ran != Some(false)) {
            Standstill::SamePlace
        } else {
            Standstill::Hang
        }
    }
}

/// Compares successive snapshots of the same processes. Keeps only the first snapshot and each
/// thread's last position.
#[derive(Debug, Default)]
pub struct Comparison {
    first: Option<Dump>,
    snapshots: usize,
    last_wall_ns: u64,
    /// Threads that were in all snapshots so far, by process (an index of the first snapshot) and
    /// tid.
    threads: Vec<Followed>,
    counters: Vec<CounterMoves>,
    ended: Vec<usize>,
}

#[derive(Debug)]
struct Followed {
    places: Vec<Spot>,
    slices: Option<u64>,
    moves: ThreadMoves,
}

/// Function, file, line.
type Spot = (String, String, u32);

impl Comparison {
    /// Adds the next snapshot.
    pub fn add(&mut self, snapshot: Dump) {
        self.snapshots += 1;
        self.last_wall_ns = snapshot.wall_ns;
        let Some(first) = &self.first else {
            self.begin(snapshot);
            return;
        };
        self.threads.retain_mut(|thread| {
            let process = first.processes.get(thread.moves.process);
            let now = process.and_then(|process| find(&snapshot, process.pid, thread.moves.tid));
            now.is_some_and(|now| {
                thread.go_on(now);
                true
            })
        });
        self.counters.clear();
        self.ended.clear();
        for (index, process) in first.processes.iter().enumerate() {
            let now = snapshot
                .processes
                .iter()
                .find(|each| each.pid == process.pid);
            if now.is_none() {
                self.ended.push(index);
            }
            for counter in &process.progress {
                let same = now.and_then(|now| {
                    let mut all = now.progress.iter();
                    all.find(|each| (&each.what, &each.source) == (&counter.what, &counter.source))
                });
                if let Some(same) = same {
                    self.counters.push(CounterMoves {
                        process: index,
                        what: counter.what.clone(),
                        first: counter.value,
                        last: same.value,
                    });
                }
            }
        }
    }

    /// All processes ended after the last snapshot.
    pub fn all_ended(&mut self) {
        self.threads.clear();
        self.ended = (0..self.first.as_ref().map_or(0, |first| first.processes.len())).collect();
    }

    fn begin(&mut self, snapshot: Dump) {
        for (index, process) in snapshot.processes.iter().enumerate() {
            let is_trainer = matches!(process.role, Role::Trainer { .. });
            let threads = process.threads.iter().map(|thread| Followed {
                places: positions(thread),
                slices: thread.slices,
                moves: ThreadMoves {
                    process: index,
                    tid: thread.tid,
                    name: thread.python_name.as_ref().unwrap_or(&thread.name).clone(),
                    trains: thread.trains && is_trainer,
                    moves: 0,
                    ran: None,
                    doing: doing(thread),
                    at: thread.at.clone(),
                },
            });
            self.threads.extend(threads);
        }
        self.first = Some(snapshot);
    }

    /// The first snapshot, if there was any.
    pub fn first(&self) -> Option<&Dump> {
        self.first.as_ref()
    }

    /// Time between the first snapshot and the last.
    pub fn length_ns(&self) -> u64 {
        let first = self.first.as_ref().map_or(0, |first| first.wall_ns);
        self.last_wall_ns.saturating_sub(first)
    }

    /// The result of all snapshots so far.
    pub fn moved(&self) -> Moved {
        Moved {
            snapshots: self.snapshots,
            length_ns: self.length_ns(),
            ended: self.ended.clone(),
            threads: self.threads.iter().map(|each| each.moves.clone()).collect(),
            counters: self.counters.clone(),
        }
    }
}

impl Followed {
    fn go_on(&mut self, now: &DumpedThread) {
        let places = positions(now);
        self.moves.moves += usize::from(places != self.places);
        self.places = places;
        let slices = self.slices.zip(now.slices);
        self.moves.ran = slices.map(|(before, after)| before != after);
        self.moves.doing = doing(now);
        self.moves.at.clone_from(&now.at);
    }
}

fn find(snapshot: &Dump, pid: i32, tid: i32) -> Option<&DumpedThread> {
    let process = snapshot.processes.iter().find(|each| each.pid == pid)?;
    process.threads.iter().find(|each| each.tid == tid)
}

/// The position of every Python frame; for threads without any, of every native one.
pub(super) fn positions(thread: &DumpedThread) -> Vec<Spot> {
    let has_python = thread.frames.iter().any(|frame| frame.is_python);
    let frames = thread
        .frames
        .iter()
        .filter(|frame| frame.is_python || !has_python);
    frames
        .map(|frame| (frame.name.clone(), frame.file.clone(), frame.line))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::built::{process, thread};
    use super::*;
    use crate::model::dump::{DumpedProcess, Progress};

    /// A trainer at a line, at a step.
    fn snapshot(line: &str, step: u64) -> Dump {
        let trainer = DumpedProcess {
            role: Role::Trainer {
                rank: None,
                local_rank: None,
                world_size: None,
            },
            progress: vec![Progress {
                what: "step".to_owned(),
                value: step,
                source: "main".to_owned(),
            }],
            ..process(1, vec![thread(1, &[line, "main:9"])])
        };
        Dump {
            processes: vec![trainer],
            ..Dump::default()
        }
    }

    /// The result of snapshots half a minute apart, in which no thread ran, or all did.
    fn moved(snapshots: Vec<Dump>, ran: bool) -> Moved {
        let mut comparison = Comparison::default();
        for (number, mut snapshot) in (0_u64..).zip(snapshots) {
            snapshot.wall_ns = number * 30_000_000_000;
            for thread in snapshot
                .processes
                .iter_mut()
                .flat_map(|each| &mut each.threads)
            {
                thread.slices = Some(if ran { number } else { 0 });
            }
            comparison.add(snapshot);
        }
        comparison.moved()
    }

    #[test]
    fn a_hang_is_what_neither_moved_nor_ran() {
        let hangs = |snapshots, ran| moved(snapshots, ran).standstill();
        let same = || vec![snapshot("f:1", 5), snapshot("f:1", 5)];
        assert_eq!(hangs(vec![snapshot("f:1", 5)], false), Standstill::No);
        assert_eq!(hangs(same(), false), Standstill::Hang);
        assert_eq!(hangs(same(), true), Standstill::SamePlace);
        let counted = vec![snapshot("f:1", 5), snapshot("f:1", 6)];
        assert_eq!(hangs(counted, true), Standstill::No);
        let there_and_back = moved(
            vec![snapshot("f:1", 5), snapshot("f:2", 5), snapshot("f:1", 5)],
            true,
        );
        assert_eq!(there_and_back.threads[0].moves, 2);
        assert_eq!(there_and_back.standstill(), Standstill::No);
    }

    /// Two snapshots that far apart, of a trainer that does not move.
    fn standstill_of(length_ns: u64) -> Comparison {
        let mut comparison = Comparison::default();
        for wall_ns in [0, length_ns] {
            comparison.add(Dump {
                wall_ns,
                ..snapshot("f:1", 5)
            });
        }
        comparison
    }

    #[test]
    fn a_moment_in_which_nothing_moves_is_no_hang() {
        let comparison = standstill_of(1_000_000);
        assert_eq!(comparison.moved().standstill(), Standstill::TooShort);
    }

    #[test]
    fn what_ended_does_not_hang() {
        let mut comparison = standstill_of(30_000_000_000);
        comparison.all_ended();
        let found = comparison.moved();
        assert_eq!(found.standstill(), Standstill::No);
        assert_eq!(found.ended, [0]);
    }

    #[test]
    fn a_thread_that_was_not_there_at_all_looks_is_left_out() {
        let mut without = snapshot("f:1", 5);
        without.processes[0].threads.clear();
        let found = moved(vec![snapshot("f:1", 5), without, snapshot("f:1", 5)], false);
        assert_eq!(found.threads, []);
        assert_eq!(
            found.standstill(),
            Standstill::No,
            "nothing is known of what trains"
        );
    }
}
