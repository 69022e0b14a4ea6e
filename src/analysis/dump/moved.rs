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
    /// Whether it was on a CPU between the first look and the last; `None` where the kernel does not tell.
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

/// What several looks say together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// How many looks these are.
    pub looks: usize,
    /// Threads that were there at all looks.
    pub threads: Vec<ThreadMoves>,
    /// Counters that were read at the first look and the last.
    pub counters: Vec<CounterMoves>,
}

impl Moved {
    /// Whether no training thread's stack and no counter changed. `false` where nothing trains, and of one look.
    pub fn is_hang(&self) -> bool {
        let mut training = self
            .threads
            .iter()
            .filter(|thread| thread.trains)
            .peekable();
        self.looks > 1
            && training.peek().is_some()
            && training.all(|thread| thread.moves == 0)
            && self.counters.iter().all(|each| each.first == each.last)
    }
}

/// Compares looks at the same processes, one after another: all that is kept of them is the first one, and of each thread where it
/// was last.
#[derive(Debug, Default)]
pub struct Comparison {
    first: Option<Dump>,
    looks: usize,
    last_wall_ns: u64,
    /// Threads that were there at all looks so far, by process (an index of the first look) and tid.
    threads: Vec<Followed>,
    counters: Vec<CounterMoves>,
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
        for (index, process) in first.processes.iter().enumerate() {
            let now = look.processes.iter().find(|each| each.pid == process.pid);
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

    fn moved(looks: Vec<Dump>) -> Moved {
        let mut comparison = Comparison::default();
        for look in looks {
            comparison.add(look);
        }
        comparison.moved()
    }

    #[test]
    fn a_hang_is_what_did_not_move_in_two_looks_or_more() {
        assert!(!moved(vec![look("f:1", 5)]).is_hang());
        assert!(moved(vec![look("f:1", 5), look("f:1", 5)]).is_hang());
        assert!(!moved(vec![look("f:1", 5), look("f:1", 6)]).is_hang());
        let there_and_back = moved(vec![look("f:1", 5), look("f:2", 5), look("f:1", 5)]);
        assert_eq!(there_and_back.threads[0].moves, 2);
        assert!(!there_and_back.is_hang());
    }

    #[test]
    fn a_thread_that_was_not_there_at_all_looks_is_left_out() {
        let mut without = look("f:1", 5);
        without.processes[0].threads.clear();
        let found = moved(vec![look("f:1", 5), without, look("f:1", 5)]);
        assert_eq!(found.threads, []);
        assert!(!found.is_hang(), "nothing is known of what trains");
    }
}
