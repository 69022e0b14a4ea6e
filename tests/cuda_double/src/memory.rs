//! Memory of devices and pinned memory: host memory, of which it is known what it stands for.

use crate::call::{Error, INVALID, MEMORY, Result, put};
use crate::model::{current_device, node, spend, wait};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Mutex, MutexGuard};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Of which device.
    Device(usize),
    Pinned,
    Pageable,
}

struct Region {
    bytes: usize,
    place: Place,
    /// Memory of the program that was registered: not ours to unmap.
    registered: bool,
}

static REGIONS: Mutex<BTreeMap<usize, Region>> = Mutex::new(BTreeMap::new());

fn regions() -> MutexGuard<'static, BTreeMap<usize, Region>> {
    REGIONS.lock().unwrap_or_else(|error| error.into_inner())
}

/// What an address is memory of.
pub(crate) fn place_of(address: usize) -> Place {
    let regions = regions();
    let found = regions.range(..=address).next_back();
    found
        .filter(|(start, region)| address < *start + region.bytes)
        .map_or(Place::Pageable, |(_, region)| region.place)
}

fn map(bytes: usize, place: Place) -> Result<usize> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let bytes = bytes.max(1).next_multiple_of(4096);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let map = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
    if map == libc::MAP_FAILED {
        return Err(MEMORY);
    }
    let region = Region {
        bytes,
        place,
        registered: false,
    };
    regions().insert(map as usize, region);
    Ok(map as usize)
}

/// Allocates memory of the thread's device, if it has as much.
pub(crate) fn allocate(bytes: usize) -> Result<usize> {
    let device = current_device();
    crate::device::use_device(device);
    spend(node().scenario.allocation_us);
    let number = *node().visible.get(device).ok_or(INVALID)?;
    let used: u64 = node()
        .shared
        .processes(number)
        .iter()
        .map(|(_, used)| used)
        .sum();
    if used + bytes as u64 > node().scenario.gpus[number].memory_total {
        return Err(MEMORY);
    }
    let address = map(bytes, Place::Device(device))?;
    if let Some(memory) = node().shared.memory(number) {
        memory.fetch_add(bytes as u64, AcqRel);
    }
    Ok(address)
}

fn release(address: usize) -> Result {
    let mut regions = regions();
    let region = regions.remove(&address).ok_or(INVALID)?;
    drop(regions);
    if let Place::Device(device) = region.place
        && let Some(memory) = node().shared.memory(node().visible[device])
    {
        memory.fetch_sub(region.bytes as u64, AcqRel);
    }
    if !region.registered {
        // SAFETY: mapped by `map` with this length, and known to nobody any more.
        unsafe { libc::munmap(address as *mut c_void, region.bytes) };
    }
    Ok(())
}

/// Variables that live on the device, by the address of their host shadow: length, and address
/// once they are used.
static SYMBOLS: Mutex<BTreeMap<usize, (usize, usize)>> = Mutex::new(BTreeMap::new());

fn symbols() -> MutexGuard<'static, BTreeMap<usize, (usize, usize)>> {
    SYMBOLS.lock().unwrap_or_else(|error| error.into_inner())
}

pub(crate) fn add_symbol(shadow: usize, bytes: usize) {
    symbols().insert(shadow, (bytes, 0));
}

/// The address of such a variable.
pub(crate) fn symbol(shadow: usize) -> Result<usize> {
    let mut symbols = symbols();
    // cudaErrorInvalidSymbol
    let (bytes, address) = symbols.get_mut(&shadow).ok_or(Error(13))?;
    if *address == 0 {
        *address = map(*bytes, Place::Device(current_device()))?;
    }
    Ok(*address)
}

calls! {
    fn cudaMalloc(out: *mut usize, bytes: usize) {
        let address = allocate(bytes)?;
        // SAFETY: the caller gives a place.
        unsafe { put(out, address) };
    }

    /// Waits for the device, as documented: work that is under way may use what is freed.
    fn cudaFree(address: usize) {
        if address == 0 {
            return Ok(());
        }
        let Place::Device(device) = place_of(address) else { return Err(INVALID) };
        wait("cudaFree", |model| Ok(model.end_of_device(device)))?;
        spend(node().scenario.allocation_us);
        release(address)?;
    }

    fn cudaHostAlloc(out: *mut usize, bytes: usize, _flags: c_uint) {
        spend(node().scenario.allocation_us);
        let address = map(bytes, Place::Pinned)?;
        // SAFETY: the caller gives a place.
        unsafe { put(out, address) };
    }

    fn cudaMallocHost(out: *mut usize, bytes: usize) {
        spend(node().scenario.allocation_us);
        let address = map(bytes, Place::Pinned)?;
        // SAFETY: the caller gives a place.
        unsafe { put(out, address) };
    }

    fn cudaFreeHost(address: usize) {
        if address != 0 {
            release(address)?;
        }
    }

    fn cudaHostRegister(address: usize, bytes: usize, _flags: c_uint) {
        let region = Region { bytes, place: Place::Pinned, registered: true };
        regions().insert(address, region);
    }

    fn cudaHostUnregister(address: usize) {
        release(address)?;
    }

    fn cudaMemGetInfo(free: *mut usize, total: *mut usize) {
        let device = current_device();
        crate::device::use_device(device);
        let number = *node().visible.get(device).ok_or(INVALID)?;
        let used: u64 = node().shared.processes(number).iter().map(|(_, used)| used).sum();
        let all = node().scenario.gpus[number].memory_total;
        // SAFETY: the caller gives places.
        unsafe { put(free, all.saturating_sub(used) as usize) };
        // SAFETY: as above.
        unsafe { put(total, all as usize) };
    }

    /// `struct cudaPointerAttributes`: type, device, the pointer on the device and on the host.
    fn cudaPointerGetAttributes(out: *mut c_void, address: usize) {
        let (kind, device) = match place_of(address) {
            Place::Pageable => (0, -1),
            Place::Pinned => (1, current_device() as c_int),
            Place::Device(device) => (2, device as c_int),
        };
        let on_host = if kind == 1 { address } else { 0 };
        let on_device = if kind == 0 { 0 } else { address };
        // SAFETY: the caller gives the structure, of 88 bytes.
        unsafe {
            out.cast::<[u8; 88]>().write_unaligned([0; 88]);
            out.cast::<[c_int; 2]>().write_unaligned([kind, device]);
            out.cast::<usize>().add(1).write_unaligned(on_device);
            out.cast::<usize>().add(2).write_unaligned(on_host);
        }
    }

    fn cudaGetSymbolAddress(out: *mut usize, shadow: usize) {
        let address = symbol(shadow)?;
        // SAFETY: the caller gives a place.
        unsafe { put(out, address) };
    }
}
