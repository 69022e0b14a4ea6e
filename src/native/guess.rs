//! Crossing code that has no unwind tables: code made at run time (oneDNN's kernels), stripped drivers, hand-written assembly
//! whose tables are wrong. Whatever is guessed here is a return address in executable memory that follows a call.

use super::arch;
use super::rows::Caller;
use super::unwind::{NativeFrame, Walk};
use crate::model::frame::Trust;
use crate::model::registers::Registers;

/// Bytes of stack that are searched for a return address.
const SCAN_BYTES: u64 = 16 << 10;
/// How far above the stack pointer a frame pointer is believed.
const MAX_FRAME: u64 = 1 << 20;

/// The caller of `frame`, by its frame pointer or the first word on its stack that can be a return address.
pub(super) fn caller(walk: &mut Walk<'_>, frame: &NativeFrame) -> Option<(Caller, Trust)> {
    let by_pointer = by_frame_pointer(walk, frame);
    let limit = by_pointer.map(|caller| caller.stack_pointer.wrapping_sub(arch::POINTER_BYTES));
    match (by_scan(walk, frame, limit), by_pointer) {
        // Garbage that follows a call seldom leads on.
        (Some(scanned), Some(pointed)) if !walk.can_follow(&scanned) => {
            Some((pointed, Trust::FramePointer))
        }
        (Some(scanned), _) => Some((scanned, Trust::Scanned)),
        (None, Some(pointed)) => Some((pointed, Trust::FramePointer)),
        (None, None) => None,
    }
}

/// The caller if rbp is this frame's frame pointer. If this code does not touch rbp, that is its caller's, or an outer one's.
fn by_frame_pointer(walk: &mut Walk<'_>, frame: &NativeFrame) -> Option<Caller> {
    let pointer = walk.registers.get(Registers::FRAME_POINTER)?;
    let distance = pointer.checked_sub(frame.stack_pointer)?;
    if distance > MAX_FRAME || pointer % arch::STACK_ALIGNMENT != 0 {
        return None;
    }
    let address = walk
        .memory
        .read_u64(pointer.checked_add(arch::POINTER_BYTES)?)
        .ok()?;
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
        pointer.checked_add(2 * arch::POINTER_BYTES)?,
    ))
}

/// The caller by the first word from the stack pointer up, and below `limit`, that can be a return address.
fn by_scan(walk: &mut Walk<'_>, frame: &NativeFrame, limit: Option<u64>) -> Option<Caller> {
    let start = frame
        .stack_pointer
        .checked_next_multiple_of(arch::STACK_ALIGNMENT)?;
    let end = start.checked_add(SCAN_BYTES)?;
    let mut slot = start;
    while slot < end.min(limit.unwrap_or(end)) {
        let word = walk.memory.read_u64(slot).ok()?;
        let after = slot.checked_add(arch::POINTER_BYTES)?;
        if walk.follows_call(word) {
            return Some(returned_to(walk.registers, word, after));
        }
        slot = after;
    }
    None
}

fn returned_to(mut registers: Registers, address: u64, stack_pointer: u64) -> Caller {
    registers.set(Registers::STACK_POINTER, stack_pointer);
    registers.set(Registers::INSTRUCTION_POINTER, address);
    Caller {
        registers,
        address,
        stack_pointer,
    }
}
