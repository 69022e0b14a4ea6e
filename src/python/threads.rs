//! A process's Python threads, and the holder of the global lock.

use super::discover::Interpreter;
use super::layout::{GilLayout, GilPlace, MAX_THREAD};
use crate::memory::{Memory, ReadError, ReadRequest, read_those};
use rustc_hash::FxHashMap;

/// Maximum number of interpreters (main and sub).
const MAX_INTERPRETERS: usize = 256;
/// Maximum number of threads.
const MAX_THREADS: usize = 16_384;
/// Maximum number of attempts to read a list that changes during the read.
const ATTEMPTS: usize = 3;

/// A thread that an interpreter knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonThread {
    /// Its `PyThreadState`.
    pub state_address: u64,
    /// Its `gettid()`, in its own pid namespace; 3.11 on, and only once the thread runs.
    pub native_thread_id: Option<u64>,
    /// Its `pthread_self()`: on Linux an address in its thread control block.
    pub pthread: u64,
    /// Its `PyInterpreterState`.
    pub interpreter: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GilState {
    Unknown,
    Free,
    /// A free-threaded build, whose threads run without it.
    Disabled,
    /// The thread with this `PyThreadState` holds it.
    HeldBy(u64),
}

/// The memory of a global lock's state: the caller reads it, and passes the bytes to [`parse_gil`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GilRange {
    pub address: u64,
    pub length: usize,
}

/// Reads the threads of all interpreters of a process. The lists may change at the same time: each
/// returned thread was in them at some time during the read.
///
/// # Errors
/// [`ReadError`] if not even the list of interpreters could be read.
pub fn read_threads(
    interpreter: &Interpreter,
    memory: &dyn Memory,
) -> Result<Vec<PythonThread>, ReadError> {
    read_threads_again(interpreter, memory, &[])
}

/// The same with the addresses of thread `states` that were there before: they are read at once.
///
/// # Errors
/// As [`read_threads`].
pub fn read_threads_again(
    interpreter: &Interpreter,
    memory: &dyn Memory,
    states: &[u64],
) -> Result<Vec<PythonThread>, ReadError> {
    let known = read_heads(interpreter, memory, states);
    let mut threads = Vec::new();
    for state in read_interpreters(interpreter, memory)? {
        let first = threads.len();
        for attempt in 0..ATTEMPTS {
            let mut found = Vec::new();
            let known = (attempt == 0).then_some(&known);
            let most = MAX_THREADS - first;
            let whole = read_threads_of(interpreter, state, (memory, known), most, &mut found);
            if found.len() > threads.len() - first {
                threads.truncate(first);
                threads.append(&mut found);
            }
            if whole {
                break;
            }
        }
    }
    Ok(threads)
}

/// The newest interpreter, and the newest thread state of each of `interpreters`: CPython inserts
/// new ones at the head of the list (`PyInterpreterState_New`, `new_threadstate`, `add_threadstate`
/// in pystate.c). While they stay the same, there is no new thread state.
pub fn read_newest_threads(
    interpreter: &Interpreter,
    interpreters: &[u64],
    memory: &dyn Memory,
) -> Vec<Option<u64>> {
    let layout = &interpreter.layout;
    let head = (interpreter.runtime_address, layout.interpreters_head);
    let of_each = interpreters
        .iter()
        .map(|&state| (state, layout.interpreter.threads_head));
    let places: Vec<u64> = std::iter::once(head)
        .chain(of_each)
        .map(|(base, offset)| base.wrapping_add(offset.into()))
        .collect();
    let words = read_those(&places, memory).into_iter();
    words
        .map(|word| word.ok().map(u64::from_le_bytes))
        .collect()
}

/// Addresses of all `PyInterpreterState`s of a process.
///
/// # Errors
/// [`ReadError`] if the list's head could not be read.
pub fn read_interpreters(
    interpreter: &Interpreter,
    memory: &dyn Memory,
) -> Result<Vec<u64>, ReadError> {
    let layout = &interpreter.layout;
    let head = interpreter
        .runtime_address
        .wrapping_add(layout.interpreters_head.into());
    let mut state = memory.read_u64(head)?;
    let mut states = Vec::new();
    while state != 0 && states.len() < MAX_INTERPRETERS && !states.contains(&state) {
        states.push(state);
        let next = memory.read_u64(state.wrapping_add(layout.interpreter.next.into()));
        let Ok(next) = next else { break };
        state = next;
    }
    Ok(states)
}

/// The heads of thread states.
struct Heads {
    /// Where each is in `bytes`, by its address.
    places: FxHashMap<u64, usize>,
    bytes: Vec<u8>,
    length: usize,
}

impl Heads {
    fn get(&self, address: u64) -> Option<&[u8]> {
        let start = *self.places.get(&address)?;
        self.bytes.get(start..start + self.length)
    }
}

fn read_heads(interpreter: &Interpreter, memory: &dyn Memory, states: &[u64]) -> Heads {
    let length = interpreter.layout.thread_head() as usize;
    let mut bytes = vec![0; length * states.len()];
    let mut requests: Vec<ReadRequest<'_>> = states
        .iter()
        .zip(bytes.chunks_exact_mut(length))
        .map(|(&address, buffer)| ReadRequest {
            address,
            buffer,
            result: Ok(()),
        })
        .collect();
    memory.read_many(&mut requests);
    let read = requests.iter().enumerate();
    let read = read.filter(|(_, request)| request.result.is_ok());
    let places = read.map(|(at, request)| (request.address, at * length));
    Heads {
        places: places.collect(),
        bytes,
        length,
    }
}

/// Whether the list was read to its end. `known` are heads of states that may be in it.
fn read_threads_of(
    interpreter: &Interpreter,
    state: u64,
    (memory, known): (&dyn Memory, Option<&Heads>),
    limit: usize,
    threads: &mut Vec<PythonThread>,
) -> bool {
    let layout = &interpreter.layout;
    let Ok(mut address) =
        memory.read_u64(state.wrapping_add(layout.interpreter.threads_head.into()))
    else {
        return false;
    };
    let mut buffer = [0; MAX_THREAD as usize];
    let Some(head) = buffer.get_mut(..layout.thread_head() as usize) else {
        return false;
    };
    let mut visited = rustc_hash::FxHashSet::default();
    while address != 0 {
        if threads.len() >= limit || !visited.insert(address) {
            return false;
        }
        match known.and_then(|known| known.get(address)) {
            Some(known) => head.copy_from_slice(known),
            None if memory.read_exact(address, head).is_err() => return false,
            None => {}
        }
        let field = |offset: u32| super::objects::u64_at(head, offset);
        // A state of another interpreter was freed and reused: the list has changed.
        if field(layout.thread.interpreter) != state {
            return false;
        }
        threads.push(PythonThread {
            state_address: address,
            native_thread_id: layout
                .thread
                .native_thread_id
                .map(field)
                .filter(|&id| id != 0),
            pthread: field(layout.thread.pthread),
            interpreter: state,
        });
        address = field(layout.thread.next);
    }
    true
}

/// The memory of the lock of the interpreter at `interpreter_state`. It does not move while the
/// interpreter lives.
///
/// # Errors
/// [`ReadError`]; no memory is read up to 3.11.
pub fn read_gil_range(
    interpreter: &Interpreter,
    interpreter_state: u64,
    memory: &dyn Memory,
) -> Result<GilRange, ReadError> {
    let layout = &interpreter.layout.gil;
    let base = match layout.place {
        GilPlace::InRuntime(offset) => interpreter.runtime_address.wrapping_add(offset.into()),
        GilPlace::BehindInterpreter(offset) => {
            memory.read_u64(interpreter_state.wrapping_add(offset.into()))?
        }
    };
    let fields = gil_fields(layout);
    Ok(GilRange {
        address: base.wrapping_add(fields.start.into()),
        length: fields.len(),
    })
}

/// The part of the lock's state that tells who has it.
fn gil_fields(layout: &GilLayout) -> std::ops::Range<u32> {
    let first = layout.last_holder.min(layout.locked);
    let last = (layout.last_holder + 8).max(layout.locked + 4);
    match layout.enabled {
        Some(enabled) => first.min(enabled)..last.max(enabled + 4),
        None => first..last,
    }
}

/// Parses the bytes of a [`GilRange`].
pub fn parse_gil(interpreter: &Interpreter, bytes: &[u8]) -> GilState {
    let layout = &interpreter.layout.gil;
    let fields = gil_fields(layout);
    let start = fields.start;
    if bytes.len() < fields.len() {
        return GilState::Unknown;
    }
    if let Some(enabled) = layout.enabled
        && super::objects::u32_at(bytes, enabled - start) == 0
    {
        return GilState::Disabled;
    }
    // -1 before the lock exists, else 0 or 1 (Python/ceval_gil.c).
    match super::objects::u32_at(bytes, layout.locked - start) {
        0 => GilState::Free,
        1 => match super::objects::u64_at(bytes, layout.last_holder - start) {
            0 => GilState::Unknown,
            holder => GilState::HeldBy(holder),
        },
        _ => GilState::Unknown,
    }
}

/// The holder of the lock of the interpreter at `interpreter_state`. One small read, two from 3.12
/// on.
pub fn read_gil_holder(
    interpreter: &Interpreter,
    interpreter_state: u64,
    memory: &dyn Memory,
) -> GilState {
    match read_gil_range(interpreter, interpreter_state, memory) {
        Ok(range) => read_gil(interpreter, range, memory),
        Err(_) => GilState::Unknown,
    }
}

/// The holder of the lock whose memory is `range`.
pub fn read_gil(interpreter: &Interpreter, range: GilRange, memory: &dyn Memory) -> GilState {
    let mut buffer = [0; 64];
    let Some(bytes) = buffer.get_mut(..range.length) else {
        return GilState::Unknown;
    };
    match memory.read_exact(range.address, bytes) {
        Ok(()) => parse_gil(interpreter, bytes),
        Err(_) => GilState::Unknown,
    }
}
