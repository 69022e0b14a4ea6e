//! Groups threads with equal stacks, so that each stack is shown once.

use crate::model::dump::{Dump, DumpedThread};
use crate::model::profile::Role;
use crate::model::sample::Gil;
use crate::model::wait::WaitKind;
use rustc_hash::FxHashMap;

/// A thread of a dump: indices of its process and of itself in it.
pub type ThreadPlace = (usize, usize);

/// Threads with equal stacks, in the order of the dump; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub members: Vec<ThreadPlace>,
}

/// What must be equal for two threads to form a group: every frame with its line, the wait and its
/// owner, and the role.
#[derive(PartialEq, Eq, Hash)]
struct Key<'d> {
    frames: Vec<(&'d str, &'d str, u32, Option<&'d str>)>,
    locals: Vec<&'d str>,
    wait: Option<(&'static str, &'d str, Option<u64>, Option<i32>)>,
    state: u8,
    holds_gil: bool,
    trains: bool,
    partial: Option<&'static str>,
    kernel: (&'d Option<String>, &'d [String]),
}

fn key(thread: &DumpedThread) -> Key<'_> {
    let frames = thread.frames.iter();
    Key {
        frames: frames
            .clone()
            .map(|frame| {
                let module = frame.module.as_deref();
                (&*frame.name, &*frame.file, frame.line, module)
            })
            .collect(),
        locals: frames
            .flat_map(|frame| frame.locals.iter().flatten())
            .map(|local| &*local.value)
            .collect(),
        wait: thread.wait.as_ref().map(|wait| {
            let lock = wait.lock.as_ref().map(|lock| lock.address);
            let owner = wait.owner.as_ref().map(|owner| owner.tid);
            (wait.kind.name(), &*wait.what, lock, owner)
        }),
        state: thread.state as u8,
        holds_gil: thread.gil == Gil::Held,
        trains: thread.trains,
        partial: thread.partial,
        kernel: (&thread.wchan, &thread.kernel_stack),
    }
}

/// Groups of equal stacks: training threads first, then threads with Python frames; smaller groups
/// first, because an outlier is what a reader looks for. Threads without a stack come last.
pub fn groups(dump: &Dump) -> Vec<Group> {
    let mut index: FxHashMap<Key<'_>, usize> = FxHashMap::default();
    let mut groups: Vec<Group> = Vec::new();
    for (at, process) in dump.processes.iter().enumerate() {
        for (thread_at, thread) in process.threads.iter().enumerate() {
            let group = *index.entry(key(thread)).or_insert_with(|| {
                groups.push(Group {
                    members: Vec::new(),
                });
                groups.len() - 1
            });
            if let Some(group) = groups.get_mut(group) {
                group.members.push((at, thread_at));
            }
        }
    }
    groups.sort_by_key(|group| {
        let first = group.members.first().and_then(|&place| thread(dump, place));
        let class = first.map_or(3, |thread| match thread {
            _ if thread.trains => 0,
            _ if thread.frames.iter().any(|frame| frame.is_python) => 1,
            _ if !thread.frames.is_empty() => 2,
            _ => 3,
        });
        // What a launcher does, or another process besides ranks and workers, is no answer.
        let is_aside = group.members.iter().all(|&(process, _)| {
            let process = dump.processes.get(process);
            process.is_some_and(|process| matches!(process.role, Role::Launcher | Role::Other))
        });
        let wait = first.and_then(|thread| thread.wait.as_ref());
        let waits_for_ranks = wait.is_some_and(|wait| wait.kind == WaitKind::Collective);
        (class, is_aside, group.members.len(), waits_for_ranks)
    });
    groups
}

pub fn thread(dump: &Dump, (process, thread): ThreadPlace) -> Option<&DumpedThread> {
    dump.processes.get(process)?.threads.get(thread)
}

#[cfg(test)]
mod tests {
    use super::super::built::{process, thread as stack, waiting};
    use super::*;

    #[test]
    fn of_two_ranks_the_one_that_is_in_no_collective_comes_first() {
        let waits = waiting(1, &["step:7"], WaitKind::Collective, "all_reduce");
        let dump = Dump {
            processes: vec![
                process(1, vec![waits]),
                process(2, vec![stack(2, &["save:9"])]),
            ],
            ..Dump::default()
        };
        let first = groups(&dump).into_iter().next().map(|group| group.members);
        assert_eq!(first, Some(vec![(1, 0)]));
    }

    #[test]
    fn launchers_come_after_the_ranks() {
        let rank = |number: u32, line: &str| {
            let mut rank = process(number as i32, vec![stack(1, &[line])]);
            rank.role = Role::Trainer {
                rank: Some(number),
                local_rank: None,
                world_size: None,
            };
            rank
        };
        let mut launcher = process(9, vec![stack(9, &["wait:1"])]);
        launcher.role = Role::Launcher;
        let dump = Dump {
            processes: vec![
                launcher,
                rank(0, "step:7"),
                rank(1, "step:7"),
                rank(2, "save:9"),
            ],
            ..Dump::default()
        };
        let order: Vec<_> = groups(&dump)
            .into_iter()
            .map(|group| group.members)
            .collect();
        assert_eq!(order, [vec![(3, 0)], vec![(1, 0), (2, 0)], vec![(0, 0)]]);
    }
}
