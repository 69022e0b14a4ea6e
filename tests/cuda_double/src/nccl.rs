//! NCCL: communicators of ranks that are processes or threads of this node, and collectives that
//! really meet. A collective is a kernel on its stream that ends on all ranks when the last has
//! come to it and the data would be across: ranks that are early keep their device busy, and their
//! hosts run ahead. Small messages move and are reduced; larger ones take their time and move
//! nothing.

mod collective;
mod communicator;

use crate::call::refuse;
use crate::model::{issue_meeting, model, set_device, wait};
use collective::{Group, Kind, Operation, element_bytes, work_of};
use communicator::Communicator;
use gpu_node::monotonic_ns;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

/// `NCCL_VERSION_CODE` of 2.30.7.
const VERSION: c_int = 23_007;

/// An `ncclResult_t` that is no success, from NCCL's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status(c_int);

impl Status {
    const CUDA: Self = Self(1);
    const SYSTEM: Self = Self(2);
    const INTERNAL: Self = Self(3);
    const INVALID_ARGUMENT: Self = Self(4);
    const INVALID_USAGE: Self = Self(5);
    const IN_PROGRESS: Self = Self(7);
}

impl From<crate::call::Error> for Status {
    fn from(_: crate::call::Error) -> Self {
        Self::CUDA
    }
}

/// `ncclUniqueId`: passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

impl UniqueId {
    fn new() -> Self {
        let mut bytes = [0; 128];
        // SAFETY: the place has that many bytes. So few are always given.
        unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 16, 0) };
        Self(bytes)
    }

    fn name(&self) -> String {
        self.0[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// Communicators by their handles.
static COMMUNICATORS: Mutex<Option<HashMap<usize, Arc<Communicator>>>> = Mutex::new(None);

fn communicators() -> MutexGuard<'static, Option<HashMap<usize, Arc<Communicator>>>> {
    COMMUNICATORS
        .lock()
        .unwrap_or_else(|error| error.into_inner())
}

fn communicator(handle: usize) -> Result<Arc<Communicator>, Status> {
    let all = communicators();
    let found = all.as_ref().and_then(|all| all.get(&handle)).cloned();
    found.ok_or(Status::INVALID_ARGUMENT)
}

fn add(communicator: Communicator) -> usize {
    let handle = model().handle();
    let all = &mut *communicators();
    all.get_or_insert_default()
        .insert(handle, Arc::new(communicator));
    handle
}

fn remove(handle: usize) -> Result<Arc<Communicator>, Status> {
    let all = &mut *communicators();
    let found = all.get_or_insert_default().remove(&handle);
    found.ok_or(Status::INVALID_ARGUMENT)
}

/// Factors of `ncclRedOpCreatePreMulSum`. Reductions of the program's own are numbered from 5 on.
static FACTORS: Mutex<Vec<f64>> = Mutex::new(Vec::new());
const OWN_REDUCTIONS: c_int = 5;

/// The factor of a reduction that has one.
fn factor(reduction: c_int) -> Option<f64> {
    let factors = FACTORS.lock().unwrap_or_else(|error| error.into_inner());
    let number = usize::try_from(reduction - OWN_REDUCTIONS).ok()?;
    factors.get(number).copied()
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static GROUPED: RefCell<Vec<(&'static str, Operation)>> = const { RefCell::new(Vec::new()) };
}

fn group_end() -> Result<(), Status> {
    let depth = DEPTH.get().checked_sub(1).ok_or(Status::INVALID_USAGE)?;
    DEPTH.set(depth);
    if depth > 0 {
        return Ok(());
    }
    let mut operations = GROUPED.take();
    // One kernel for each stream.
    while let Some((name, first)) = operations.first() {
        let (name, stream) = (*name, first.stream);
        let (these, others) = operations
            .into_iter()
            .partition(|(_, operation)| operation.stream == stream);
        operations = others;
        issue(name, stream, these)?;
    }
    Ok(())
}

fn issue(
    name: &'static str,
    stream: usize,
    operations: Vec<(&'static str, Operation)>,
) -> Result<(), Status> {
    if model().stream(stream)?.capture.is_some() {
        refuse(&format!("{name} in a graph"));
        return Err(Status::INVALID_USAGE);
    }
    let operations: Vec<Operation> = operations.into_iter().map(|(_, one)| one).collect();
    let work = work_of(&operations);
    let group = Group::new(operations, &work).map_err(|_| Status::SYSTEM)?;
    wait(name, |_| Ok(group.has_room().then_some(0)))?;
    issue_meeting(name, stream, work.name, work.used, Box::new(group))?;
    Ok(())
}

/// Puts an operation into its stream, or into the group that is open.
fn enqueue(name: &'static str, operation: Operation) -> Result<(), Status> {
    element_bytes(operation.data).ok_or(Status::INVALID_ARGUMENT)?;
    if operation.root >= operation.communicator.ranks {
        return Err(Status::INVALID_ARGUMENT);
    }
    DEPTH.set(DEPTH.get() + 1);
    GROUPED.with_borrow_mut(|grouped| grouped.push((name, operation)));
    group_end()
}

/// Functions of NCCL: success, or the status with which the block ends.
macro_rules! nccl {
    ($($(#[$note:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {$(
        $(#[$note])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let mut status = 0;
            let refused = crate::call::run(stringify!($name), || {
                let run = || -> Result<(), Status> {
                    $body
                    #[allow(unreachable_code)]
                    Ok(())
                };
                status = run().err().map_or(0, |status| status.0);
                Ok(())
            });
            if refused == 0 { status } else { Status::CUDA.0 }
        }
    )*};
}

/// Collectives and point-to-point operations.
macro_rules! operations {
    ($($name:ident($($argument:ident: $kind:ty),*) $operation:expr, $fields:tt;)*) => {nccl! {$(
        fn $name($($argument: $kind,)* handle: usize, stream: usize) {
            let communicator = communicator(handle)?;
            let base = Operation {
                kind: $operation,
                send: 0,
                receive: 0,
                count: 0,
                data: 0,
                reduction: 0,
                root: 0,
                communicator,
                stream,
            };
            enqueue(stringify!($name), operations!(base $fields))?;
        }
    )*}};
    ($base:ident { $($field:ident: $value:expr),* }) => {
        Operation { $($field: $value,)* ..$base }
    };
}

operations! {
    ncclAllReduce(send: usize, receive: usize, count: usize, data: c_int, reduction: c_int)
        Kind::AllReduce, { send: send, receive: receive, count: count, data: data, reduction: reduction };
    ncclReduce(send: usize, receive: usize, count: usize, data: c_int, reduction: c_int, root: c_int)
        Kind::Reduce, { send: send, receive: receive, count: count, data: data, reduction: reduction, root: root as usize };
    ncclBroadcast(send: usize, receive: usize, count: usize, data: c_int, root: c_int)
        Kind::Broadcast, { send: send, receive: receive, count: count, data: data, root: root as usize };
    ncclBcast(buffer: usize, count: usize, data: c_int, root: c_int)
        Kind::Broadcast, { send: buffer, receive: buffer, count: count, data: data, root: root as usize };
    ncclAllGather(send: usize, receive: usize, count: usize, data: c_int)
        Kind::AllGather, { send: send, receive: receive, count: count, data: data };
    ncclReduceScatter(send: usize, receive: usize, count: usize, data: c_int, reduction: c_int)
        Kind::ReduceScatter, { send: send, receive: receive, count: count, data: data, reduction: reduction };
    ncclAlltoAll(send: usize, receive: usize, count: usize, data: c_int)
        Kind::AllToAll, { send: send, receive: receive, count: count, data: data };
    ncclGather(send: usize, receive: usize, count: usize, data: c_int, root: c_int)
        Kind::Gather, { send: send, receive: receive, count: count, data: data, root: root as usize };
    ncclScatter(send: usize, receive: usize, count: usize, data: c_int, root: c_int)
        Kind::Scatter, { send: send, receive: receive, count: count, data: data, root: root as usize };
    ncclSend(send: usize, count: usize, data: c_int, peer: c_int)
        Kind::Send, { send: send, count: count, data: data, root: peer as usize };
    ncclRecv(receive: usize, count: usize, data: c_int, peer: c_int)
        Kind::Receive, { receive: receive, count: count, data: data, root: peer as usize };
}

/// The begin of an `ncclConfig_t`.
#[repr(C)]
pub struct Config {
    bytes: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

/// Makes a rank's communicator: returns when all ranks have come, or before, if the configuration
/// says so.
fn join(
    name: &'static str,
    out: *mut usize,
    (rank, ranks): (c_int, c_int),
    id: &UniqueId,
    config: *const Config,
) -> Result<(), Status> {
    let (Ok(rank), Ok(ranks)) = (usize::try_from(rank), usize::try_from(ranks)) else {
        return Err(Status::INVALID_ARGUMENT);
    };
    // SAFETY: the program gives a configuration, or null.
    let blocking = unsafe { config.as_ref() }.is_none_or(|config| config.blocking != 0);
    let joined = Communicator::join(id.name(), rank, ranks)?;
    if blocking {
        joined.wait(name);
    }
    // SAFETY: the program gives a place.
    unsafe { crate::call::put(out, add(joined)) };
    if blocking {
        Ok(())
    } else {
        Err(Status::IN_PROGRESS)
    }
}

nccl! {
    fn ncclGetVersion(out: *mut c_int) {
        // SAFETY: the program gives a place.
        unsafe { crate::call::put(out, VERSION) };
    }

    fn ncclGetUniqueId(out: *mut UniqueId) {
        // SAFETY: the program gives a place.
        unsafe { crate::call::put(out, UniqueId::new()) };
    }

    fn ncclCommInitRank(out: *mut usize, ranks: c_int, id: UniqueId, rank: c_int) {
        join("ncclCommInitRank", out, (rank, ranks), &id, std::ptr::null())?;
    }

    fn ncclCommInitRankConfig(out: *mut usize, ranks: c_int, id: UniqueId, rank: c_int, config: *const Config) {
        join("ncclCommInitRank", out, (rank, ranks), &id, config)?;
    }

    /// The first id is enough for ranks of one machine.
    fn ncclCommInitRankScalable(out: *mut usize, ranks: c_int, rank: c_int, _count: c_int, ids: *const UniqueId, config: *const Config) {
        // SAFETY: the program gives at least one.
        let id = unsafe { ids.as_ref() }.ok_or(Status::INVALID_ARGUMENT)?;
        join("ncclCommInitRank", out, (rank, ranks), id, config)?;
    }

    /// All ranks are of this thread: none waits for another.
    fn ncclCommInitAll(out: *mut usize, ranks: c_int, devices: *const c_int) {
        let (id, own) = (UniqueId::new(), crate::model::current_device());
        let ranks = usize::try_from(ranks).map_err(|_| Status::INVALID_ARGUMENT)?;
        for rank in 0..ranks {
            let device = match devices.is_null() {
                true => rank,
                // SAFETY: the program gives as many as ranks.
                false => (unsafe { devices.add(rank).read() }) as usize,
            };
            set_device(device)?;
            let handle = add(Communicator::join(id.name(), rank, ranks)?);
            // SAFETY: the program gives as many places.
            unsafe { out.add(rank).write(handle) };
        }
        set_device(own)?;
    }

    fn ncclCommSplit(handle: usize, color: c_int, key: c_int, out: *mut usize, _config: *const Config) {
        let child = communicator(handle)?.split(color, key)?;
        // SAFETY: the program gives a place.
        unsafe { crate::call::put(out, child.map_or(0, add)) };
    }

    fn ncclCommShrink(handle: usize, excluded: *const c_int, count: c_int, out: *mut usize, _config: *const Config, flags: c_int) {
        let parent = communicator(handle)?;
        // NCCL_SHRINK_ABORT.
        if flags & 1 != 0 {
            parent.abort();
        }
        let count = usize::try_from(count).map_err(|_| Status::INVALID_ARGUMENT)?;
        // SAFETY: the program gives that many.
        let excluded = unsafe { std::slice::from_raw_parts(excluded, count) };
        let child = parent.shrink(excluded)?;
        // SAFETY: the program gives a place.
        unsafe { crate::call::put(out, add(child)) };
    }

    fn ncclCommFinalize(handle: usize) {
        communicator(handle)?;
    }

    /// What is under way still meets its peers.
    fn ncclCommDestroy(handle: usize) {
        remove(handle)?;
    }

    fn ncclCommAbort(handle: usize) {
        remove(handle)?.abort();
    }

    fn ncclCommGetAsyncError(handle: usize, out: *mut c_int) {
        let found = communicator(handle)?;
        let ready = found.ready_ns().is_some_and(|at| at <= monotonic_ns());
        // SAFETY: the program gives a place.
        unsafe { crate::call::put(out, if ready { 0 } else { Status::IN_PROGRESS.0 }) };
    }

    fn ncclCommCount(handle: usize, out: *mut c_int) {
        let count = communicator(handle)?.ranks;
        // SAFETY: the program gives a place.
        unsafe { crate::call::put(out, count as c_int) };
    }

    fn ncclCommUserRank(handle: usize, out: *mut c_int) {
        let rank = communicator(handle)?.rank;
        // SAFETY: the program gives a place.
        unsafe { crate::call::put(out, rank as c_int) };
    }

    fn ncclCommCuDevice(handle: usize, out: *mut c_int) {
        let device = communicator(handle)?.device;
        // SAFETY: the program gives a place.
        unsafe { crate::call::put(out, device as c_int) };
    }

    fn ncclGroupStart() {
        DEPTH.set(DEPTH.get() + 1);
    }

    fn ncclGroupEnd() {
        group_end()?;
    }

    /// Nothing is faster for it here.
    fn ncclCommRegister(handle: usize, _buffer: usize, _bytes: usize, out: *mut usize) {
        communicator(handle)?;
        // SAFETY: the program gives a place.
        unsafe { crate::call::put(out, model().handle()) };
    }

    fn ncclCommDeregister(handle: usize, _registration: usize) {
        communicator(handle)?;
    }

    fn ncclMemAlloc(out: *mut usize, bytes: usize) {
        let address = crate::memory::allocate(bytes)?;
        // SAFETY: the program gives a place.
        unsafe { crate::call::put(out, address) };
    }

    fn ncclMemFree(address: usize) {
        // SAFETY: what it does with the address is checked.
        let status = unsafe { crate::memory::cudaFree(address) };
        return if status == 0 { Ok(()) } else { Err(Status::CUDA) };
    }

    fn ncclRedOpCreatePreMulSum(out: *mut c_int, scalar: *const c_void, data: c_int, _residence: c_int, _handle: usize) {
        // SAFETY: the program gives a value of that type, which memory of the device is, too.
        let factor = unsafe {
            match data {
                7 => scalar.cast::<f32>().read_unaligned().into(),
                8 => scalar.cast::<f64>().read_unaligned(),
                _ => 1.0,
            }
        };
        let mut factors = FACTORS.lock().unwrap_or_else(|error| error.into_inner());
        factors.push(factor);
        // SAFETY: the program gives a place.
        unsafe { crate::call::put(out, OWN_REDUCTIONS + factors.len() as c_int - 1) };
    }

    /// Numbers are not given again.
    fn ncclRedOpDestroy(_reduction: c_int, _handle: usize) {}
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(status: c_int) -> *const c_char {
    let text: &CStr = match status {
        0 => c"no error",
        1 => c"unhandled cuda error",
        2 => c"unhandled system error",
        4 => c"invalid argument",
        5 => c"invalid usage (or not supported by the simulated GPU)",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        _ => c"internal error",
    };
    text.as_ptr()
}

/// Nothing more is known than the status says.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_handle: usize) -> *const c_char {
    c"".as_ptr()
}
