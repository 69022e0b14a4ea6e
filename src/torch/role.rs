//! The role of a process in a job, and which of its threads trains.

use super::job::{is_launcher_command, ranks};
use crate::model::ids::{ProcessId, ThreadId};
use crate::model::process::ProcessInfo;
use crate::model::profile::Role;

/// Facts about a process from its stacks, for its role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// It ran a DataLoader's worker loop, or has a thread named after it.
    pub worker_loop: bool,
    /// Nanoseconds in forward, backward and optimizer.
    pub training_ns: u64,
    /// The part of `training_ns` in backward and optimizer, which evaluation does not have.
    pub learning_ns: u64,
    /// Samples of its threads.
    pub samples: u64,
    /// Nanoseconds that these stand for, over all threads.
    pub wall_ns: u64,
    /// It has a Python interpreter.
    pub python: bool,
}

/// Words of the command lines of `multiprocessing`'s own processes. Source: CPython
/// Lib/multiprocessing/spawn.py, forkserver.py, resource_tracker.py.
const SPAWNED: &str = "multiprocessing.spawn";
const HELPERS: &[&str] = &[
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
];

fn has_word(process: &ProcessInfo, word: &str) -> bool {
    process
        .command
        .iter()
        .any(|argument| argument.contains(word))
}

/// The nearest ancestor in the recording.
fn parent(processes: &[ProcessInfo], of: usize) -> Option<usize> {
    let child = processes.get(of)?;
    processes
        .iter()
        .enumerate()
        .filter(|&(index, other)| {
            // A pid may be reused: the parent existed before its child.
            index != of && other.pid == child.parent_pid && other.start_ticks <= child.start_ticks
        })
        .max_by_key(|(_, other)| other.start_ticks)
        .map(|(index, _)| index)
}

/// The ancestors of a process, nearest first. Ends even if pids of a damaged recording form a ring.
fn ancestors(processes: &[ProcessInfo], of: usize) -> Vec<usize> {
    let mut found: Vec<usize> = Vec::new();
    let mut next = parent(processes, of);
    while let Some(index) = next {
        if index == of || found.contains(&index) || found.len() >= 64 {
            break;
        }
        found.push(index);
        next = parent(processes, index);
    }
    found
}

/// The roles of all processes. `root_pid` is the process that was launched or attached to.
///
/// | order | rule | role |
/// |---|---|---|
/// | 1 | its stacks show the worker loop | DataLoader worker |
/// | 2 | resource tracker, fork server, no Python and no launcher, left out by its rank | other |
/// | 3 | the command names a launcher, and nothing was trained, or a child of it trained | launcher; other where it is its parent's command, too: a fork that was not seen to exec |
/// | 4 | something was trained | trainer |
/// | 5 | it descends from a process that trained, and did not train | DataLoader worker if that one spawned it by `multiprocessing`, else other |
/// | 6 | nothing of it was sampled, or it ended within 50 ms, and it is not the root | other: a fork that was seen before its exec |
/// | 7 | it has torch, or the environment names a rank, or it is the root | trainer, unless its children train: launcher |
pub fn roles(processes: &[ProcessInfo], facts: &[ProcessFacts], root_pid: i32) -> Vec<Role> {
    let lines: Vec<Vec<usize>> = (0..processes.len())
        .map(|index| ancestors(processes, index))
        .collect();
    let facts = without_traces(facts, &lines);
    let fact = |index: usize| facts.get(index).copied().unwrap_or_default();
    let trained = |index: usize| !fact(index).worker_loop && fact(index).training_ns > 0;
    let child_trained = |of: usize| {
        lines
            .iter()
            .enumerate()
            .any(|(index, line)| trained(index) && line.contains(&of))
    };

    let mut roles: Vec<Role> = processes
        .iter()
        .enumerate()
        .map(|(index, process)| {
            let line = lines.get(index).map_or(&[][..], Vec::as_slice);
            let below_trainer = line.iter().copied().find(|&ancestor| trained(ancestor));
            let parent = line.first().and_then(|&parent| processes.get(parent));
            let by_trainer = below_trainer.is_some() && below_trainer == line.first().copied();
            role_of(
                process,
                fact(index),
                below_trainer.map(|_| by_trainer),
                child_trained(index),
                process.pid == root_pid,
                parent.is_some_and(|parent| parent.command == process.command),
            )
        })
        .collect();
    link_workers(processes, &lines, &mut roles);
    roles
}

/// Imports may look like training for a short time. A process whose descendants train is not a
/// trainer because of that, nor are descendants that only evaluate.
fn without_traces(facts: &[ProcessFacts], lines: &[Vec<usize>]) -> Vec<ProcessFacts> {
    const TRACE: u64 = 50;
    let mut below = vec![(0, 0); facts.len()];
    for (fact, line) in facts
        .iter()
        .zip(lines)
        .filter(|(fact, _)| !fact.worker_loop)
    {
        for &ancestor in line {
            if let Some(most) = below.get_mut(ancestor) {
                *most = (fact.training_ns.max(most.0), fact.learning_ns.max(most.1));
            }
        }
    }
    let own = facts.iter().zip(below).map(|(fact, below)| ProcessFacts {
        training_ns: match fact.training_ns.saturating_mul(TRACE) < below.0
            || fact.learning_ns.saturating_mul(TRACE) < below.1
        {
            true => 0,
            false => fact.training_ns,
        },
        ..*fact
    });
    own.collect()
}

/// `below_trainer`: some ancestor trained; `true` if that is its parent. `is_copy`: its parent has
/// the same command line.
fn role_of(
    process: &ProcessInfo,
    fact: ProcessFacts,
    below_trainer: Option<bool>,
    child_trained: bool,
    is_root: bool,
    is_copy: bool,
) -> Role {
    let worker = Role::DataLoaderWorker {
        number: 0,
        trainer: None,
    };
    const SHORT_NS: u64 = 50_000_000;
    if fact.worker_loop {
        return worker;
    }
    // `mpirun` and `srun` are no Python.
    let is_launcher = is_launcher_command(&process.command);
    let is_helper = HELPERS.iter().any(|word| has_word(process, word));
    if process.is_left_out() || is_helper || !(fact.python || is_launcher) {
        return Role::Other;
    }
    let trained = fact.training_ns > 0;
    // A launcher's imports may look like training for a short time: its children decide.
    if is_launcher && (!trained || child_trained) {
        return match is_copy && !child_trained {
            true => Role::Other,
            false => Role::Launcher,
        };
    }
    let (rank, world_size, local_rank) = ranks(&process.environment);
    let as_trainer = Role::Trainer {
        rank,
        world_size,
        local_rank,
    };
    if trained {
        return as_trainer;
    }
    if let Some(by_trainer) = below_trainer {
        // A fork has the command line of its parent: the fork of a worker is not a worker.
        return if by_trainer && has_word(process, SPAWNED) {
            worker
        } else {
            Role::Other
        };
    }
    if child_trained {
        return Role::Launcher;
    }
    let is_short = process.exited && fact.wall_ns < SHORT_NS;
    if (fact.samples == 0 || is_short) && !is_root {
        return Role::Other;
    }
    if process.has_torch || rank.is_some() || is_root {
        return as_trainer;
    }
    Role::Other
}

/// Numbers the workers of each trainer by their start.
fn link_workers(processes: &[ProcessInfo], lines: &[Vec<usize>], roles: &mut [Role]) {
    let mut order: Vec<usize> = (0..processes.len())
        .filter(|&index| matches!(roles.get(index), Some(Role::DataLoaderWorker { .. })))
        .collect();
    order.sort_by_key(|&index| {
        processes
            .get(index)
            .map(|process| (process.start_ticks, process.pid))
    });
    let mut next: Vec<(Option<usize>, u32)> = Vec::new();
    for index in order {
        let owner = lines.get(index).and_then(|line| {
            line.iter()
                .copied()
                .find(|&ancestor| matches!(roles.get(ancestor), Some(Role::Trainer { .. })))
        });
        let at = next
            .iter()
            .position(|&(of, _)| of == owner)
            .unwrap_or_else(|| {
                next.push((owner, 0));
                next.len() - 1
            });
        let (_, count) = &mut next[at];
        let number = *count;
        *count += 1;
        if let Some(role) = roles.get_mut(index) {
            *role = Role::DataLoaderWorker {
                number,
                trainer: owner.map(ProcessId::from_index),
            };
        }
    }
}

/// Facts about a thread, for whether it trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadFacts {
    pub thread: ThreadId,
    /// Its tid is its process's pid.
    pub is_main: bool,
    /// It has Python frames or a thread state.
    pub is_python: bool,
    /// Nanoseconds in forward, optimizer, and backward that it called itself.
    pub training_ns: u64,
    /// Nanoseconds sampled.
    pub wall_ns: u64,
}

/// A main thread that trains for less than this part of the time for which another one does, as its
/// divisor, has only prepared that: it has made the optimizer, or looked at a batch.
const HARDLY_TRAINS: u64 = 20;

/// The thread whose wall time the summary covers: the main thread, unless another Python thread
/// trains and it does not.
pub fn training_thread(threads: &[ThreadFacts]) -> Option<ThreadId> {
    let python = || threads.iter().filter(|thread| thread.is_python);
    let main = python().find(|thread| thread.is_main);
    let busiest = python().max_by_key(|thread| {
        (
            thread.training_ns,
            thread.wall_ns,
            std::cmp::Reverse(thread.thread),
        )
    });
    match (main, busiest) {
        (Some(main), Some(busiest))
            if main.training_ns.saturating_mul(HARDLY_TRAINS) < busiest.training_ns =>
        {
            Some(busiest.thread)
        }
        (Some(main), _) => Some(main.thread),
        (None, busiest) => busiest.map(|thread| thread.thread),
    }
}
