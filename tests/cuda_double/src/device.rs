//! Devices: how many there are, what they are like, and waiting for one.

use crate::call::{INITIALIZATION, INVALID_DEVICE, put, refuse};
use crate::model::{current_device, forked, node, set_device, wait};
use gpu_node::scenario::Gpu;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::Once;
use std::time::Duration;

/// CUDA 13.2.
const VERSION: c_int = 13_020;
/// What a context takes of a device's memory.
const CONTEXT: u64 = 400 << 20;

pub(crate) fn gpu(device: c_int) -> Result<&'static Gpu, crate::call::Error> {
    let number = usize::try_from(device).ok();
    let number = number.and_then(|device| node().visible.get(device));
    number
        .map(|&number| &node().scenario.gpus[number])
        .ok_or(INVALID_DEVICE)
}

/// Whether the process has a context on a device.
static CONTEXTS: [Once; gpu_node::node::DEVICES] = [const { Once::new() }; gpu_node::node::DEVICES];

/// The first use of a device makes its context.
pub(crate) fn use_device(device: usize) {
    CONTEXTS[device].call_once(|| {
        crate::torch::load_driver();
        let memory = node().shared.memory(node().visible[device]);
        if let Some(memory) = memory {
            memory.fetch_add(CONTEXT, std::sync::atomic::Ordering::AcqRel);
        }
        std::thread::sleep(Duration::from_secs_f64(node().scenario.context_ms / 1e3));
    });
}

/// Whether this process has a context on a device. Torch asks before nearly every operator: there
/// is no system call in it.
pub(crate) fn has_context(device: usize) -> bool {
    !forked() && CONTEXTS.get(device).is_some_and(Once::is_completed)
}

/// `struct cudaDeviceProp` of CUDA 13, by the offsets of its documented fields.
struct Properties([u8; 1008]);

impl Properties {
    fn of(gpu: &Gpu, number: usize) -> Self {
        let mut all = Self([0; 1008]);
        let name = gpu.name.as_bytes();
        all.0[..name.len().min(255)].copy_from_slice(&name[..name.len().min(255)]);
        let hex: Vec<u8> = gpu
            .uuid
            .bytes()
            .skip(4)
            .filter_map(|byte| (byte as char).to_digit(16))
            .map(|digit| digit as u8)
            .collect();
        for (at, pair) in hex.chunks_exact(2).take(16).enumerate() {
            all.0[256 + at] = pair[0] << 4 | pair[1];
        }
        for (at, value) in [
            (288, gpu.memory_total),
            (296, 48 << 10),
            (312, 0x7fff_ffff),
            (352, 64 << 10),
            (368, 512),
            (624, 164 << 10),
            (672, 163 << 10),
        ] {
            all.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let (major, minor) = gpu.compute;
        for (at, value) in [
            (304, 65_536),
            (308, 32),
            (320, 1024),
            (324, 1024),
            (328, 1024),
            (332, 64),
            (336, 0x7fff_ffff),
            (340, 65_535),
            (344, 65_535),
            (360, major),
            (364, minor),
            (384, gpu.multiprocessors as i32),
            (392, 1),
            (560, 1),
            (564, 1),
            (568, number as i32 + 1),
            (584, 3),
            (588, 1),
            (592, 5120),
            (596, 40 << 20),
            (604, 2048),
            (608, 1),
            (632, 65_536),
            (636, 1),
            (668, 1),
            (688, 32),
            (704, 1),
        ] {
            all.0[at..at + 4].copy_from_slice(&i32::to_le_bytes(value));
        }
        all
    }
}

calls! {
    fn cudaGetDeviceCount(count: *mut c_int) {
        let devices = node().visible.len();
        // SAFETY: the caller gives a place.
        unsafe { put(count, devices as c_int) };
        if devices == 0 {
            // cudaErrorNoDevice
            return Err(crate::call::Error(100));
        }
    }

    fn cudaSetDevice(device: c_int) {
        set_device(usize::try_from(device).map_err(|_| INVALID_DEVICE)?)?;
    }

    fn cudaGetDeviceProperties(out: *mut c_void, device: c_int) {
        let found = gpu(device)?;
        let properties = Properties::of(found, node().visible[device as usize]);
        // SAFETY: the caller gives a structure of this size.
        unsafe { out.cast::<[u8; 1008]>().write_unaligned(properties.0) };
    }

    fn cudaDeviceGetAttribute(out: *mut c_int, attribute: c_int, device: c_int) {
        let gpu = gpu(device)?;
        // Numbers from the documentation of `cudaDeviceAttr`; others are 0 here.
        let value = match attribute {
            1..=3 => 1024,
            4 => 64,
            5 => i32::MAX,
            6 | 7 => 65_535,
            8 => 48 << 10,
            10 => 32,
            12 => 65_536,
            13 => 1_410_000,
            16 => gpu.multiprocessors as c_int,
            38 => 40 << 20,
            39 => 2048,
            41 | 95 => 1,
            75 => gpu.compute.0,
            76 => gpu.compute.1,
            81 => 164 << 10,
            97 => 163 << 10,
            106 => 32,
            _ => 0,
        };
        // SAFETY: the caller gives a place.
        unsafe { put(out, value) };
    }

    fn cudaDeviceGetPCIBusId(out: *mut c_char, length: c_int, device: c_int) {
        gpu(device)?;
        let text = format!("0000:{:02x}:00.0\0", node().visible[device as usize] + 1);
        let length = text.len().min(usize::try_from(length).unwrap_or(0));
        // SAFETY: the caller gives that many bytes.
        unsafe { out.copy_from_nonoverlapping(text.as_ptr().cast(), length) };
    }

    fn cudaDeviceCanAccessPeer(out: *mut c_int, device: c_int, peer: c_int) {
        // SAFETY: the caller gives a place.
        unsafe { put(out, c_int::from(device != peer)) };
    }

    fn cudaDeviceEnablePeerAccess(_peer: c_int, _flags: c_uint) {}

    fn cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        // SAFETY: the caller gives places, or null.
        unsafe { put(least, 0) };
        // SAFETY: as above.
        unsafe { put(greatest, -5) };
    }

    fn cudaDeviceSynchronize() {
        let device = current_device();
        wait("cudaDeviceSynchronize", |model| Ok(model.end_of_device(device)))?;
    }

    fn cudaDriverGetVersion(out: *mut c_int) {
        // SAFETY: the caller gives a place.
        unsafe { put(out, VERSION) };
    }

    fn cudaRuntimeGetVersion(out: *mut c_int) {
        // SAFETY: the caller gives a place.
        unsafe { put(out, VERSION) };
    }

    fn cudaProfilerStart() {}
    fn cudaProfilerStop() {}

    /// There is no driver: none of its functions is found.
    fn cudaGetDriverEntryPointByVersion(
        symbol: *const c_char,
        function: *mut *mut c_void,
        _version: c_uint,
        _flags: c_ulonglong,
        status: *mut c_int,
    ) {
        // SAFETY: the caller gives a C string.
        let name = unsafe { CStr::from_ptr(symbol) };
        refuse(&name.to_string_lossy());
        // SAFETY: the caller gives places, or null.
        unsafe { put(function, std::ptr::null_mut()) };
        // cudaDriverEntryPointSymbolNotFound.
        // SAFETY: as above.
        unsafe { put(status, 1) };
    }
}

/// Not in the log: torch asks some ten times for each kernel, which would fill it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetDevice(device: *mut c_int) -> c_int {
    if forked() {
        return INITIALIZATION.0;
    }
    // SAFETY: the caller gives a place.
    unsafe { put(device, current_device() as c_int) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetLastError() -> c_int {
    crate::call::last_error().replace(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaPeekAtLastError() -> c_int {
    crate::call::last_error().get()
}

fn text_of(error: c_int) -> &'static CStr {
    match error {
        0 => c"no error",
        1 => c"invalid argument",
        2 => c"out of memory",
        3 => c"initialization error",
        100 => c"no CUDA-capable device is detected",
        101 => c"invalid device ordinal",
        600 => c"device not ready",
        801 => c"operation not supported (by the simulated GPU)",
        900 => c"operation not permitted when stream is capturing",
        _ => c"an error of the simulated GPU",
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorString(error: c_int) -> *const c_char {
    text_of(error).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorName(error: c_int) -> *const c_char {
    let name = match error {
        0 => c"cudaSuccess",
        2 => c"cudaErrorMemoryAllocation",
        600 => c"cudaErrorNotReady",
        801 => c"cudaErrorNotSupported",
        _ => c"cudaErrorUnknown",
    };
    name.as_ptr()
}
