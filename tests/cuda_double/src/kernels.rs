//! Kernels: how the compiler's own code registers and launches them.

use crate::call::{INVALID, Result, put};
use crate::model::{Work, current_device, issue_with, node, spend};
use crate::torch::Reduction;
use gpu_node::node::Use;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dim3 {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

impl Dim3 {
    fn count(self) -> f64 {
        f64::from(self.x) * f64::from(self.y) * f64::from(self.z)
    }
}

struct Kernel {
    /// As the compiler mangles it.
    name: &'static CStr,
    /// Of one that was launched before.
    known: Option<Known>,
}

#[derive(Clone)]
struct Known {
    work: Work,
    /// Whether the scenario says what it costs.
    fixed: bool,
    reduction: Option<Reduction>,
}

/// Kernels by the address of their host function.
static KERNELS: Mutex<Option<HashMap<usize, Kernel>>> = Mutex::new(None);

fn kernels() -> MutexGuard<'static, Option<HashMap<usize, Kernel>>> {
    KERNELS.lock().unwrap_or_else(|error| error.into_inner())
}

/// Bytes that a thread of a kernel reads and writes: four floats of three tensors.
const THREAD_BYTES: f64 = 48.0;
/// What the shortest kernel takes, us.
const SHORTEST_US: f64 = 2.0;

/// What a launch of a kernel is for the device, and what it computes, if it does.
fn work_of(function: usize, grid: Dim3, block: Dim3) -> Result<(Work, Option<Reduction>)> {
    let gpu = &node().scenario.gpus[node().visible[current_device()]];
    let (known, is_new) = {
        let mut kernels = kernels();
        let kernel = kernels.get_or_insert_default().get_mut(&function);
        // cudaErrorInvalidDeviceFunction
        let kernel = kernel.ok_or(crate::call::Error(98))?;
        let is_new = kernel.known.is_none();
        let known = kernel.known.get_or_insert_with(|| {
            let name = kernel.name.to_string_lossy();
            let costs = &node().scenario.kernels;
            let used = Use {
                multiprocessors: 0.8,
                memory: 0.5,
            };
            Known {
                work: Work::new(&name, 0.0, used),
                fixed: costs.iter().any(|cost| name.contains(&cost.name)),
                reduction: Reduction::of(&name),
            }
        });
        (known.clone(), is_new)
    };
    if is_new {
        // Kernels are loaded when they are first launched.
        spend(node().scenario.load_us);
    }
    let mut work = known.work;
    if !known.fixed {
        let moved_us = grid.count() * block.count() * THREAD_BYTES / gpu.gb_s / 1000.0;
        work.us = moved_us.max(SHORTEST_US);
        let filled = grid.count() / f64::from(gpu.multiprocessors);
        work.used = Use {
            multiprocessors: filled.min(0.95) as f32,
            memory: (moved_us / work.us * 0.9) as f32,
        };
    }
    Ok((work, known.reduction))
}

fn launch(
    name: &'static str,
    function: usize,
    (grid, block): (Dim3, Dim3),
    arguments: *mut *mut c_void,
    stream: usize,
) -> Result {
    crate::device::use_device(current_device());
    let (work, reduction) = work_of(function, grid, block)?;
    // SAFETY: the caller gives the arguments of the kernel, of which a reduction has one.
    let effect = reduction.and_then(|reduction| unsafe { reduction.effect(*arguments) });
    issue_with(name, stream, work, effect)
}

/// `cudaLaunchConfig_t`.
#[repr(C)]
pub struct LaunchConfig {
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: usize,
    attributes: *const c_void,
    attribute_count: c_uint,
}

thread_local! {
    static CONFIGURATION: RefCell<Vec<(Dim3, Dim3, usize, usize)>> = const { RefCell::new(Vec::new()) };
}

calls! {
    fn cudaLaunchKernel(function: usize, grid: Dim3, block: Dim3, arguments: *mut *mut c_void, _shared: usize, stream: usize) {
        launch("cudaLaunchKernel", function, (grid, block), arguments, stream)?;
    }

    fn __cudaLaunchKernel(kernel: usize, grid: Dim3, block: Dim3, arguments: *mut *mut c_void, _shared: usize, stream: usize) {
        launch("cudaLaunchKernel", kernel, (grid, block), arguments, stream)?;
    }

    fn cudaLaunchCooperativeKernel(function: usize, grid: Dim3, block: Dim3, arguments: *mut *mut c_void, _shared: usize, stream: usize) {
        launch("cudaLaunchCooperativeKernel", function, (grid, block), arguments, stream)?;
    }

    fn cudaLaunchKernelExC(config: *const LaunchConfig, function: usize, arguments: *mut *mut c_void) {
        // SAFETY: the caller gives the structure.
        let config = unsafe { config.as_ref() }.ok_or(INVALID)?;
        launch("cudaLaunchKernelExC", function, (config.grid, config.block), arguments, config.stream)?;
    }

    /// A kernel's handle is the address of its host function.
    fn __cudaGetKernel(out: *mut usize, function: usize) {
        // SAFETY: the caller gives a place.
        unsafe { put(out, function) };
    }

    fn __cudaPopCallConfiguration(grid: *mut Dim3, block: *mut Dim3, shared: *mut usize, stream: *mut usize) {
        let last = CONFIGURATION.with_borrow_mut(Vec::pop).ok_or(INVALID)?;
        // SAFETY: the caller gives places.
        unsafe {
            put(grid, last.0);
            put(block, last.1);
            put(shared, last.2);
            put(stream, last.3);
        }
    }

    fn cudaFuncGetAttributes(out: *mut c_void, _function: usize) {
        let mut all = [0_u8; 144];
        // maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, maxDynamicSharedSizeBytes.
        for (at, value) in [(24, 1024), (28, 32), (32, 80), (36, 80), (44, 48 << 10)] {
            all[at..at + 4].copy_from_slice(&c_int::to_le_bytes(value));
        }
        // SAFETY: the caller gives a structure of this size.
        unsafe { out.cast::<[u8; 144]>().write_unaligned(all) };
    }

    fn cudaFuncSetAttribute(_function: usize, _attribute: c_int, _value: c_int) {}

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(out: *mut c_int, _function: usize, block: c_int, _shared: usize) {
        // SAFETY: the caller gives a place.
        unsafe { put(out, (2048 / block.max(1)).max(1)) };
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out: *mut c_int, _function: usize, block: c_int, _shared: usize, _flags: c_uint) {
        // SAFETY: the caller gives a place.
        unsafe { put(out, (2048 / block.max(1)).max(1)) };
    }
}

// What compilers put into each library with kernels. It runs while libraries are loaded, in any
// process that loads one: a node is not asked for yet.

#[unsafe(no_mangle)]
pub extern "C" fn __cudaPushCallConfiguration(
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: usize,
) -> c_uint {
    CONFIGURATION.with_borrow_mut(|all| all.push((grid, block, shared, stream)));
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinary(_binary: *mut c_void) -> *mut *mut c_void {
    // A handle that nobody looks behind.
    std::ptr::dangling_mut()
}

#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinaryEnd(_handle: *mut *mut c_void) {}

#[unsafe(no_mangle)]
pub extern "C" fn __cudaUnregisterFatBinary(_handle: *mut *mut c_void) {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaRegisterFunction(
    _handle: *mut *mut c_void,
    function: usize,
    _device_function: *mut c_char,
    name: *const c_char,
    _thread_limit: c_int,
    _tid: *mut c_void,
    _bid: *mut c_void,
    _block: *mut c_void,
    _grid: *mut c_void,
    _warp_size: *mut c_int,
) {
    // SAFETY: the compiler gives a C string that lives as long as its library.
    let name = unsafe { CStr::from_ptr(name) };
    let kernel = Kernel { name, known: None };
    kernels().get_or_insert_default().insert(function, kernel);
}

#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterVar(
    _handle: *mut *mut c_void,
    shadow: usize,
    _address: *mut c_char,
    _name: *const c_char,
    _external: c_int,
    bytes: usize,
    _constant: c_int,
    _global: c_int,
) {
    crate::memory::add_symbol(shadow, bytes);
}
