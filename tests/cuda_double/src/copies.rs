//! Copies and fills: what they copy, what they cost a device, and when they keep the host waiting,
//! as the runtime's chapter on synchronization says.

use crate::call::Result;
use crate::memory::{Place, place_of};
use crate::model::{Effect, Work, current_device, issue_with, launches, model, node, wait};
use gpu_node::monotonic_ns;
use gpu_node::node::Use;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard};

/// What is read as a value on the host is no larger than this.
pub(crate) const VALUE: usize = 16;
/// Copies that a device makes by itself, within it or from and to pinned memory, are made if they
/// are no larger than this: they cost the host nothing, and kernels read nothing of them.
const SMALL: usize = 64 << 10;
/// What the host's part of a copy from pageable memory costs, GB/s: it is staged.
const STAGED_GB_S: f64 = 8.0;

/// What a collective wrote is read as values for so many launches.
pub(crate) const LASTS: u64 = 256;

/// Values that copies and collectives wrote to a device: address, length, and the last launch at
/// which they are good. Kernels compute nothing: a value that is read later is 0, which is safe for
/// code that branches on it.
static VALUES: Mutex<BTreeMap<usize, (usize, u64)>> = Mutex::new(BTreeMap::new());

fn values() -> MutexGuard<'static, BTreeMap<usize, (usize, u64)>> {
    VALUES.lock().unwrap_or_else(|error| error.into_inner())
}

fn written(address: usize, bytes: usize) {
    if bytes <= VALUE {
        // The copy itself is a launch.
        values().insert(address, (bytes, launches() + 1));
    }
}

/// A collective, or what else computes, wrote a result.
pub(crate) fn received(address: usize, bytes: usize) {
    values().insert(address, (bytes, launches() + LASTS));
}

/// Whether what is read here was written as a value before so many launches.
pub(crate) fn is_fresh(address: usize, bytes: usize, launches: u64) -> bool {
    let values = values();
    let value = values.range(..=address).next_back();
    value.is_some_and(|(start, &(length, last))| {
        start + length >= address + bytes && launches <= last
    })
}

/// Copies bytes, and the work that it is for a device.
unsafe fn copy(
    name: &'static str,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    handle: usize,
    waits: bool,
) -> Result {
    let (target, source) = (place_of(to as usize), place_of(from as usize));
    let gpu = &node().scenario.gpus[node().visible[current_device()]];
    let (called, rate) = match (source, target) {
        (Place::Device(_), Place::Device(_)) => ("d2d", gpu.gb_s / 2.0),
        (Place::Device(_), _) => ("d2h", gpu.pcie_gb_s),
        (_, Place::Device(_)) => ("h2d", gpu.pcie_gb_s),
        _ => ("h2h", gpu.pcie_gb_s),
    };
    let us = 1.5 + bytes as f64 / rate / 1000.0;
    let memory = (bytes as f64 / gpu.gb_s / 1000.0 / us) as f32;
    let work = Work::new(
        called,
        us,
        Use {
            multiprocessors: 0.0,
            memory,
        },
    );
    let (captured, resolved) = {
        let mut model = model();
        let stream = model.stream(handle)?;
        (stream.capture.is_some(), stream.is_resolved())
    };
    let launches = launches();
    let (to, from) = (to as usize, from as usize);
    // SAFETY: the caller gives that much readable and writable memory, until the stream is done.
    let bytes_move = move || unsafe {
        libc::memmove(to as *mut c_void, from as *const c_void, bytes);
    };
    let by_device = called == "d2d" || source == Place::Pinned || target == Place::Pinned;
    let effect: Option<Effect> = match called {
        "d2d" | "d2h" | "h2d" if by_device && bytes > SMALL => None,
        "d2h" if bytes <= VALUE => Some(Box::new(move || match is_fresh(from, bytes, launches) {
            true => bytes_move(),
            // SAFETY: as above.
            false => unsafe {
                libc::memset(to as *mut c_void, 0, bytes);
            },
        })),
        "h2d" if source == Place::Pageable && !captured => {
            // Staged by the thread before the call returns.
            let begun = monotonic_ns();
            let mut effect: Option<Effect> = None;
            if resolved {
                bytes_move();
                written(to, bytes);
            } else {
                // SAFETY: as above.
                let staged =
                    unsafe { std::slice::from_raw_parts(from as *const u8, bytes) }.to_vec();
                effect = Some(Box::new(move || {
                    // SAFETY: as above.
                    unsafe { (to as *mut u8).copy_from(staged.as_ptr(), bytes) };
                    written(to, bytes);
                }));
            }
            let staged_ns = (bytes as f64 / STAGED_GB_S) as u64;
            while monotonic_ns() < begun + staged_ns {
                std::hint::spin_loop();
            }
            effect
        }
        "h2d" => Some(Box::new(move || {
            bytes_move();
            written(to, bytes);
        })),
        "d2d" => Some(Box::new(move || {
            bytes_move();
            if is_fresh(from, bytes, launches) {
                received(to, bytes);
            }
        })),
        _ => Some(Box::new(bytes_move)),
    };
    issue_with(name, handle, work, effect)?;
    let returns = waits || (called == "d2h" && target == Place::Pageable) || called == "h2h";
    if returns && !captured {
        wait(name, |model| model.end_of(handle))?;
    }
    Ok(())
}

unsafe fn fill(
    name: &'static str,
    to: *mut c_void,
    value: c_int,
    bytes: usize,
    handle: usize,
) -> Result {
    let gpu = &node().scenario.gpus[node().visible[current_device()]];
    let us = 1.5 + bytes as f64 / gpu.gb_s / 1000.0;
    let to = to as usize;
    let effect: Effect = Box::new(move || {
        if bytes <= SMALL {
            // SAFETY: the caller gives that much memory, until the stream is done.
            unsafe { libc::memset(to as *mut c_void, value, bytes) };
        }
    });
    let used = Use {
        multiprocessors: 0.1,
        memory: 0.8,
    };
    issue_with(name, handle, Work::new("memset", us, used), Some(effect))
}

calls! {
    fn cudaMemcpyAsync(to: *mut c_void, from: *const c_void, bytes: usize, _kind: c_int, stream: usize) {
        // SAFETY: as the caller promises.
        unsafe { copy("cudaMemcpyAsync", to, from, bytes, stream, false)? };
    }

    fn cudaMemcpy(to: *mut c_void, from: *const c_void, bytes: usize, _kind: c_int) {
        // SAFETY: as the caller promises.
        unsafe { copy("cudaMemcpy", to, from, bytes, 0, true)? };
    }

    fn cudaMemcpyPeerAsync(to: *mut c_void, _device: c_int, from: *const c_void, _peer: c_int, bytes: usize, stream: usize) {
        // SAFETY: as the caller promises.
        unsafe { copy("cudaMemcpyPeerAsync", to, from, bytes, stream, false)? };
    }

    fn cudaMemcpy2DAsync(to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize, height: usize, _kind: c_int, stream: usize) {
        for row in 0..height {
            // SAFETY: the caller gives rows of these lengths.
            let (to, from) = unsafe { (to.byte_add(row * to_pitch), from.byte_add(row * from_pitch)) };
            // SAFETY: as above.
            unsafe { copy("cudaMemcpy2DAsync", to, from, width, stream, false)? };
        }
    }

    fn cudaMemcpyToSymbol(symbol: usize, from: *const c_void, bytes: usize, offset: usize, _kind: c_int) {
        let to = crate::memory::symbol(symbol)? + offset;
        // SAFETY: as the caller promises.
        unsafe { copy("cudaMemcpyToSymbol", to as *mut c_void, from, bytes, 0, true)? };
    }

    fn cudaMemsetAsync(to: *mut c_void, value: c_int, bytes: usize, stream: usize) {
        // SAFETY: as the caller promises.
        unsafe { fill("cudaMemsetAsync", to, value, bytes, stream)? };
    }

    fn cudaMemset(to: *mut c_void, value: c_int, bytes: usize) {
        // SAFETY: as the caller promises.
        unsafe { fill("cudaMemset", to, value, bytes, 0)? };
    }

    fn cudaMallocManaged(out: *mut usize, bytes: usize, _flags: c_uint) {
        let address = crate::memory::allocate(bytes)?;
        // SAFETY: the caller gives a place.
        unsafe { crate::call::put(out, address) };
    }
}
