//! What is torch's own: three things that it asks others than the runtime, where there is no driver
//! to answer, and the one kernel whose result its host code cannot do without.

use crate::call::refuse;
use crate::copies::{is_fresh, received};
use crate::device::has_context;
use crate::memory::{Place, place_of};
use crate::model::{Effect, launches};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `at::DynamicLibrary::sym(char const*)`: how torch finds functions of the driver and of NVRTC
/// when it first needs them. Training needs two of the driver: whether a context is current, before
/// it calls cuBLAS, and whether a device has one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZN2at14DynamicLibrary3symEPKc(
    _library: *mut c_void,
    name: *const c_char,
) -> *mut c_void {
    // SAFETY: torch gives a C string.
    let text = unsafe { CStr::from_ptr(name) };
    match text.to_bytes() {
        b"cuCtxGetCurrent" => current_context as *mut c_void,
        b"cuDevicePrimaryCtxGetState" => context_state as *mut c_void,
        // SAFETY: as above; what torch links is in its own scope.
        _ => match unsafe { libc::dlsym(libc::RTLD_DEFAULT, name) } {
            found if found.is_null() => {
                refuse(&text.to_string_lossy());
                refused as *mut c_void
            }
            found => found,
        },
    }
}

unsafe extern "C" fn current_context(out: *mut *mut c_void) -> c_int {
    // SAFETY: the caller gives a place. It asks whether there is one, and no more.
    unsafe { out.write(std::ptr::dangling_mut()) };
    0
}

unsafe extern "C" fn context_state(device: c_int, flags: *mut c_uint, active: *mut c_int) -> c_int {
    let has = usize::try_from(device).is_ok_and(has_context);
    // SAFETY: the caller gives places.
    unsafe {
        flags.write(0);
        active.write(has.into());
    }
    0
}

/// CUDA_ERROR_NOT_SUPPORTED.
extern "C" fn refused() -> c_int {
    801
}

/// `at::Context::userEnabledCuDNN() const`: there is no double of cuDNN, and this says what
/// `torch.backends.cudnn.enabled = False` says.
#[unsafe(no_mangle)]
pub extern "C" fn _ZNK2at7Context16userEnabledCuDNNEv(_context: *const u8) -> bool {
    false
}

/// A process that uses a device has the driver's library mapped, which is how others tell it. Here
/// it is a library of that name in the node's folder that has none of the driver's functions.
pub(crate) fn load_driver() {
    let path = crate::model::node().folder.join("libcuda.so.1");
    if let Ok(path) = std::ffi::CString::new(path.into_os_string().into_encoded_bytes()) {
        // SAFETY: a C string; the library does nothing when it is loaded.
        unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
    }
}

/// A reduction of few 64-bit integers to one. `all_gather_object` reads the largest of the ranks'
/// sizes on the host, `broadcast_object_list` the sum of those of the objects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reduction {
    Maximum,
    Sum,
}

/// `at::native::ReduceOp<long, ..>` of torch 2.15, by the offsets of `config.num_inputs`,
/// `config.num_outputs`, `src` and `dst`
/// (<https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cuda/Reduce.cuh>).
const INPUTS: usize = 20;
const OUTPUTS: usize = 24;
const SOURCE: usize = 992;
const TARGET: usize = 1000;
/// Elements that are reduced.
const MOST: i32 = 1024;

impl Reduction {
    /// What a kernel of this name is, as the compiler mangles it.
    pub(crate) fn of(name: &str) -> Option<Self> {
        if !name.contains("13reduce_kernel") || !name.contains("8ReduceOpIl") {
            None
        } else if name.contains("13MaxNanFunctorIl") {
            Some(Self::Maximum)
        } else if name.contains("11sum_functorIlll") {
            Some(Self::Sum)
        } else {
            None
        }
    }

    /// What it does to memory; nothing where the integers are no values that the host or a
    /// collective wrote.
    ///
    /// # Safety
    /// The argument is that of such a kernel.
    pub(crate) unsafe fn effect(self, argument: *const c_void) -> Option<Effect> {
        let bytes = argument.cast::<u8>();
        // SAFETY: all of these are in the structure.
        let (inputs, outputs, from, to) = unsafe {
            (
                bytes.add(INPUTS).cast::<i32>().read_unaligned(),
                bytes.add(OUTPUTS).cast::<i32>().read_unaligned(),
                bytes.add(SOURCE).cast::<usize>().read_unaligned(),
                bytes.add(TARGET).cast::<usize>().read_unaligned(),
            )
        };
        let on_device = |address| matches!(place_of(address), Place::Device(_));
        let fits = (1..=MOST).contains(&inputs) && outputs == 1;
        if !fits || !on_device(from) || !on_device(to) {
            return None;
        }
        let (count, launches) = (inputs as usize, launches());
        Some(Box::new(move || {
            if !is_fresh(from, count * 8, launches) {
                return;
            }
            // SAFETY: memory of the program's, which lives until the stream is done.
            let values = (0..count).map(|at| unsafe { (from as *const i64).add(at).read() });
            let value = match self {
                Self::Maximum => values.fold(i64::MIN, i64::max),
                Self::Sum => values.fold(0, i64::wrapping_add),
            };
            // SAFETY: as above.
            unsafe { (to as *mut i64).write(value) };
            received(to, 8);
        }))
    }
}
