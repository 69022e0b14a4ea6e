//! One thread, read once: its state, its Python data stack and its native stack, in one vectored
//! read.

use super::footprint::{Footprint, NotedMemory};
use super::kept::Kept;
use super::kept_sleeps::{KeptSleep, KeptSleeps};
use super::raw::{Extent, RawSample, ThreadShared};
use super::watched::WatchPlan;
use crate::arch::{Architecture, Machine};
use crate::memory::{LayeredMemory, Memory, ReadError, ReadRequest, SnapshotMemory};
use crate::model::frame::Partial;
use crate::model::registers::Registers;
use crate::os::clock::monotonic_ns;
use crate::os::resident::ResidentMemory;
use crate::python::discover::Interpreter;
use crate::python::frames::{
    FrameError, PythonStack, data_stack_range, frame_range, lasts, read_stack, state_range,
};
use crate::torch::probe::progress::INT_BYTES;
use std::io::IoSliceMut;
use std::ops::Range;

/// Stack bytes that are copied while the address of the root is unknown.
const UNKNOWN_STACK_BYTES: usize = 256 << 10;
/// Maximum bytes of the Python data stack that are copied in advance.
const MAX_DATA_STACK_BYTES: usize = 256 << 10;
/// Maximum number of ranges that the last walk had to fetch and that the next capture copies in
/// advance.
const MAX_EXTRAS: usize = 80;
const PAGE: u64 = Machine::PAGE_BYTES;

/// Where the next capture of a thread will have to read, learned from its last captures.
#[derive(Debug, Default)]
pub(super) struct ReadPlan {
    /// Address of the Python thread state; `None` for a thread without one.
    pub(super) state_address: Option<u64>,
    /// Addresses of the thread's states in other interpreters.
    other_states: Vec<u64>,
    data_stack: Option<(u64, usize)>,
    /// The GIL of the interpreter of that state, where it is known.
    pub(super) gil_address: Option<u64>,
    /// Memory of the GILs, where the next capture reads it, too.
    pub(super) gils: Vec<(u64, usize)>,
    extras: Vec<(u64, usize)>,
    stack_bytes: usize,
    likely: LikelyStack,
    watched: WatchPlan,
    /// Of the last capture, where that is the last state of the thread's Python frames.
    footprint: Footprint,
    pub(super) sleeps: KeptSleeps,
}

/// The probable stack pointer of a stopped thread, or an address below it: the second lowest of its
/// last stops. The lowest is not used, since after a single deep stop every further stop would read
/// that whole depth; on a stack of 64 KiB that takes 10 us.
#[derive(Debug, Default)]
struct LikelyStack {
    last: [u64; LAST_STOPS],
    stops: usize,
}

/// Number of stops that the probable stack pointer is taken from.
const LAST_STOPS: usize = 16;
/// A stack pointer that is further away than this is on another stack.
const SAME_STACK_BYTES: u64 = 64 << 10;

impl LikelyStack {
    fn low(&self) -> Option<u64> {
        let last = self.last.get(..self.stops.min(LAST_STOPS))?;
        let (mut lowest, mut next) = (u64::MAX, u64::MAX);
        for &stack_pointer in last {
            next = next.min(stack_pointer.max(lowest));
            lowest = lowest.min(stack_pointer);
        }
        // After a single stop there is no second lowest.
        match last.len() {
            0 => None,
            1 => Some(lowest),
            _ => Some(next),
        }
    }

    fn learn(&mut self, stack_pointer: u64) {
        if self
            .low()
            .is_some_and(|low| low.abs_diff(stack_pointer) > SAME_STACK_BYTES)
        {
            self.stops = 0;
        }
        if let Some(place) = self.last.get_mut(self.stops % LAST_STOPS) {
            *place = stack_pointer;
        }
        self.stops += 1;
    }
}

impl ReadPlan {
    /// Resets everything about Python: the thread has another state, or another program runs.
    pub(super) fn set_states(&mut self, states: &[u64]) {
        if !self.has_states(states) {
            self.forget_footprint();
        }
        let mut rest: Vec<u64> = states.to_vec();
        // The state that ran last stays the first.
        let known = self.state_address.filter(|known| rest.contains(known));
        let first = known.or(rest.last().copied());
        rest.retain(|&state| Some(state) != first);
        self.other_states = rest;
        if self.state_address != first {
            self.state_address = first;
            self.data_stack = None;
            self.extras.clear();
        }
    }

    /// Whether these are the thread's states.
    pub(super) fn has_states(&self, states: &[u64]) -> bool {
        states.len() == usize::from(self.state_address.is_some()) + self.other_states.len()
            && states.iter().all(|&state| self.has_state(state))
    }

    /// Whether this is a state of the thread.
    pub(super) fn has_state(&self, state: u64) -> bool {
        self.state_address == Some(state) || self.other_states.contains(&state)
    }

    /// Adds the frames that the thread has in other interpreters. The state at the leaf becomes the
    /// thread's first state.
    fn join_others(
        &mut self,
        interpreter: &Interpreter,
        memory: &dyn Memory,
        sample: &mut RawSample,
    ) {
        let mut other = PythonStack::default();
        for state in &mut self.other_states {
            let read = read_stack(interpreter, *state, memory, &mut other);
            if read.is_ok() && !other.frames.is_empty() && sample.python.join(&other) {
                std::mem::swap(state, &mut sample.python_state);
            }
        }
        if self.state_address != Some(sample.python_state) {
            self.state_address = Some(sample.python_state);
            self.data_stack = None;
        }
    }

    /// Finds the Python frames of a thread that was not read yet, so that the stop need not search
    /// for them.
    pub(super) fn prime(&mut self, interpreter: &Interpreter, memory: &ResidentMemory) {
        if let (Some(state), None) = (self.state_address, self.data_stack) {
            self.data_stack = data_stack_range(interpreter, state, memory);
        }
    }

    /// Where the stack probably begins at the next stop; `None` where the last stops differ too
    /// much.
    fn likely_stack(&self, shared: &ThreadShared) -> Option<u64> {
        self.likely.low().filter(|&low| {
            matches!(shared.roots.extent(low), Extent::Known(length) if length as u64 <= SAME_STACK_BYTES)
        })
    }

    /// Ends the footprint of a read of running Python frames: progress counters belong to it, too.
    fn seal_footprint(&mut self, snapshot: &SnapshotMemory) {
        if !self.other_states.is_empty() {
            return self.footprint.clear();
        }
        let ints = self.watched.last_ints().map(|address| (address, INT_BYTES));
        for (address, length) in self.watched.ranges().iter().copied().chain(ints) {
            let Ok(bytes) = snapshot.read_bytes(address, length) else {
                return self.footprint.clear();
            };
            self.footprint.note(address, &bytes);
        }
        self.footprint.seal();
    }

    /// The part of the data stack that the next capture copies.
    fn copied_data_stack(&self) -> Range<u64> {
        let (start, used) = self.data_stack.unwrap_or_default();
        let used = used.min(MAX_DATA_STACK_BYTES) as u64;
        start..start.saturating_add(used)
    }

    /// The stack of the last capture is not known, or another one was recorded since.
    pub(super) fn forget_footprint(&mut self) {
        self.footprint.clear();
        self.sleeps.forget();
    }

    /// Whether the thread has the stack of its last sleep in this one, which the tracer has just
    /// found.
    pub(super) fn sleeps_as_before(
        &mut self,
        now: &KeptSleep,
        memory: &ResidentMemory,
        shared: &ThreadShared,
    ) -> bool {
        if self.is_behind(shared) {
            self.sleeps.forget();
        }
        let is_unchanged = |number| shared.footprint.is_unchanged(number, memory);
        self.sleeps.has_last_stack(now, is_unchanged)
    }

    /// Whether the thread, which runs, has the same Python frames and progress as when it was last
    /// read, some milliseconds ago at most.
    pub(super) fn is_unchanged(&mut self, memory: &ResidentMemory, shared: &ThreadShared) -> bool {
        !self.is_behind(shared) && self.footprint.is_unchanged(memory) == Some(true)
    }

    /// Whether the worker has published a new list of memory to read with the thread.
    pub(super) fn is_behind(&self, shared: &ThreadShared) -> bool {
        self.watched.is_behind(&shared.watched)
    }
}

/// Buffers that the tracer and the worker pass back and forth. They never shrink, so the kernel
/// writes their bytes and no capture has to zero them.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    small: Kept<Vec<u8>>,
    large: Kept<Vec<u8>>,
    deep: Kept<Vec<u8>>,
}

/// Up to this length a buffer is small, and small ones are kept apart.
const SMALL_BYTES: usize = 1024;
/// Buffers above this length belong to deep stacks. Few of them are kept, so that the usual case
/// bounds memory.
const LARGE_BYTES: usize = 128 << 10;
/// Maximum number of buffers kept of either kind, and of those for deep stacks.
const MAX_KEPT: usize = 512;
const MAX_KEPT_DEEP: usize = 4;

impl Buffers {
    /// Takes back the buffers of a sample that is no longer needed.
    pub(super) fn reclaim(&mut self, sample: &mut RawSample) {
        for buffer in sample.snapshot.drain().chain(sample.codes.drain()) {
            self.put_back(buffer);
        }
    }

    pub(super) fn put_back(&mut self, buffer: Vec<u8>) {
        let (free, most) = self.of_length(buffer.len());
        if free.len() < most {
            free.push(buffer);
        }
    }

    /// Drops those that were not needed since the last call.
    pub(super) fn drop_unneeded(&mut self) {
        self.small.drop_unneeded();
        self.large.drop_unneeded();
        self.deep.drop_unneeded();
    }

    /// The free buffers for `length` bytes, and how many may be kept.
    fn of_length(&mut self, length: usize) -> (&mut Kept<Vec<u8>>, usize) {
        if length <= SMALL_BYTES {
            (&mut self.small, MAX_KEPT)
        } else if length <= LARGE_BYTES {
            (&mut self.large, MAX_KEPT)
        } else {
            (&mut self.deep, MAX_KEPT_DEEP)
        }
    }

    /// A buffer of at least `length` bytes.
    pub(super) fn take(&mut self, length: usize) -> Vec<u8> {
        match self.of_length(length).0.pop() {
            Some(mut buffer) => {
                if buffer.len() < length {
                    buffer.resize(length, 0);
                }
                buffer
            }
            // Zeros that no page is needed for before it is written to: at the first tick each
            // thread gets a buffer for a stack of unknown depth.
            None => vec![0; length],
        }
    }

    /// Grows the buffers to what the last capture used: page faults in torchspy's own buffers would
    /// lengthen the stop.
    pub(super) fn prepare(&mut self, plan: &mut ReadPlan, shared: &ThreadShared) -> Vec<u8> {
        plan.watched.refresh(&shared.watched);
        let usual = match shared.roots.is_unknown() {
            true => UNKNOWN_STACK_BYTES,
            false => plan.stack_bytes + 8192,
        };
        // A thread that was deep at times gets a buffer that has been grown for that.
        self.take(match shared.roots.is_deep() {
            true => usual.max(LARGE_BYTES + 1),
            false => usual,
        })
    }
}

/// The thread that is read.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) memory: &'a ResidentMemory,
    pub(super) interpreter: Option<&'a Interpreter>,
    /// `None` skips the native stack.
    pub(super) stack_pointer: Option<u64>,
}

/// Reads the ranges of `plan` and walks the Python frames of a thread that is stopped.
///
/// `stack_buffer` comes from [`Buffers::prepare`].
pub(super) fn capture(
    subject: Subject<'_>,
    plan: &mut ReadPlan,
    stack_buffer: Vec<u8>,
    buffers: &mut Buffers,
    sample: &mut RawSample,
) -> Result<(), ReadError> {
    copy(subject, plan, stack_buffer, buffers, sample)?;
    walk(subject, plan, sample, false);
    Ok(())
}

/// [`capture`] for a sleeper. `Ok(false)` if by `sleeps_on` it woke during the read.
///
/// It is asked as soon as all bytes are copied: many sleeps are not much longer than a read. If
/// captures of them failed, their time would be charged to sleeps that last.
pub(super) fn capture_asleep(
    subject: Subject<'_>,
    plan: &mut ReadPlan,
    stack_buffer: Vec<u8>,
    buffers: &mut Buffers,
    sample: &mut RawSample,
    mut sleeps_on: impl FnMut() -> bool,
) -> Result<bool, ReadError> {
    let copied = copy(subject, plan, stack_buffer, buffers, sample);
    if !sleeps_on() {
        return Ok(false);
    }
    copied?;
    let all_was_copied = walk(subject, plan, sample, false);
    Ok(all_was_copied || sleeps_on())
}

fn copy(
    subject: Subject<'_>,
    plan: &mut ReadPlan,
    stack_buffer: Vec<u8>,
    buffers: &mut Buffers,
    sample: &mut RawSample,
) -> Result<(), ReadError> {
    copy_between(subject, plan, stack_buffer, buffers, sample, None)
}

/// With `around`, what the frames are in is copied three times: before all else and once more at
/// the end into these two.
fn copy_between(
    subject: Subject<'_>,
    plan: &mut ReadPlan,
    stack_buffer: Vec<u8>,
    buffers: &mut Buffers,
    sample: &mut RawSample,
    around: Option<&mut [SnapshotMemory; 2]>,
) -> Result<(), ReadError> {
    plan.forget_footprint();
    read_ranges(subject, plan, stack_buffer, buffers, sample, around)?;
    if !plan.watched.is_empty() {
        read_moved_ints(subject.memory, &mut plan.watched, buffers, sample);
        sample.read_ns = monotonic_ns();
    }
    Ok(())
}

/// Walks the Python frames in what was copied. Returns whether that was all that it needed: the
/// rest is read from the process. `notes`: what the frames are read from is noted.
fn walk(subject: Subject<'_>, plan: &mut ReadPlan, sample: &mut RawSample, notes: bool) -> bool {
    let mut all_was_copied = true;
    if let (Some(interpreter), Some(state)) = (subject.interpreter, plan.state_address) {
        sample.python_state = state;
        let snapshot = std::mem::take(&mut sample.snapshot);
        let layered = LayeredMemory::new(&snapshot, subject.memory);
        plan.footprint.clear();
        let walked = match notes {
            false => read_stack(interpreter, state, &layered, &mut sample.python),
            true => {
                let noted = NotedMemory::new(&layered, &mut plan.footprint);
                read_stack(interpreter, state, &noted, &mut sample.python)
            }
        };
        sample.python_partial = walked.err().map(|error| match error {
            FrameError::TooDeep => Partial::TooDeep,
            FrameError::Read(_) if layered.is_spent() => Partial::TooDeep,
            _ => Partial::PythonUnreadable,
        });
        if !plan.other_states.is_empty() {
            plan.join_others(interpreter, &layered, sample);
        }
        plan.data_stack = data_stack_range(interpreter, sample.python_state, &layered);
        let missed = layered.into_missed();
        all_was_copied = missed.is_empty();
        learn(&mut plan.extras, &missed, plan.data_stack);
        sample.snapshot = snapshot;
        if !all_was_copied {
            sample.snapshot.forget_reads();
        }
    }
    all_was_copied
}

/// [`capture`] for a stopped thread, with `registers` read last: the kernel returns them once the
/// thread is off its CPU, some 10 us after the stop, while memory that the thread no longer writes
/// can be read at once. The stack is read where the last stops found it, and read again if it was
/// not there.
pub(super) fn capture_stopped(
    subject: Subject<'_>,
    plan: &mut ReadPlan,
    stack_buffer: Vec<u8>,
    buffers: &mut Buffers,
    sample: &mut RawSample,
    registers: impl FnOnce() -> Option<Registers>,
) -> Result<(), ReadError> {
    let likely = plan.likely_stack(&sample.shared);
    let of = |stack_pointer| Subject {
        stack_pointer,
        ..subject
    };
    let Some(low) = likely else {
        sample.registers = registers();
        let stack_pointer = sample.registers.as_ref().and_then(Registers::stack_pointer);
        if let Some(stack_pointer) = stack_pointer {
            plan.likely.learn(stack_pointer);
        }
        return capture(of(stack_pointer), plan, stack_buffer, buffers, sample);
    };
    let read = capture(of(Some(low)), plan, stack_buffer, buffers, sample);
    sample.registers = registers();
    let Some(stack_pointer) = sample.registers.as_ref().and_then(Registers::stack_pointer) else {
        return read;
    };
    if read.is_err() {
        // The likely stack no longer exists.
        plan.likely = LikelyStack::default();
        let buffer = buffers.take(SMALL_BYTES);
        return capture(of(Some(stack_pointer)), plan, buffer, buffers, sample);
    }
    plan.likely.learn(stack_pointer);
    let was_read = low..(low + plan.stack_bytes as u64).saturating_sub(8);
    if !was_read.contains(&stack_pointer) {
        let length = stack_length(sample.shared.roots.extent(stack_pointer));
        read_stack_alone(subject.memory, (stack_pointer, length), buffers, sample);
    }
    read
}

fn stack_length(extent: Extent) -> usize {
    match extent {
        Extent::Known(length) => length,
        Extent::Unknown => UNKNOWN_STACK_BYTES,
        Extent::Deeper(length) => length,
    }
}

/// Tests in advance whether the ranges that a stop will probably read are mapped.
pub(super) fn look_up(
    memory: &ResidentMemory,
    interpreter: Option<&Interpreter>,
    plan: &ReadPlan,
    shared: &ThreadShared,
) {
    let stack_pointer = plan.likely_stack(shared);
    memory.look_up(planned_ranges(interpreter, plan, shared, stack_pointer));
}

/// Addresses and lengths of the ranges to read of a thread whose stack begins at `stack_pointer`.
/// Ranges that may fail come last: the kernel stops at the first page that is not mapped. (Where a
/// thread runs, the data stack comes first, and may have been freed.)
fn planned_ranges(
    interpreter: Option<&Interpreter>,
    plan: &ReadPlan,
    shared: &ThreadShared,
    stack_pointer: Option<u64>,
) -> Vec<(u64, usize)> {
    let mut ranges = Vec::with_capacity(8 + plan.extras.len());
    if let (Some(interpreter), Some(state)) = (interpreter, plan.state_address) {
        ranges.push(state_range(interpreter, state));
        ranges.extend_from_slice(&plan.gils);
        if let Some((start, used)) = plan.data_stack {
            let end = (start.saturating_add(used as u64)).next_multiple_of(PAGE);
            let length = (end.saturating_sub(start) as usize).min(MAX_DATA_STACK_BYTES);
            ranges.push((start, length));
        }
    }
    let mut with_extras = true;
    if let Some(stack_pointer) = stack_pointer {
        let extent = shared.roots.extent(stack_pointer);
        ranges.push((stack_pointer, stack_length(extent)));
        with_extras = matches!(extent, Extent::Known(_));
    }
    if with_extras {
        ranges.extend_from_slice(plan.watched.ranges());
        let ints = plan.watched.last_ints();
        ranges.extend(ints.map(|address| (address, INT_BYTES)));
        ranges.extend_from_slice(&plan.extras);
    }
    ranges
}

/// Index of the data stack, where it is known, among the planned ranges of a thread that runs.
const DATA_STACK: usize = 1;

/// A range to read, into the start of a buffer.
struct Wanted {
    address: u64,
    length: usize,
    buffer: Vec<u8>,
}

fn read_ranges(
    subject: Subject<'_>,
    plan: &mut ReadPlan,
    stack_buffer: Vec<u8>,
    buffers: &mut Buffers,
    sample: &mut RawSample,
    mut around: Option<&mut [SnapshotMemory; 2]>,
) -> Result<(), ReadError> {
    let stack_pointer = subject.stack_pointer;
    let mut planned = planned_ranges(subject.interpreter, plan, &sample.shared, stack_pointer);
    // The first ranges are copied before, and again after, those up to `end`.
    let (mut first, mut end) = (0, planned.len());
    if around.is_some() {
        // Before 3.11 frames are objects of their own: they are in any of the ranges.
        first = end;
        if plan.data_stack.is_some() {
            planned.swap(0, DATA_STACK);
            first = 1;
        }
        planned.extend_from_within(..first);
        end = planned.len();
        planned.extend_from_within(..first);
    }
    let mut ranges: Vec<Wanted> = Vec::with_capacity(planned.len());
    let mut stack_buffer = Some(stack_buffer);
    for (address, length) in planned {
        let is_stack = Some(address) == stack_pointer;
        let mut buffer = match stack_buffer.take_if(|_| is_stack) {
            Some(buffer) => buffer,
            None => buffers.take(length),
        };
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        ranges.push(Wanted {
            address,
            length,
            buffer,
        });
    }
    if let Some(unused) = stack_buffer {
        buffers.put_back(unused);
    }
    if ranges.is_empty() {
        return Ok(());
    }
    let addresses: Vec<u64> = ranges.iter().map(|range| range.address).collect();
    let mut slices: Vec<IoSliceMut<'_>> = ranges
        .iter_mut()
        .map(|range| IoSliceMut::new(&mut range.buffer[..range.length]))
        .collect();
    let mut available = match subject.memory.read_vector(&addresses, &mut slices) {
        // The unmapped range is before the stack, which is read alone below.
        Err(ReadError::Unmapped(_)) if stack_pointer.is_some_and(|at| addresses[0] != at) => 0,
        read => read?,
    };
    drop(slices);
    let mut stack_bytes = 0;
    for (index, range) in ranges.into_iter().enumerate() {
        let here = available.min(range.length);
        available -= here;
        // The stack may end before the requested end; of other ranges a part is of no use.
        if Some(range.address) == stack_pointer && here > 0 {
            stack_bytes = here;
        } else if here < range.length {
            buffers.put_back(range.buffer);
            continue;
        }
        let copies = match &mut around {
            Some([before, _]) if index < first => before,
            Some([_, after]) if index >= end => after,
            _ => &mut sample.snapshot,
        };
        copies.insert_part(range.address, range.buffer, here);
    }
    if stack_pointer.is_some() {
        plan.stack_bytes = stack_bytes;
        if stack_bytes == 0 {
            // An unreadable state or data stack must not cost the native stack.
            let start = stack_pointer.unwrap_or(0);
            read_stack_alone(
                subject.memory,
                (start, UNKNOWN_STACK_BYTES),
                buffers,
                sample,
            );
        }
    }
    Ok(())
}

/// Reads the ints of counters that changed since the last read: each number is an object of its
/// own.
fn read_moved_ints(
    memory: &ResidentMemory,
    watched: &mut WatchPlan,
    buffers: &mut Buffers,
    sample: &mut RawSample,
) {
    let moved = watched.moved_ints(|place| sample.snapshot.read_u64(place).ok());
    if moved.is_empty() {
        return;
    }
    let mut pieces: Vec<Vec<u8>> = moved.iter().map(|_| buffers.take(INT_BYTES)).collect();
    let mut slices: Vec<IoSliceMut<'_>> = pieces
        .iter_mut()
        .map(|piece| IoSliceMut::new(&mut piece[..INT_BYTES]))
        .collect();
    let available = memory.read_vector(&moved, &mut slices).unwrap_or(0);
    for (index, (address, piece)) in moved.into_iter().zip(pieces).enumerate() {
        if (index + 1) * INT_BYTES <= available {
            sample.snapshot.insert_part(address, piece, INT_BYTES);
        } else {
            buffers.put_back(piece);
        }
    }
}

fn read_stack_alone(
    memory: &ResidentMemory,
    (stack_pointer, length): (u64, usize),
    buffers: &mut Buffers,
    sample: &mut RawSample,
) {
    let mut buffer = buffers.take(length);
    let slice = IoSliceMut::new(&mut buffer[..length]);
    let read = memory.read_vector(&[stack_pointer], &mut [slice]);
    if let Ok(length) = read {
        sample.snapshot.insert_part(stack_pointer, buffer, length);
    }
}

/// Records the ranges that were missing, newest last, without duplicates. The data stack is always
/// copied, so it is left out.
fn learn(
    extras: &mut Vec<(u64, usize)>,
    missed: &[(u64, usize)],
    data_stack: Option<(u64, usize)>,
) {
    for &(address, length) in missed {
        let covered = data_stack
            .is_some_and(|(start, used)| address >= start && address - start < used as u64);
        if covered
            || length > 4096
            || extras
                .iter()
                .any(|extra| extra.0 == address && extra.1 >= length)
        {
            continue;
        }
        if extras.len() >= MAX_EXTRAS {
            extras.remove(0);
        }
        extras.push((address, length));
    }
}

/// Reads Python frames of a thread that may be running. The data stack is copied before, and twice
/// after, what points to the leaf. Frames that are the same in all three copies were there all the
/// time, so that another one that they call, as the middle copy has it, was called by them. Frames
/// elsewhere (of generators, in older parts of the data stack) are read once more at the end.
///
/// Returns whether such a stack was found. If not, what was there all the time is kept of the last
/// one, and marked `Torn`. `follows`: [`ReadPlan::is_unchanged`] will be asked.
pub(super) fn capture_unstopped(
    memory: &ResidentMemory,
    interpreter: &Interpreter,
    plan: &mut ReadPlan,
    buffers: &mut Buffers,
    sample: &mut RawSample,
    follows: bool,
) -> Result<bool, ReadError> {
    const TRIES: usize = 8;
    let subject = Subject {
        memory,
        interpreter: Some(interpreter),
        stack_pointer: None,
    };
    let mut around: [SnapshotMemory; 2] = Default::default();
    plan.watched.refresh(&sample.shared.watched);
    for left in (0..TRIES).rev() {
        buffers.reclaim(sample);
        sample.python.clear();
        let spare = buffers.take(0);
        let copied = plan.copied_data_stack();
        match copy_between(subject, plan, spare, buffers, sample, Some(&mut around)) {
            // A part of the data stack that is no longer needed is freed.
            Err(ReadError::Unmapped(_)) if plan.data_stack.take().is_some() => continue,
            read => read?,
        }
        if !copied.is_empty() && around[1].buffer_bytes() == 0 {
            // The read ended at something else that was freed.
            plan.extras.clear();
            continue;
        }
        walk(subject, plan, sample, follows);
        if sample.python_partial == Some(Partial::TooDeep) {
            return Ok(false);
        }
        let frames = &sample.python.frames;
        let now = LayeredMemory::new(&sample.snapshot, memory);
        let copies = around.iter().map(|copy| {
            let copy = LayeredMemory::new(copy, &now);
            let from_root = frames.iter().rev();
            from_root
                .take_while(|frame| lasts(interpreter, frame, &now, &copy))
                .count()
        });
        let lasting = copies.min().unwrap_or(0);
        for buffer in around.iter_mut().flat_map(SnapshotMemory::drain) {
            buffers.put_back(buffer);
        }
        // The first frame calls, and is not called: where a frame has just ended, it seems to be
        // one.
        let has_root = lasting > 0 || frames.is_empty();
        let is_whole = sample.python_partial.is_none() && lasting + 1 >= frames.len();
        if has_root && is_whole && last_elsewhere(memory, interpreter, copied, sample) {
            if follows {
                plan.seal_footprint(&sample.snapshot);
            }
            return Ok(true);
        }
        if left == 0 {
            sample.python.keep_root(lasting);
        }
    }
    plan.footprint.clear();
    sample.python_partial = Some(Partial::Torn);
    Ok(false)
}

/// Whether the frames that are not in the part of the data stack that was copied are still those
/// that were read. Before 3.11 there is no data stack.
fn last_elsewhere(
    memory: &ResidentMemory,
    interpreter: &Interpreter,
    copied: Range<u64>,
    sample: &RawSample,
) -> bool {
    if interpreter.layout.thread.datastack_chunk.is_none() {
        return true;
    }
    let frames = sample.python.frames.iter();
    let elsewhere: Vec<_> = frames
        .filter(|frame| !copied.contains(&frame.frame_address))
        .collect();
    let ranges = elsewhere
        .iter()
        .map(|frame| frame_range(interpreter, frame));
    let mut copies: Vec<_> = ranges
        .map(|(address, length)| (address, vec![0; length]))
        .collect();
    let mut requests: Vec<_> = copies
        .iter_mut()
        .map(|(address, buffer)| ReadRequest {
            address: *address,
            buffer,
            result: Ok(()),
        })
        .collect();
    memory.read_many(&mut requests);
    if requests.iter().any(|request| request.result.is_err()) {
        return false;
    }
    let now = LayeredMemory::new(&sample.snapshot, memory);
    elsewhere
        .into_iter()
        .zip(copies)
        .all(|(frame, (address, bytes))| {
            let mut later = SnapshotMemory::default();
            later.insert(address, bytes);
            lasts(interpreter, frame, &now, &later)
        })
}

/// [`capture`] of a running thread of which the kernel has just copied the registers and the stack:
/// address, buffer, and length of the copy. What else is read may be a little later; with
/// `stack_pointer` the stack is read on from there.
pub(super) fn capture_sampled(
    subject: Subject<'_>,
    plan: &mut ReadPlan,
    (address, stack, length): (u64, Vec<u8>, usize),
    buffers: &mut Buffers,
    sample: &mut RawSample,
) -> Result<(), ReadError> {
    let spare = buffers.take(0);
    let copied = copy(subject, plan, spare, buffers, sample);
    // What was added last is what is read: the stack as it was then.
    sample.snapshot.insert_part(address, stack, length);
    copied?;
    walk(subject, plan, sample, false);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::code::PythonVersion;
    use crate::model::ids::ProcessId;
    use crate::model::sample::Sample;
    use crate::python::layout::tables;
    use std::sync::Arc;

    #[test]
    fn a_state_that_is_not_there_does_not_cost_the_stack() {
        let version = PythonVersion::new(3, 12);
        let interpreter = Interpreter {
            version,
            version_text: String::new(),
            free_threaded: false,
            runtime_address: 0,
            layout: tables::for_version(version).unwrap(),
            code_type: None,
            none: None,
        };
        let memory = ResidentMemory::new(std::process::id() as i32);
        let stack = [7_u64; 16];
        let address = stack.as_ptr() as u64;
        let subject = Subject {
            memory: &memory,
            interpreter: Some(&interpreter),
            stack_pointer: Some(address),
        };
        let mut plan = ReadPlan::default();
        plan.set_states(&[0x1000]);
        let mut sample = RawSample::new(Sample::default(), ProcessId(0), Arc::default(), 0);
        let mut buffers = Buffers::default();
        let read = capture(subject, &mut plan, Vec::new(), &mut buffers, &mut sample);
        assert_eq!(read, Ok(()));
        assert_eq!(sample.snapshot.read_u64(address), Ok(7));
        assert_eq!(sample.python_partial, Some(Partial::PythonUnreadable));
    }

    #[test]
    fn a_likely_stack_begins_low_enough_for_all_but_one_of_the_last_stops() {
        let mut likely = LikelyStack::default();
        assert_eq!(likely.low(), None);
        likely.learn(0x7000);
        assert_eq!(likely.low(), Some(0x7000));
        likely.learn(0x1000);
        assert_eq!(likely.low(), Some(0x7000));
        for stack_pointer in [0x6000, 0x5000, 0x5000] {
            likely.learn(stack_pointer);
        }
        assert_eq!(likely.low(), Some(0x5000));
        for _ in 0..LAST_STOPS {
            likely.learn(0x8000);
        }
        assert_eq!(likely.low(), Some(0x8000));
        // Another stack, or this one at another address, resets what was learned.
        likely.learn(0x7f00_0000_0000);
        assert_eq!(likely.low(), Some(0x7f00_0000_0000));
        likely.learn(0x8000);
        assert_eq!(likely.low(), Some(0x8000));
    }
}
