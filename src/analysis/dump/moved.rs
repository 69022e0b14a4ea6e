//! What moved between looks, and what did not: a hang is what does not move.

use super::verdict::doing;
use crate::model::dump::{Dump, DumpedThread, Place};
use crate::model::profile::Role;

/// A thread over several looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadMoves {
    /// Its process: an index of the first look.
    pub process: usize,
    /// Its tid.
    pub tid: i32,
    /// Its name.
    pub name: String,
    /// Whether it is a training thread.
    pub trains: bool,
    /// Between how many looks and the next its stack changed.
    pub moves: usize,
    /// Whether it was on a CPU between the first look and the last; `None` where the kernel does
    /// not tell.
    pub ran: Option<bool>,
    /// What it did at the last look, and where.
    pub doing: String,
    /// See `doing`.
    pub at: Option<Place>,
}

/// A counter over several looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterMoves {
    /// Its process: an index of the first look.
    pub process: usize,
    /// What is counted.
    pub what: String,
    /// At the first look.
    pub first: u64,
    /// At the last.
    pub last: u64,
}

/// Whether a job hangs, by several looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standstill {
    /// It does: nothing that trains was seen elsewhere, and none of it was on a CPU in between.
    Hang,
    /// Nothing that trains was seen elsewhere, but some of it ran: a loop without end, or a line
    /// that takes long or is often there.
    SamePlace,
    /// Nothing that trains moved, in too short a time to say more.
    TooShort,
    /// Something moved, or nothing is known of what trains.
    No,
}

/// What does not move for a shorter time is no hang: a step, a batch or a pause may last that long.
const SHORTEST_HANG_NS: u64 = 500_000_000;

/// What several looks say together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// How many looks these are.
    pub looks: usize,
    /// Time between the first and the last.
    pub length_ns: u64,
    /// Threads that were there at all looks.
    pub threads: Vec<ThreadMoves>,
    /// Counters that were read at the first look and the last.
    pub counters: Vec<CounterMoves>,
    /// Processes of the first look that ended since: indices of it.
    pub ended: Vec<usize>,
}

impl Moved {
    /// Whether it hangs.
    pub fn standstill(&self) -> Standstill {
        let training: Vec<&ThreadMoves> =
            self.threads.iter().filter(|thread| thread.trains).collect();
        let stands = self.looks > 1
            && !training.is_empty()
            && training.iter().all(|thread| thread.moves == 0)
            && self.counters.iter().all(|each| each.first == each.last);
        if !stands {
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

/// Compares looks at the same processes, one after another: all that is kept of them is the first
/// one, and of each thread where it was last.
#[derive(Debug, Default)]
pub struct Comparison {
    first: Option<Dump>,
    looks: usize,
    last_wall_ns: u64,
    /// Threads that were there at all looks so far, by process (an index of the first look) and
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
    /// Takes the next look.
    pub fn add(&mut self, look: Dump) {
        self.looks += 1;
        self.last_wall_ns = look.wall_ns;
        let Some(first) = &self.first else {
            self.begin(look);
            return;
        };
        self.threads.retain_mut(|thread| {
            let process = first.processes.get(thread.moves.process);
            let now = process.and_then(|process| find(&look, process.pid, thread.moves.tid));
            now.is_some_and(|now| {
                thread.go_on(now);
                true
            })
        });
        self.counters.clear();
        self.ended.clear();
        for (index, process) in first.processes.iter().enumerate() {
            let now = look.processes.iter().find(|each| each.pid == process.pid);
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

    /// All processes ended after the last look.
    pub fn all_ended(&mut self) {
        self.threads.clear();
        self.ended = (0..self.first.as_ref().map_or(0, |first| first.processes.len())).collect();
    }

    fn begin(&mut self, look: Dump) {
        for (index, process) in look.processes.iter().enumerate() {
            let is_trainer = matches!(process.role, Role::Trainer { .. });
            let threads = process.threads.iter().map(|thread| Followed {
                places: places(thread),
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
        self.first = Some(look);
    }

    /// The first look, if there was any.
    pub fn first(&self) -> Option<&Dump> {
        self.first.as_ref()
    }

    /// Time between the first look and the last.
    pub fn length_ns(&self) -> u64 {
        let first = self.first.as_ref().map_or(0, |first| first.wall_ns);
        self.last_wall_ns.saturating_sub(first)
    }

    /// What all looks so far say.
    pub fn moved(&self) -> Moved {
        Moved {
            looks: self.looks,
            length_ns: self.length_ns(),
            ended: self.ended.clone(),
            threads: self.threads.iter().map(|each| each.moves.clone()).collect(),
            counters: self.counters.clone(),
        }
    }
}

impl Followed {
    fn go_on(&mut self, now: &DumpedThread) {
        let places = places(now);
        self.moves.moves += usize::from(places != self.places);
        self.places = places;
        let slices = self.slices.zip(now.slices);
        self.moves.ran = slices.map(|(before, after)| before != after);
        self.moves.doing = doing(now);
        self.moves.at.clone_from(&now.at);
    }
}

fn find(look: &Dump, pid: i32, tid: i32) -> Option<&DumpedThread> {
    let process = look.processes.iter().find(|each| each.pid == pid)?;
    process.threads.iter().find(|each| each.tid == tid)
}

/// Where every Python frame is; of threads without any, every native one.
fn places(thread: &DumpedThread) -> Vec<Spot> {
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
    fn look(line: &str, step: u64) -> Dump {
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

    /// What looks say that are half a minute apart, in which no thread ran, or all did.
    fn moved(looks: Vec<Dump>, ran: bool) -> Moved {
        let mut comparison = Comparison::default();
        for (number, mut look) in (0_u64..).zip(looks) {
            look.wall_ns = number * 30_000_000_000;
            for thread in look.processes.iter_mut().flat_map(|each| &mut each.threads) {
                thread.slices = Some(if ran { number } else { 0 });
            }
            comparison.add(look);
        }
        comparison.moved()
    }

    #[test]
    fn a_hang_is_what_neither_moved_nor_ran() {
        let hangs = |looks, ran| moved(looks, ran).standstill();
        let same = || vec![look("f:1", 5), look("f:1", 5)];
        assert_eq!(hangs(vec![look("f:1", 5)], false), Standstill::No);
        assert_eq!(hangs(same(), false), Standstill::Hang);
        assert_eq!(hangs(same(), true), Standstill::SamePlace);
        let counted = vec![look("f:1", 5), look("f:1", 6)];
        assert_eq!(hangs(counted, true), Standstill::No);
        let there_and_back = moved(vec![look("f:1", 5), look("f:2", 5), look("f:1", 5)], true);
        assert_eq!(there_and_back.threads[0].moves, 2);
        assert_eq!(there_and_back.standstill(), Standstill::No);
    }

    /// Two looks that far apart, at a trainer that stays where it is.
    fn standing_for(length_ns: u64) -> Comparison {
        let mut comparison = Comparison::default();
        for wall_ns in [0, length_ns] {
            comparison.add(Dump {
                wall_ns,
                ..look("f:1", 5)
            });
        }
        comparison
    }

    #[test]
    fn a_moment_in_which_nothing_moves_is_no_hang() {
        let comparison = standing_for(1_000_000);
        assert_eq!(comparison.moved().standstill(), Standstill::TooShort);
    }

    #[test]
    fn what_ended_does_not_hang() {
        let mut comparison = standing_for(30_000_000_000);
        comparison.all_ended();
        let found = comparison.moved();
        assert_eq!(found.standstill(), Standstill::No);
        assert_eq!(found.ended, [0]);
    }

    #[test]
    fn a_thread_that_was_not_there_at_all_looks_is_left_out() {
        let mut without = look("f:1", 5);
        without.processes[0].threads.clear();
        let found = moved(vec![look("f:1", 5), without, look("f:1", 5)], false);
        assert_eq!(found.threads, []);
        assert_eq!(
            found.standstill(),
            Standstill::No,
            "nothing is known of what trains"
        );
    }
}
