//! Streams, events, and functions of the host that a stream calls.

use crate::call::{INVALID, NOT_READY, put};
use crate::model::{Event, HostFunction, current_device, model, not_captured, wait};
use gpu_node::monotonic_ns;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Calls a function at a moment, on a thread of its own: functions run in the order of their
/// streams.
pub(crate) fn call_at(at_ns: u64, function: HostFunction) {
    static CALLS: OnceLock<Sender<(u64, HostFunction)>> = OnceLock::new();
    let calls = CALLS.get_or_init(|| {
        let (sender, receiver) = channel::<(u64, HostFunction)>();
        std::thread::spawn(move || {
            for (at_ns, function) in receiver {
                let left = at_ns.saturating_sub(monotonic_ns());
                std::thread::sleep(Duration::from_nanos(left));
                // SAFETY: the function and its argument are the program's, for one call.
                unsafe { (function.function)(function.argument as *mut c_void) };
            }
        });
        sender
    });
    // The thread receives for as long as the process lives.
    drop(calls.send((at_ns, function)));
}

fn new_stream(priority: c_int) -> usize {
    let device = current_device();
    crate::device::use_device(device);
    model().new_stream(device, priority)
}

fn new_event() -> usize {
    crate::device::use_device(current_device());
    let mut model = model();
    let handle = model.handle();
    model.events.insert(handle, Event::default());
    handle
}

calls! {
    fn cudaStreamCreate(out: *mut usize) {
        let stream = new_stream(0);
        // SAFETY: the caller gives a place.
        unsafe { put(out, stream) };
    }

    fn cudaStreamCreateWithFlags(out: *mut usize, _flags: c_uint) {
        let stream = new_stream(0);
        // SAFETY: the caller gives a place.
        unsafe { put(out, stream) };
    }

    fn cudaStreamCreateWithPriority(out: *mut usize, _flags: c_uint, priority: c_int) {
        let stream = new_stream(priority);
        // SAFETY: the caller gives a place.
        unsafe { put(out, stream) };
    }

    /// Does not wait: what is in the stream still runs.
    fn cudaStreamDestroy(stream: usize) {
        model().stream(stream)?;
    }

    fn cudaStreamGetPriority(stream: usize, out: *mut c_int) {
        let priority = model().stream(stream)?.priority;
        // SAFETY: the caller gives a place.
        unsafe { put(out, priority) };
    }

    fn cudaStreamQuery(stream: usize) {
        not_captured(stream)?;
        let end = model().end_of(stream)?;
        if end.is_none_or(|end| end > monotonic_ns()) {
            return Err(NOT_READY);
        }
    }

    fn cudaStreamSynchronize(stream: usize) {
        not_captured(stream)?;
        wait("cudaStreamSynchronize", |model| model.end_of(stream))?;
    }

    fn cudaStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) {
        model().await_event(stream, event)?;
    }

    fn cudaLaunchHostFunc(stream: usize, function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void) {
        let function = HostFunction { function, argument: argument as usize };
        model().call_host(stream, function)?;
    }

    fn cudaEventCreate(out: *mut usize) {
        let event = new_event();
        // SAFETY: the caller gives a place.
        unsafe { put(out, event) };
    }

    fn cudaEventCreateWithFlags(out: *mut usize, _flags: c_uint) {
        let event = new_event();
        // SAFETY: the caller gives a place.
        unsafe { put(out, event) };
    }

    fn cudaEventDestroy(event: usize) {
        model().events.remove(&event).ok_or(INVALID)?;
    }

    fn cudaEventRecord(event: usize, stream: usize) {
        model().record_event(event, stream)?;
    }

    fn cudaEventRecordWithFlags(event: usize, stream: usize, _flags: c_uint) {
        model().record_event(event, stream)?;
    }

    fn cudaEventQuery(event: usize) {
        let moment = model().moment_of(event)?;
        if moment.is_none_or(|moment| moment > monotonic_ns()) {
            return Err(NOT_READY);
        }
    }

    fn cudaEventSynchronize(event: usize) {
        wait("cudaEventSynchronize", |model| model.moment_of(event))?;
    }

    fn cudaEventElapsedTime(out: *mut f32, start: usize, end: usize) {
        let mut model = model();
        let (start, end) = (model.moment_of(start)?, model.moment_of(end)?);
        let (Some(start), Some(end)) = (start, end) else { return Err(NOT_READY) };
        // SAFETY: the caller gives a place.
        unsafe { put(out, ((end as i128 - start as i128) as f64 / 1e6) as f32) };
    }
}
