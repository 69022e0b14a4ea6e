//! Unwinds through code without unwind tables: code made at run time (oneDNN's kernels), stripped
//! drivers, hand-written assembly with wrong tables. Each guess is a return address in executable
//! memory that follows a call.

use super::link::without_link;
use super::rows::{Caller, returned_to};
use super::sites::Site;
use super::unwind::{Found, NativeFrame, Walk};
use crate::arch::{Architecture, Machine};
use crate::model::frame::Trust;
use crate::model::registers::Registers;

/// Maximum bytes of stack that are searched for a return address.
const SCAN_BYTES: u64 = 16 << 10;
/// Maximum distance of a frame pointer above the stack pointer.
const MAX_FRAME: u64 = 1 << 20;
/// Frames that the unwind tables must find after a guess, unless they reach the root before.
const CONFIRMED_FRAMES: usize = 3;
/// Maximum number of possible callers that are compared.
const MAX_CANDIDATES: usize = 16;

/// The caller of `frame`, from its frame pointer or from the first word on its stack that can be a
/// return address.
pub(super) fn caller(walk: &mut Walk<'_>, frame: &NativeFrame) -> Option<(Caller, Trust)> {
    let by_pointer = by_frame_pointer(walk, frame);
    if Machine::LINKS
        && let Some(pointed) = by_pointer
        && let Some(found) = by_record(walk, pointed)
    {
        return Some((found, Trust::FramePointer));
    }
    let limit = by_pointer.map(|caller| caller.stack_pointer.wrapping_sub(Machine::POINTER_BYTES));
    match (by_scan(walk, frame, limit), by_pointer) {
        // A stale word that follows a call rarely leads to further frames.
        (Some(scanned), Some(pointed)) if !walk.can_follow(&scanned) => {
            Some((pointed, Trust::FramePointer))
        }
        (Some(scanned), _) => Some((scanned, Trust::Scanned)),
        (None, Some(pointed)) => Some((pointed, Trust::FramePointer)),
        (None, None) => None,
    }
}

/// The caller if the tables use an unknown register: most registers of a sleeper are in the kernel.
///
/// Such a register points into the stack, most often into this frame, so every slot that it could
/// point to is tried. Stale words of calls that have ended can look like a caller, too, and lead to
/// further frames. A caller whose call goes to this function, or to one that jumps here, is
/// preferred to one whose call cannot be decoded, and that to one that calls another function.
pub(super) fn without_register(
    walk: &mut Walk<'_>,
    frame: &NativeFrame,
    site: Option<&Site>,
) -> Option<Found> {
    let site = site?;
    let register = site.row.cfa_register()?;
    if register >= Registers::COUNT {
        return None;
    }
    if walk.registers.get(register).is_some() {
        return without_link(walk, frame, site);
    }
    let start = frame.stack_pointer & !(Machine::STACK_ALIGNMENT - 1);
    let mut best: Option<(u8, Found)> = None;
    let mut candidates = 0;
    for value in (start..start.checked_add(SCAN_BYTES)?).step_by(Machine::POINTER_BYTES as usize) {
        let Some(mut found) = walk.follow_with(frame, site, register, value) else {
            continue;
        };
        let address = found.caller.address;
        let confirmed = walk.frames_after(&found, CONFIRMED_FRAMES);
        if !walk.follows_call(address) || confirmed == 0 {
            continue;
        }
        let rank = match walk.calls(address, frame.address.lookup()) {
            Some(true) => 0,
            None => 1,
            Some(false) => 2,
        } + if confirmed == CONFIRMED_FRAMES { 0 } else { 3 };
        found.trust = Trust::Scanned;
        if best.as_ref().is_none_or(|(known, _)| rank < *known) {
            best = Some((rank, found));
        }
        candidates += 1;
        if rank == 0 || candidates == MAX_CANDIDATES {
            break;
        }
    }
    best.map(|(_, found)| found)
}

/// The caller if the frame pointer is this frame's. If this code does not touch it, it is its
/// caller's, or an outer one's.
fn by_frame_pointer(walk: &mut Walk<'_>, frame: &NativeFrame) -> Option<Caller> {
    let pointer = walk.registers.get(Registers::FRAME_POINTER)?;
    let distance = pointer.checked_sub(frame.stack_pointer)?;
    if distance > MAX_FRAME || pointer % Machine::STACK_ALIGNMENT != 0 {
        return None;
    }
    let address = walk
        .memory
        .read_u64(pointer.checked_add(Machine::POINTER_BYTES)?)
        .ok()?;
    let address = Machine::return_address(address);
    if !walk.follows_call(address) {
        return None;
    }
    let mut registers = walk.registers;
    match walk.memory.read_u64(pointer) {
        Ok(saved) => registers.set(Registers::FRAME_POINTER, saved),
        Err(_) => registers.forget(Registers::FRAME_POINTER),
    }
    Some(returned_to(
        registers,
        address,
        pointer.checked_add(2 * Machine::POINTER_BYTES)?,
    ))
}

/// The caller by frame pointer if the tables lead on from it, where functions that call others keep
/// frame records (AAPCS64, section 6.4.6), so that stale ones on the stack are no match for the
/// frame pointer.
///
/// A record is where its function's stack ends, as compilers lay out frames. Code without tables
/// may have its own at the other end (the preamble of oneDNN's kernels, jit_generator.hpp of
/// src/cpu/aarch64).
fn by_record(walk: &mut Walk<'_>, pointed: Caller) -> Option<Caller> {
    let outer = pointed.registers.get(Registers::FRAME_POINTER);
    let at_record = outer
        .filter(|outer| *outer >= pointed.stack_pointer && outer % Machine::STACK_ALIGNMENT == 0)
        .map(|outer| returned_to(pointed.registers, pointed.address, outer));
    at_record
        .into_iter()
        .chain([pointed])
        .find(|caller| walk.can_follow(caller))
}

/// The caller from the first word above the stack pointer, and below `limit`, that can be a return
/// address.
fn by_scan(walk: &mut Walk<'_>, frame: &NativeFrame, limit: Option<u64>) -> Option<Caller> {
    let start = frame
        .stack_pointer
        .checked_next_multiple_of(Machine::STACK_ALIGNMENT)?;
    let end = start.checked_add(SCAN_BYTES)?;
    let mut slot = start;
    while slot < end.min(limit.unwrap_or(end)) {
        let word = Machine::return_address(walk.memory.read_u64(slot).ok()?);
        let after = slot.checked_add(Machine::POINTER_BYTES)?;
        if walk.follows_call(word) {
            return Some(returned_to(walk.registers, word, after));
        }
        slot = after;
    }
    None
}
