//! Tasks of asyncio, and what they await.
//!
//! A task that waits is on no thread's stack; its coroutine keeps its frame (`chains`).
//! Everything is read while the target runs; a task that looks the same twice was read as it is.

mod chains;
mod registry;

pub use registry::TaskLists;

use super::dicts::{TypeFacts, read_type};
use super::discover::Interpreter;
use super::frames::PythonFrame;
use super::layout::generators::GeneratorLayout;
use super::layout::objects::{LENGTH, LIST_ITEMS};
use super::modules::read_modules;
use super::objects::{ObjectError, read_str, u64_at};
use super::threads::read_threads;
use super::values::read_int;
use super::variables::{Variable, read_attributes};
use crate::memory::Memory;
use crate::model::tasks::TaskState;
use chains::{Awaitable, Progress};
use rustc_hash::{FxHashMap, FxHashSet};
use std::rc::Rc;
use std::time::Instant;

/// How often a task is read until it looks the same twice.
const ATTEMPTS: usize = 4;
/// Maximum bytes of a task that are searched for its coroutine.
const MAX_TASK: u64 = 512;
/// Maximum number of tasks that all together await.
const MAX_CHILDREN: usize = 1 << 17;
const MAX_NAME: usize = 128;
/// The first field of an object: `fut_loop` of a future or a task, `cw_coroutine` of the wrapper of
/// a coroutine (Objects/genobject.c), `ags_gen` and `agt_gen` of a step of an asynchronous
/// generator, `future` of what awaits a future (Modules/_asynciomodule.c).
const FIRST: u32 = 16;
/// Callbacks of a future of `_asyncio`: the first, and a list of more. None is left once it is done
/// (`future_schedule_callbacks`).
const CALLBACKS: [u32; 2] = [24, 40];
/// Its size is no smaller.
const FUTURE_BYTES: u64 = 80;
/// What `asyncio.gather` waits for, with the tasks as an attribute (Lib/asyncio/tasks.py).
const GATHERING: &str = "_GatheringFuture";
const CHILDREN: &str = "_children";
/// `pthread_self()` of the thread that runs an event loop (Lib/asyncio/base_events.py).
const LOOP_THREAD: &str = "_thread_id";

/// A task that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its object.
    pub address: u64,
    pub name: String,
    /// Its event loop's object.
    pub event_loop: u64,
    pub state: TaskState,
    /// The frames of its coroutine and of what that awaits, innermost first; none while it runs:
    /// they are on a thread's stack.
    pub frames: Vec<PythonFrame>,
    /// The tasks that it awaits, by address.
    pub awaits: Vec<u64>,
}

/// The tasks of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    pub tasks: Vec<Task>,
    /// `PyThreadState` of the thread that runs an event loop, by the loop's address.
    pub threads: FxHashMap<u64, u64>,
    /// What is missing, and why.
    pub missing: Vec<String>,
}

/// Reads the tasks of a process, until `until`; `None` if it has not imported asyncio. `lists`
/// finds out where they are from Python 3.14 on.
///
/// # Errors
/// [`ObjectError`] if the process's modules cannot be read.
pub fn read_tasks(
    interpreter: &Interpreter,
    memory: &dyn Memory,
    lists: impl FnOnce() -> Option<TaskLists>,
    until: Instant,
) -> Result<Option<Tasks>, ObjectError> {
    let variables = read_modules(interpreter, registry::MODULE, memory)?.concat();
    if variables.is_empty() {
        return Ok(None);
    }
    let mut found = Tasks::default();
    let lists = match interpreter.version.minor {
        ..=13 => None,
        _ => lists(),
    };
    if interpreter.version.minor > 13 && lists.is_none() {
        let why = "where the module _asyncio keeps them was not found";
        found.missing.push(format!("tasks of asyncio: {why}"));
    }
    let (addresses, mut missing) =
        registry::registered(interpreter, &variables, lists, memory, until);
    found.missing.append(&mut missing);
    let mut reader = Reader {
        interpreter,
        memory,
        generators: GeneratorLayout::of(interpreter.version),
        known: addresses.iter().copied().collect(),
        types: FxHashMap::default(),
        coroutines: FxHashMap::default(),
    };
    let (mut late, mut moving, mut awaited) = (0, 0, 0);
    // Where a task keeps its coroutine is learned from one that the interpreter knows as such.
    addresses
        .iter()
        .take_while(|_| Instant::now() < until)
        .any(|&address| reader.learns_from(address));
    for &address in &addresses {
        if Instant::now() >= until {
            late += 1;
            continue;
        }
        match reader.steady_task(address) {
            Read::Task(mut task) => {
                awaited += task.awaits.len();
                if awaited > MAX_CHILDREN {
                    task.awaits.clear();
                }
                found.tasks.push(task);
            }
            Read::Moves => moving += 1,
            Read::None => {}
        }
    }
    for (count, why) in [
        (late, "there was no time for them"),
        (moving, "they moved on while they were read"),
    ] {
        if count > 0 {
            found
                .missing
                .push(format!("{count} tasks of asyncio: {why}"));
        }
    }
    if awaited > MAX_CHILDREN {
        let why = format!("tasks await {awaited} others: not all of these are named");
        found.missing.push(why);
    }
    found.threads = reader.threads(&found.tasks);
    Ok(Some(found))
}

/// Result of reading a task.
enum Read {
    Task(Task),
    /// It was another each time.
    Moves,
    /// It has ended, or the object is no task.
    None,
}

struct Reader<'a> {
    interpreter: &'a Interpreter,
    memory: &'a dyn Memory,
    generators: GeneratorLayout,
    /// All tasks.
    known: FxHashSet<u64>,
    types: FxHashMap<u64, Option<Rc<TypeFacts>>>,
    /// Offset of the coroutine in a task, by class, once it was found.
    coroutines: FxHashMap<u64, u64>,
}

impl Reader<'_> {
    fn word(&self, object: u64, field: u32) -> Option<u64> {
        let place = object.wrapping_add(self.interpreter.layout.objects.at(field));
        self.memory.read_u64(place).ok()
    }

    /// Whether an address is that of an object other than None.
    fn is_present(&self, object: u64) -> bool {
        object != 0 && Some(object) != self.interpreter.none
    }

    fn class(&mut self, object: u64) -> Option<Rc<TypeFacts>> {
        let layout = &self.interpreter.layout.objects;
        let address = read_type(layout, object, self.memory).ok()?;
        let memory = self.memory;
        let read = || TypeFacts::read(layout, address, memory).ok().map(Rc::new);
        self.types.entry(address).or_insert_with(read).clone()
    }

    /// A task that looks the same twice.
    fn steady_task(&mut self, address: u64) -> Read {
        let mut last = self.task(address);
        for _ in 0..ATTEMPTS {
            let again = self.task(address);
            if again == last {
                return again.map_or(Read::None, Read::Task);
            }
            last = again;
        }
        Read::Moves
    }

    fn task(&mut self, address: u64) -> Option<Task> {
        let fields = self.fields(address)?;
        let (progress, frames) = self.chain(fields.coroutine);
        let waits = fields.waiter != 0 && !self.is_done(fields.waiter);
        let state = match progress {
            Some(Progress::Ended) => return None,
            Some(Progress::Executing) => TaskState::Running,
            Some(Progress::Created) => TaskState::NotStarted,
            Some(Progress::Suspended) if !waits => TaskState::Ready,
            // A coroutine of an extension: it has ended, or waits.
            None if fields.waiter == 0 => return None,
            Some(Progress::Suspended) | None => TaskState::Waiting,
        };
        Some(Task {
            address,
            name: self.name(fields.name),
            event_loop: fields.event_loop,
            state,
            frames,
            awaits: self.awaited_tasks(fields.waiter),
        })
    }

    /// Whether this task shows where those of its class keep their coroutines.
    fn learns_from(&mut self, address: u64) -> bool {
        self.fields(address).is_some() && !self.coroutines.is_empty()
    }

    /// Of a task of `_asyncio` the coroutine is its first field that is one; `task_fut_waiter`
    /// comes before it and `task_name` after it (3.10 to 3.15). A task that is written in Python
    /// has them as attributes.
    fn fields(&mut self, task: u64) -> Option<Fields> {
        let class = self.class(task)?;
        let known = self.coroutines.get(&class.address).copied();
        let offset = known.or_else(|| self.coroutine_offset(task, &class));
        if let Some(offset) = offset {
            self.coroutines.insert(class.address, offset);
        }
        let present = |object: u64| Some(object).filter(|&object| self.is_present(object));
        let Some(offset) = offset else {
            let attributes = read_attributes(self.interpreter, task, self.memory).ok()?;
            let of = |name: &str| attribute(&attributes, name).and_then(present);
            return Some(Fields {
                waiter: of("_fut_waiter").unwrap_or(0),
                coroutine: of("_coro")?,
                name: of("_name").unwrap_or(0),
                event_loop: of("_loop").unwrap_or(0),
            });
        };
        let mut words = [0; 24];
        let first = task.wrapping_add(offset - 8);
        self.memory.read_exact(first, &mut words).ok()?;
        Some(Fields {
            waiter: present(u64_at(&words, 0)).unwrap_or(0),
            coroutine: u64_at(&words, 8),
            name: u64_at(&words, 16),
            event_loop: self.word(task, FIRST)?,
        })
    }

    /// The offset of a coroutine with a name after it.
    fn coroutine_offset(&mut self, task: u64, class: &TypeFacts) -> Option<u64> {
        let first = self.interpreter.layout.objects.at(FIRST);
        let bytes = class.basic_size().min(MAX_TASK);
        let object = self.memory.read_bytes(task, bytes as usize).ok()?;
        let mut offsets = (first + 8..bytes.saturating_sub(8)).step_by(8);
        offsets.find(|&offset| {
            let word = |offset: u64| u64_at(&object, offset as u32);
            let kind = self.awaitable(word(offset));
            matches!(kind, Awaitable::Coroutine | Awaitable::Generator) && {
                let name = self.class(word(offset + 8));
                name.is_some_and(|name| matches!(name.name.as_str(), "str" | "int"))
            }
        })
    }

    /// Whether a future of `_asyncio` is done: the task that waits for it has been called back.
    fn is_done(&mut self, future: u64) -> bool {
        let class = self.class(future);
        if class.is_none_or(|class| class.basic_size() < FUTURE_BYTES) {
            return false;
        }
        let is_gone = |field: u32| {
            let callback = self.word(future, field);
            callback.is_some_and(|callback| !self.is_present(callback))
        };
        CALLBACKS.into_iter().all(is_gone)
    }

    /// A text, or from 3.12 on a number that becomes one when it is first asked for.
    fn name(&mut self, object: u64) -> String {
        let class = self.class(object);
        let name = match class.as_ref().map_or("", |class| class.name.as_str()) {
            "str" => read_str(&self.interpreter.layout, object, MAX_NAME, self.memory).ok(),
            "int" => read_int(self.interpreter, object, self.memory)
                .map(|number| format!("Task-{number}")),
            _ => None,
        };
        name.unwrap_or_default()
    }

    /// The tasks among what a task waits for: itself one, or those of a `gather`.
    fn awaited_tasks(&mut self, waiter: u64) -> Vec<u64> {
        if self.known.contains(&waiter) {
            return vec![waiter];
        }
        let is_gathering = self
            .class(waiter)
            .is_some_and(|class| class.name == GATHERING);
        let children = is_gathering.then(|| self.children(waiter)).flatten();
        let mut children = children.unwrap_or_default();
        children.retain(|child| self.known.contains(child));
        children
    }

    fn children(&self, gathering: u64) -> Option<Vec<u64>> {
        let attributes = read_attributes(self.interpreter, gathering, self.memory).ok()?;
        let list = attribute(&attributes, CHILDREN)?;
        let length = self.word(list, LENGTH)?.min(MAX_CHILDREN as u64);
        let items = self.word(list, LIST_ITEMS)?;
        let bytes = self.memory.read_bytes(items, length as usize * 8).ok()?;
        let words = (0..length).map(|index| u64_at(&bytes, index as u32 * 8));
        Some(words.collect())
    }

    /// The thread states of the threads that run the tasks' event loops, by loop.
    fn threads(&self, tasks: &[Task]) -> FxHashMap<u64, u64> {
        let threads = read_threads(self.interpreter, self.memory).unwrap_or_default();
        let loops: FxHashSet<u64> = tasks.iter().map(|task| task.event_loop).collect();
        let thread_of = |event_loop: u64| {
            let attributes = read_attributes(self.interpreter, event_loop, self.memory).ok()?;
            let id = attribute(&attributes, LOOP_THREAD)?;
            let id = read_int(self.interpreter, id, self.memory)?;
            let thread = threads.iter().find(|each| each.pthread == id as u64)?;
            Some((event_loop, thread.state_address))
        };
        loops.into_iter().filter_map(thread_of).collect()
    }
}

/// Fields of a task; 0 for one that it has not.
struct Fields {
    waiter: u64,
    coroutine: u64,
    name: u64,
    event_loop: u64,
}

fn attribute(attributes: &[Variable], name: &str) -> Option<u64> {
    let found = attributes.iter().find(|each| each.name == name);
    found.map(|each| each.object)
}
