//! The asyncio tasks of a captured process.

use super::{ThreadReader, modules_of};
use crate::elf::names::ElfNames;
use crate::memory::Memory;
use crate::model::dump::Place;
use crate::model::ids::CodeId;
use crate::model::tasks::AsyncTask;
use crate::model::text::file_name;
use crate::python::discover::could_be_python;
use crate::python::frames::PythonFrame;
use crate::python::tasks::{Task, TaskLists, Tasks, read_tasks};
use crate::sampling::snapshot::SnapshotProcess;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// How long the tasks of a process may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How the file of `_asyncio` is called, unless the interpreter has it built in.
const MODULE_FILE: &str = "_asyncio";

impl ThreadReader<'_> {
    /// The tasks of `process`, in the order of their names, and what of them is missing.
    pub(super) fn tasks(&mut self, process: &SnapshotProcess) -> (Vec<AsyncTask>, Vec<String>) {
        let until = Instant::now() + PATIENCE;
        let lists = || task_lists(process.pid, self.memory);
        let found = match read_tasks(self.interpreter, self.memory, lists, until) {
            Ok(found) => found.unwrap_or_default(),
            Err(error) => {
                let missing = format!("tasks of asyncio, if it has any: {error}");
                return (Vec::new(), vec![missing]);
            }
        };
        let frames = found.tasks.iter().flat_map(|task| &task.frames);
        let frames: Vec<PythonFrame> = frames.copied().collect();
        self.codes
            .resolve_frames(&frames, self.memory, self.memory, |_| CodeId::from_index(0));
        let names: FxHashMap<u64, &str> = found
            .tasks
            .iter()
            .map(|task| (task.address, task.name.as_str()))
            .collect();
        let threads = process.threads.iter();
        let tids: FxHashMap<u64, i32> = threads
            .filter_map(|thread| Some((thread.python_state?, thread.tid)))
            .collect();
        let mut tasks: Vec<AsyncTask> = found
            .tasks
            .iter()
            .map(|task| self.task(task, &found, &names, &tids))
            .collect();
        tasks.sort_by(|one, other| by_number(&one.name).cmp(&by_number(&other.name)));
        (tasks, found.missing)
    }

    fn task(
        &self,
        task: &Task,
        all: &Tasks,
        names: &FxHashMap<u64, &str>,
        tids: &FxHashMap<u64, i32>,
    ) -> AsyncTask {
        let tid = all
            .threads
            .get(&task.event_loop)
            .and_then(|state| tids.get(state));
        let place = |frame: &PythonFrame| {
            let code = self.codes.get(frame.code_address).ok()?;
            Some(Place {
                function: code.info.name.clone(),
                file: code.info.file.clone(),
                line: code.line(frame.instruction),
            })
        };
        let mut awaits: Vec<String> = task
            .awaits
            .iter()
            .filter_map(|other| names.get(other))
            .map(|&name| name.to_owned())
            .collect();
        awaits.sort_by(|one, other| by_number(one).cmp(&by_number(other)));
        AsyncTask {
            name: task.name.clone(),
            tid: tid.copied(),
            state: task.state,
            awaits,
            frames: task.frames.iter().filter_map(place).collect(),
        }
    }
}

/// Orders `Task-9` before `Task-10`.
fn by_number(name: &str) -> (&str, u64, &str) {
    let text = name.trim_end_matches(|each: char| each.is_ascii_digit());
    (text, name[text.len()..].parse().unwrap_or(0), name)
}

/// Where the tasks are from Python 3.14 on: a section of the file with `_asyncio`.
fn task_lists(pid: i32, memory: &dyn Memory) -> Option<TaskLists> {
    let modules = modules_of(pid, memory, |path| {
        could_be_python(path) || file_name(path).starts_with(MODULE_FILE)
    })?;
    modules.modules().find_map(|(module, bias)| {
        let file = ElfNames::parse(module.image()?.bytes())?;
        let address = file.section(TaskLists::SECTION)?.address;
        let mut bytes = [0; TaskLists::BYTES];
        memory
            .read_exact(address.wrapping_add(bias), &mut bytes)
            .ok()?;
        TaskLists::parse(&bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::by_number;

    #[test]
    fn names_are_ordered_by_their_numbers() {
        let mut names = ["b", "Task-10", "Task-9", "a", "rollout-2", "Task-x"];
        names.sort_by_key(|name| by_number(name));
        assert_eq!(
            names,
            ["Task-9", "Task-10", "Task-x", "a", "b", "rollout-2"]
        );
    }
}
