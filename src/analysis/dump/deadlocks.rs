//! Deadlocks: threads that wait for each other in a circle.

use crate::model::dump::{Dump, DumpedProcess};

/// Threads of one process, each of which waits for a lock that the next one holds, and the last for
/// one that the first holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The process: an index of the dump.
    pub process: usize,
    /// The threads, by tid.
    pub tids: Vec<i32>,
}

/// All deadlocks of a dump. Only locks with a known holder count, and waits without a timeout.
pub fn deadlocks(dump: &Dump) -> Vec<Deadlock> {
    let mut found = Vec::new();
    for (index, process) in dump.processes.iter().enumerate() {
        let mut done: Vec<i32> = Vec::new();
        for thread in &process.threads {
            if done.contains(&thread.tid) {
                continue;
            }
            let mut line = vec![thread.tid];
            let circle = loop {
                let Some(next) = line.last().and_then(|&last| holder(process, last)) else {
                    break None;
                };
                if let Some(at) = line.iter().position(|&tid| tid == next) {
                    break line.get(at..).map(<[i32]>::to_vec);
                }
                if done.contains(&next) {
                    break None;
                }
                line.push(next);
            };
            done.extend(line);
            if let Some(tids) = circle {
                found.push(Deadlock {
                    process: index,
                    tids,
                });
            }
        }
    }
    found
}

/// The thread that holds the lock that a thread waits for.
fn holder(process: &DumpedProcess, tid: i32) -> Option<i32> {
    let thread = process.threads.iter().find(|thread| thread.tid == tid)?;
    let wait = thread.wait.as_ref()?;
    let goes_on = wait.lock.as_ref().is_some_and(|lock| lock.is_timed);
    Some(wait.owner.as_ref().filter(|_| !goes_on)?.tid)
}

#[cfg(test)]
mod tests {
    use super::super::built::{locked, process, thread};
    use super::*;

    fn found(threads: Vec<crate::model::dump::DumpedThread>) -> Vec<Vec<i32>> {
        let dump = Dump {
            processes: vec![process(1, threads)],
            ..Dump::default()
        };
        deadlocks(&dump).into_iter().map(|each| each.tids).collect()
    }

    #[test]
    fn a_circle_is_one_whoever_waits_for_it() {
        // 1 waits for 2, 2 for 3, 3 for 4, 4 for 2.
        let threads = vec![
            locked(1, 2),
            locked(2, 3),
            locked(3, 4),
            locked(4, 2),
            locked(5, 2),
        ];
        assert_eq!(found(threads), [[2, 3, 4]]);
        let mut backs_off = locked(1, 2);
        if let Some(lock) = backs_off.wait.as_mut().and_then(|wait| wait.lock.as_mut()) {
            lock.is_timed = true;
        }
        let ends = vec![backs_off, locked(2, 1)];
        assert_eq!(found(ends), Vec::<Vec<i32>>::new());
        let chain = vec![
            locked(1, 2),
            locked(2, 3),
            thread(3, &["step:1"]),
            locked(4, 9),
        ];
        assert_eq!(found(chain), Vec::<Vec<i32>>::new());
    }
}
