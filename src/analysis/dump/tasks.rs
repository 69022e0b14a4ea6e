//! Groups asyncio tasks that are at the same place, so that each place is shown once.

use crate::model::dump::Place;
use crate::model::tasks::{AsyncTask, TaskState};
use rustc_hash::FxHashMap;

/// Tasks of one thread, with the same state and frames, that await as many others; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskGroup<'t> {
    pub tasks: Vec<&'t AsyncTask>,
}

impl<'t> TaskGroup<'t> {
    pub fn first(&self) -> Option<&'t AsyncTask> {
        self.tasks.first().copied()
    }
}

type Key<'t> = (Option<i32>, TaskState, &'t [Place], usize);

/// Groups of a process's tasks: those that run first, those that wait last; smaller groups first,
/// because an outlier is what a reader looks for.
pub fn task_groups(tasks: &[AsyncTask]) -> Vec<TaskGroup<'_>> {
    let mut index: FxHashMap<Key<'_>, usize> = FxHashMap::default();
    let mut groups: Vec<TaskGroup<'_>> = Vec::new();
    for task in tasks {
        let key = (task.tid, task.state, &task.frames[..], task.awaits.len());
        let at = *index.entry(key).or_insert_with(|| {
            groups.push(TaskGroup { tasks: Vec::new() });
            groups.len() - 1
        });
        if let Some(group) = groups.get_mut(at) {
            group.tasks.push(task);
        }
    }
    groups.sort_by_key(|group| (group.first().map(|task| task.state), group.tasks.len()));
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(name: &str, state: TaskState, line: u32, awaits: &[&str]) -> AsyncTask {
        AsyncTask {
            name: name.to_owned(),
            tid: Some(7),
            state,
            awaits: awaits.iter().map(|&name| name.to_owned()).collect(),
            frames: vec![Place {
                function: "work".to_owned(),
                file: "a.py".to_owned(),
                line,
            }],
        }
    }

    #[test]
    fn tasks_at_one_place_are_one_group() {
        let tasks = [
            task("main", TaskState::Waiting, 1, &["w-0", "w-1"]),
            task("w-0", TaskState::Waiting, 5, &[]),
            task("w-1", TaskState::Waiting, 5, &[]),
            task("w-2", TaskState::Ready, 5, &[]),
        ];
        let groups = task_groups(&tasks);
        let names: Vec<Vec<&str>> = groups
            .iter()
            .map(|group| group.tasks.iter().map(|task| &*task.name).collect())
            .collect();
        assert_eq!(names, [vec!["w-2"], vec!["main"], vec!["w-0", "w-1"]]);
    }
}
