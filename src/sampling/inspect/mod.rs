//! What a snapshot does not capture and is read from the process afterwards: names of threads,
//! variables, the lock that a thread sleeps on, and asyncio's tasks. The target runs at the same
//! time, so frames that changed during the read are marked.

mod locks;
mod tasks;

use super::image::Opener;
use super::maps_reader::MapsReader;
use super::snapshot::{SnapshotProcess, SnapshotThread};
use crate::memory::Memory;
use crate::model::dump::{
    DeviceTensors, Inspected, InspectedFrame, InspectedThread, Local, MemoryOfTensors, Place,
};
use crate::model::ids::CodeId;
use crate::model::text::file_name;
use crate::native::loaded::LoadedModules;
use crate::os::redaction::Redaction;
use crate::os::vm_read::ProcessMemory;
use crate::python::code_object::CodeCache;
use crate::python::discover::Interpreter;
use crate::python::frames::{PythonFrame, PythonStack, read_running_stack};
use crate::python::locks::{LockObject, lock_of_block, read_lock};
use crate::python::objects::read_str;
use crate::python::values::{describe, read_int};
use crate::python::variables::{
    Variable, read_attributes, read_block_values, read_variables, variable_names,
};
use crate::torch::probe::allocator::{self, AllocatorProbe};
use crate::torch::probe::held::read_held;
use crate::torch::probe::progress::describe_tensor;
use crate::torch::rules::progress::is_library;
use crossbeam_channel::unbounded;
use locks::{Joined, Owners, Sightings, Sleeps};
use rustc_hash::FxHashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Frames per thread whose objects are read, from the leaf on.
const MAX_FRAMES: usize = 256;
/// How long it may take to read what a process's modules hold.
const MEMORY_PATIENCE: Duration = Duration::from_secs(3);
/// Threads of a process.
const MAX_THREADS: usize = 1024;
/// The longest name of a thread.
const MAX_NAME: usize = 128;
/// Frames, from the leaf on, whose variables may hold the lock that the thread waits for.
const NAMING_FRAMES: usize = 3;
/// Usual names of counters in a hand-written training loop.
const COUNTERS: &[&str] = &[
    "epoch",
    "step",
    "global_step",
    "iteration",
    "it",
    "i",
    "batch_idx",
    "batch_index",
    "num_steps",
];

/// Reads objects of captured processes, and their variables if `locals` says how their values are
/// shown. Of processes in `memory_of` what their modules hold is read instead. Takes at most
/// `patience`, since a process may have stopped answering. Returns the processes that were read by
/// then, and the pids of the others.
pub fn inspect_all(
    processes: Vec<SnapshotProcess>,
    locals: Option<Redaction>,
    memory_of: Vec<i32>,
    patience: Duration,
) -> (Vec<Inspected>, Vec<i32>) {
    let mut waiting: Vec<i32> = processes.iter().map(|process| process.pid).collect();
    let mut done = Vec::new();
    let deadline = Instant::now() + patience;
    let (sender, inspected) = unbounded();
    let inspecting = Builder::new()
        .name("torchspy-inspect".to_owned())
        .spawn(move || {
            for process in &processes {
                // The receiver is gone if it took too long.
                let _ = sender.send(inspect(process, locals, &memory_of));
            }
        });
    while inspecting.is_ok()
        && !waiting.is_empty()
        && let Ok(found) = inspected.recv_deadline(deadline)
    {
        waiting.retain(|&pid| pid != found.pid);
        done.push(found);
    }
    (done, waiting)
}

/// The modules of a process whose paths are wanted; `None` if it cannot be read.
fn modules_of(
    pid: i32,
    memory: &dyn Memory,
    is_wanted: impl Fn(&str) -> bool,
) -> Option<LoadedModules> {
    let mut mappings = MapsReader::new(pid).read()?;
    mappings.retain(|mapping| is_wanted(&mapping.path));
    let mut modules = LoadedModules::new(Arc::default());
    modules.refresh(&mappings, &Opener { pid }, memory);
    Some(modules)
}

/// What torch's allocator has of each device, or why that is not known; neither without CUDA.
fn allocated(pid: i32, memory: &dyn Memory) -> (Vec<DeviceTensors>, Option<&'static str>) {
    let modules = modules_of(pid, memory, |path| file_name(path) == allocator::LIBRARY);
    let variable =
        modules.and_then(|each| each.address_of(allocator::LIBRARY, allocator::VARIABLE));
    let Some(variable) = variable.flatten() else {
        return (Vec::new(), None);
    };
    let mut probe = AllocatorProbe::new(variable);
    let all = probe.read(memory).into_iter();
    let all = all.map(|device| DeviceTensors {
        device: format!("cuda:{}", device.device),
        bytes: device.allocated,
        active_bytes: device.active,
        reserved_bytes: device.reserved,
    });
    (all.collect(), probe.unread())
}

fn inspect(process: &SnapshotProcess, locals: Option<Redaction>, memory_of: &[i32]) -> Inspected {
    let memory = ProcessMemory::new(process.pid);
    let threads = process.threads.get(..MAX_THREADS);
    let threads = threads.unwrap_or(&process.threads);
    let sleeps = Sleeps::of(process.pid, threads);
    let mut inspected = Inspected {
        pid: process.pid,
        threads: Vec::new(),
        left_out: process.threads.len() - threads.len(),
        ..Inspected::default()
    };
    if memory_of.contains(&process.pid)
        && let Some(interpreter) = &process.interpreter
    {
        // The main thread's variables name what those of others have, too.
        let mut states: Vec<_> = threads.iter().collect();
        states.sort_by_key(|thread| thread.tid != process.pid);
        let states: Vec<u64> = states
            .iter()
            .filter_map(|thread| thread.python_state)
            .collect();
        let until = Instant::now() + MEMORY_PATIENCE;
        let held = read_held(interpreter, &states, &memory, until);
        let (devices, devices_unread) = allocated(process.pid, &memory);
        inspected.memory = Some(MemoryOfTensors {
            held,
            devices,
            devices_unread,
        });
        return inspected;
    }
    let mut sightings = Sightings::default();
    if let Some(interpreter) = &process.interpreter {
        let mut reader = ThreadReader {
            interpreter,
            memory: &memory,
            codes: CodeCache::new(interpreter),
            names: FxHashMap::default(),
            locals,
        };
        for thread in threads {
            if let Some(state) = thread.python_state {
                let sleeps_at = sleeps.address(thread.tid);
                let found = reader.thread(thread, state, sleeps_at, &mut sightings);
                inspected.threads.push(found);
            }
        }
        (inspected.tasks, inspected.missing) = reader.tasks(process);
    }
    let owners = Owners {
        process,
        memory: &memory,
        sightings,
    };
    for (tid, lock) in owners.locks(&sleeps) {
        match inspected.threads.iter_mut().find(|each| each.tid == tid) {
            Some(thread) => thread.lock = Some(lock),
            None => inspected.threads.push(InspectedThread {
                tid,
                lock: Some(lock),
                ..InspectedThread::default()
            }),
        }
    }
    inspected
}

/// Reads threads one after another.
struct ThreadReader<'a> {
    interpreter: &'a Interpreter,
    memory: &'a ProcessMemory,
    codes: CodeCache,
    /// Names of variables, by address of the code object.
    names: FxHashMap<u64, Rc<[String]>>,
    /// How values of variables are shown; `None` if they are not.
    locals: Option<Redaction>,
}

impl ThreadReader<'_> {
    /// Reads one thread. Locks that its frames show are added to `sightings`.
    fn thread(
        &mut self,
        captured: &SnapshotThread,
        state: u64,
        sleeps_at: Option<u64>,
        sightings: &mut Sightings,
    ) -> InspectedThread {
        let mut thread = InspectedThread {
            tid: captured.tid,
            ..InspectedThread::default()
        };
        let before = self.stack(state);
        self.codes
            .resolve_frames(&before.frames, self.memory, self.memory, |_| {
                CodeId::from_index(0)
            });
        let mut given_up = None;
        let mut is_named = false;
        for (index, frame) in before.frames.iter().take(MAX_FRAMES).enumerate() {
            let Ok(code) = self.codes.get(frame.code_address) else {
                continue;
            };
            if code.is_shim {
                continue;
            }
            let place = Place {
                function: code.info.name.clone(),
                file: code.info.file.clone(),
                line: code.line(frame.instruction),
            };
            if is_threading(&place, "Thread._bootstrap") {
                thread.python_name = self.joined(frame.first_local).name;
            }
            if is_threading(&place, "Condition.wait") {
                let lock = read_lock(self.interpreter, frame.first_local, self.memory);
                given_up = lock.map(|lock| lock.semaphore);
                // It waits for a signal, which no thread holds.
                is_named = true;
            }
            if is_threading(&place, "Thread.join") && index < NAMING_FRAMES {
                sightings.joining(captured.tid, self.joined(frame.first_local));
                is_named = true;
            }
            for lock in self.blocks(frame) {
                if ![given_up, sleeps_at].contains(&Some(lock.semaphore)) {
                    sightings.in_block(captured.tid, lock);
                }
            }
            if let (Some(address), false, ..NAMING_FRAMES) = (sleeps_at, is_named, index)
                && let Some((lock, name)) = self.named_lock(frame, address)
            {
                sightings.named(captured.tid, lock, name);
                is_named = true;
            }
            thread.frames.push(self.frame(place, frame, index));
        }
        let after = self.stack(state);
        let equal = before.frames.iter().rev().zip(after.frames.iter().rev());
        let steady = equal.take_while(|(before, after)| before == after).count();
        let moved = before.frames.len() - steady;
        for frame in &mut thread.frames {
            frame.is_steady = frame.index >= moved;
        }
        thread
    }

    fn stack(&self, state: u64) -> PythonStack {
        let mut stack = PythonStack::default();
        // An incomplete stack is used too: it is compared with a second read.
        let _ = read_running_stack(self.interpreter, state, self.memory, &mut stack);
        stack
    }

    /// The locks whose `with` blocks a frame is inside of.
    fn blocks(&self, frame: &PythonFrame) -> Vec<LockObject> {
        let values = read_block_values(self.interpreter, frame, self.memory);
        let locks = values.unwrap_or_default().into_iter();
        locks
            .filter_map(|value| lock_of_block(self.interpreter, value, self.memory))
            .collect()
    }

    fn names(&mut self, code: u64) -> Rc<[String]> {
        let read = || variable_names(self.interpreter, code, self.memory).unwrap_or_default();
        let names = self.names.entry(code).or_insert_with(|| read().into());
        names.clone()
    }

    /// The variables of a frame whose names are wanted.
    fn variables(
        &mut self,
        frame: &PythonFrame,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Vec<Variable> {
        let names = self.names(frame.code_address);
        read_variables(self.interpreter, frame, &names, self.memory, is_wanted).unwrap_or_default()
    }

    fn frame(&mut self, place: Place, frame: &PythonFrame, index: usize) -> InspectedFrame {
        let is_own = !is_library(&place.file);
        let is_counter = |name: &str| is_own && COUNTERS.contains(&name);
        let with_locals = self.locals.is_some();
        let variables = match with_locals || is_own {
            true => self.variables(frame, |name| with_locals || is_counter(name)),
            false => Vec::new(),
        };
        let counters = variables.iter().filter_map(|variable| {
            let value = is_counter(&variable.name)
                .then(|| read_int(self.interpreter, variable.object, self.memory))
                .flatten()?;
            Some((variable.name.clone(), u64::try_from(value).ok()?))
        });
        InspectedFrame {
            counters: counters.collect(),
            locals: self.locals.map_or_else(Vec::new, |redaction| {
                let local = |each: &Variable| self.local(each, redaction);
                variables.iter().map(local).collect()
            }),
            place,
            index,
            is_steady: false,
        }
    }

    fn local(&self, variable: &Variable, redaction: Redaction) -> Local {
        let growth = self.interpreter.layout.objects.growth;
        let of_tensor =
            |object: u64, class: &str| describe_tensor(object, growth, class, self.memory);
        let shown = |text: &str| redaction.value(&variable.name, text);
        let value = describe(
            self.interpreter,
            variable.object,
            self.memory,
            of_tensor,
            shown,
        );
        Local {
            name: variable.name.clone(),
            value: value.unwrap_or_else(|_| "(could not be read)".to_owned()),
        }
    }

    /// The `threading.Thread` at `object`, as far as it can be read (Lib/threading.py, 3.10 to
    /// 3.15: `_name`, `_native_id`).
    fn joined(&self, object: u64) -> Joined {
        let attributes = read_attributes(self.interpreter, object, self.memory).unwrap_or_default();
        let of = |name: &str| attributes.iter().find(|each| each.name == name);
        let layout = &self.interpreter.layout;
        let text = |object: u64| read_str(layout, object, MAX_NAME, self.memory).ok();
        let number = |object: u64| read_int(self.interpreter, object, self.memory);
        Joined {
            object,
            name: of("_name").and_then(|name| text(name.object)),
            inner_tid: of("_native_id")
                .and_then(|id| number(id.object))
                .and_then(|id| i32::try_from(id).ok()),
        }
    }

    /// The lock whose waiters sleep at `address`, if a variable of `frame`, or an attribute of its
    /// `self`, holds it.
    fn named_lock(&mut self, frame: &PythonFrame, address: u64) -> Option<(LockObject, String)> {
        let variables = self.variables(frame, |_| true);
        let lock_at = |variable: &Variable| {
            read_lock(self.interpreter, variable.object, self.memory)
                .filter(|lock| lock.semaphore == address)
        };
        let is_it = |variable: &Variable| Some((lock_at(variable)?, variable.name.clone()));
        if let Some(found) = variables.iter().find_map(is_it) {
            return Some(found);
        }
        let receiver = variables.iter().find(|variable| variable.name == "self")?;
        let attributes = read_attributes(self.interpreter, receiver.object, self.memory).ok()?;
        let (lock, name) = attributes.iter().find_map(is_it)?;
        Some((lock, format!("self.{name}")))
    }
}

/// Whether this is a method of the standard library's `threading`. Code objects of 3.10 have no
/// qualified name, so only the last name is compared.
fn is_threading(place: &Place, method: &str) -> bool {
    let last = method.rsplit('.').next();
    place.file.ends_with("/threading.py")
        && (place.function == method || Some(place.function.as_str()) == last)
}
