//! What all calls have in common: an error for the thread, a record in the truth log, a refusal
//! that names the call.

use crate::model::{forked, node};
use gpu_node::monotonic_ns;
use gpu_node::truth::{Kind, Record};
use std::cell::Cell;
use std::ffi::c_int;
use std::io::Write;

/// Errors of the runtime, from the documentation of `cudaError_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Error(pub(crate) c_int);

pub(crate) const INVALID: Error = Error(1);
pub(crate) const MEMORY: Error = Error(2);
pub(crate) const INITIALIZATION: Error = Error(3);
pub(crate) const NOT_SUPPORTED: Error = Error(801);
pub(crate) const INVALID_DEVICE: Error = Error(101);
pub(crate) const NOT_READY: Error = Error(600);

pub(crate) type Result<T = ()> = std::result::Result<T, Error>;

thread_local! {
    static LAST: Cell<c_int> = const { Cell::new(0) };
    static TID: Cell<u32> = const { Cell::new(0) };
}

pub(crate) fn tid() -> u32 {
    TID.with(|tid| {
        if tid.get() == 0 {
            // SAFETY: has no preconditions.
            tid.set(unsafe { libc::gettid() } as u32);
        }
        tid.get()
    })
}

pub(crate) fn last_error() -> &'static std::thread::LocalKey<Cell<c_int>> {
    &LAST
}

/// A call of a function of the runtime: its result and its record.
pub(crate) fn run(name: &'static str, work: impl FnOnce() -> Result) -> c_int {
    if forked() {
        return INITIALIZATION.0;
    }
    let start = monotonic_ns();
    let result = work();
    record(Kind::Call, name, start);
    match result {
        Ok(()) => 0,
        Err(error) => {
            // Not an error, and not kept: "not ready" is an answer.
            if error != NOT_READY {
                LAST.set(error.0);
            }
            error.0
        }
    }
}

/// What a thread did from `start` on until now.
pub(crate) fn record(kind: Kind, name: &str, start: u64) {
    let node = node();
    node.log.put(Record {
        start,
        end: monotonic_ns(),
        name: node.name(name),
        tid: tid(),
        stream: 0,
        device: 0,
        kind: kind as u8,
        pad: 0,
    });
}

/// Writes the name of a call that the double does not have.
pub(crate) fn refuse(name: &str) -> Error {
    let path = node()
        .folder
        .join(format!("refused.{}", std::process::id()));
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path);
    if let Ok(mut file) = file {
        // A full disk: the refusal itself still says it.
        drop(file.write_all(format!("{name}\n").as_bytes()));
    }
    NOT_SUPPORTED
}

/// Functions of the runtime: C names, arguments, and what they do.
macro_rules! calls {
    ($($(#[$note:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {$(
        $(#[$note])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> std::ffi::c_int {
            $crate::call::run(stringify!($name), || {
                $body
                #[allow(unreachable_code)]
                Ok(())
            })
        }
    )*};
}

/// Puts a value where the caller wants it, if it does.
///
/// # Safety
/// `place` is null, or a place for the value.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: as the caller promises.
        unsafe { place.write(value) };
    }
}
